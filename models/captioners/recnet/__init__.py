"""RecNet: a captioner with global, local or joint reconstructors."""
