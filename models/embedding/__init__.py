"""Nets that map videos into a space of meaning: the words that people would use about them."""
