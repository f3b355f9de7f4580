"""The output layer of every decoder: from a hidden state to the logits of all words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_MULTIPLE = 16  # of float32 are a cache line, and whole tiles of the matrix units that there are


class WordLayer(nn.Linear):
    """A linear layer whose rows of logits begin at multiples of a cache line, whatever the size of the vocabulary.

    Without that a vocabulary of odd size costs half as much again, forwards and backwards, and this layer is a third of the
    work of a captioner. Weights, names and results are those of nn.Linear."""

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (..., H) -> logits (..., V)."""
        V = self.out_features
        filling = -V % _MULTIPLE
        if not filling:
            return super().forward(hidden)
        if torch.is_grad_enabled() or torch.is_autocast_enabled(hidden.device.type):
            weight, bias = (
                nn.functional.pad(self.weight, (0, 0, 0, filling)),
                nn.functional.pad(self.bias, (0, filling)),
            )
            return nn.functional.linear(hidden, weight, bias)[..., :V]
        # In a search the copy of the weights would be felt, and an output that is wider than it is used does the same.
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = rows.new_empty(len(rows), V + filling)[:, :V]
        torch.addmm(self.bias, rows, self.weight.t(), out=logits)
        return logits.unflatten(0, hidden.shape[:-1])
