"""Faults at random while the pipeline runs, and a comparison with a run that was left in peace: `make chaos`."""
