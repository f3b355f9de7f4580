"""Training: batches, the trainer, its state on disk, several processes, and loading trained captioners."""
