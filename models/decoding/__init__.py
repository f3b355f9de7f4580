"""Captions from a trained captioner: greedy decoding, sampling, beam search, ensembles, scheduled sampling."""
