"""Nets that turn pixels into features, each with its weights and its preprocessing."""
