"""Layers that several captioners share: attention, recurrent steps, embedding and output layer, Gumbel top-k, top-k."""
