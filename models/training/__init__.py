"""One training loop for everything that is trained; what differs is the objective."""
