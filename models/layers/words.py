"""The two layers of every decoder that know the vocabulary: the word embedding, and the output layer to the logits."""

import torch
from torch import Tensor, nn

from models.types import PAD

_MULTIPLE = 16  # float32 numbers per cache line, and whole tiles of the CPU's matrix units


def word_embedding(vocabulary_size: int, size: int) -> nn.Embedding:
    """nn.Embedding, scaled to a tenth: embeddings of unit variance would drown the video's features at first."""
    embedding = nn.Embedding(vocabulary_size, size, padding_idx=PAD)
    with torch.no_grad():
        embedding.weight.mul_(0.1)
    return embedding


class OutputLayer(nn.Linear):
    """nn.Linear whose rows of logits start at multiples of a cache line, whatever the size of the vocabulary.

    Without this padding a vocabulary of odd size costs half as much again, forwards and backwards, and this layer is a
    third of a captioner's work. Weights, names and results are those of nn.Linear."""

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (..., H) -> logits (..., V)."""
        V = self.out_features
        padding = -V % _MULTIPLE
        if not padding:
            return super().forward(hidden)
        if torch.is_grad_enabled() or torch.is_autocast_enabled(hidden.device.type):
            weight = nn.functional.pad(self.weight, (0, 0, 0, padding))
            return nn.functional.linear(hidden, weight, nn.functional.pad(self.bias, (0, padding)))[..., :V]
        # Decoding cannot afford to copy the weights at every step: it writes into a padded output instead.
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = rows.new_empty(len(rows), V + padding)[:, :V]
        torch.addmm(self.bias, rows, self.weight.t(), out=logits)
        return logits.unflatten(0, hidden.shape[:-1])
