"""Captions from a trained captioner: greedy, beam search, sampling, ensembles and likelihoods."""
