"""Layers that several captioners share: attention, recurrent decoders, Gumbel top-k, the output layer."""
