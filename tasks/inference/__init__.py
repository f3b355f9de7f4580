"""Captions for a split of a data set or for a user's own files."""
