"""The two layers of every decoder that know the vocabulary: the word embedding, and the output layer to the logits."""

from typing import Any

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

    def forward(self, hidden: Tensor, wanted: Tensor | None = None) -> Tensor:
        """hidden (..., H) -> logits (..., V); with `wanted` (W,), of these rows of hidden only."""
        if wanted is not None:
            hidden = hidden[wanted]
        if torch.is_autocast_enabled(hidden.device.type):
            padding = -self.out_features % _MULTIPLE
            weight = nn.functional.pad(self.weight, (0, 0, 0, padding))
            return nn.functional.linear(hidden, weight, nn.functional.pad(self.bias, (0, padding)))[..., : self.out_features]
        logits: Tensor = _PaddedLinear.apply(hidden.reshape(-1, hidden.shape[-1]), self.weight, self.bias)
        return logits.unflatten(0, hidden.shape[:-1])


def padded_rows(like: Tensor, rows: int, columns: int) -> Tensor:
    """An empty tensor (rows, columns), each row of which starts at a multiple of a cache line."""
    return like.new_empty_strided((rows, columns), (columns + -columns % _MULTIPLE, 1))


class _PaddedLinear(torch.autograd.Function):
    """rows (R, H), weight (V, H), bias (V,) -> padded rows (R, V), without a padded copy of the weights."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.addmm(bias, rows, weight.t(), out=padded_rows(rows, len(rows), len(weight)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight = ctx.saved_tensors
        if gradient.stride(0) % _MULTIPLE or gradient.stride(1) != 1:
            gradient = padded_rows(gradient, *gradient.shape).copy_(gradient)
        return gradient @ weight, gradient.t() @ rows, gradient.sum(0)
