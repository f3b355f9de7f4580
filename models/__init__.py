"""Torch only: nets, losses, scores and the training loop. Knows nothing of storage, tasks or flows."""
