"""What runs and in which order: the pipeline, the recipes and the command line."""
