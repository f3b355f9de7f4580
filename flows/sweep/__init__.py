"""Sweeps: variants of one recipe with several seeds each."""
