"""Attention of a decoder over the rows of a Memory, and its masked softmax."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from models.types import Memory


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """scores (..., T), mask (..., T) -> weights (..., T) that sum to 1 over the valid entries, all 0 if there are none."""
    floor = torch.finfo(scores.dtype).min  # not -inf: a row without valid entries must not become NaN
    return torch.softmax(scores.masked_fill(~mask, floor), dim=-1) * mask


class AttentionSoftmax(nn.Module):
    """`masked_softmax` of an attention module; it can drop a share of the weights, from 0 to 1 (G2L, Fig. 6)."""

    drop_share = 0.0

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights = masked_softmax(scores, mask)
        return drop_smallest(weights, mask, self.drop_share) if self.drop_share else weights


@contextmanager
def dropping_smallest_weights(model: nn.Module, share: float) -> Iterator[None]:
    """Inside, every attention of `model` drops that share of its weights, the smallest first."""
    softmaxes = [module for module in model.modules() if isinstance(module, AttentionSoftmax)]
    for softmax in softmaxes:
        softmax.drop_share = share
    try:
        yield
    finally:
        for softmax in softmaxes:
            softmax.drop_share = 0.0


def drop_smallest(weights: Tensor, mask: Tensor, share: float) -> Tensor:
    """weights (..., T), mask (..., T) -> weights (..., T), zero for `share` of the valid entries, rounded down: the
    smallest, and of equals the last ones. The others sum to 1 again."""
    order = weights.masked_fill(~mask, -1.0).argsort(dim=-1, descending=True, stable=True)
    valid = mask.sum(-1, keepdim=True)
    kept = valid - torch.floor(share * valid + 1e-3)  # 0.53 x 100 are 53
    first = (torch.arange(mask.shape[-1], device=mask.device) < kept).expand_as(mask)
    left = weights * torch.zeros_like(mask).scatter(-1, order, first)
    return left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)


class Attention(Protocol):
    """What a decoder asks at each step: hidden (N, H), memory of N -> context (N, M), weights (N, T) or None."""

    def prepare(self, memory: Memory) -> Memory: ...

    def __call__(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]: ...


class AdditiveAttention(nn.Module):
    """Soft attention over time (RecNet eq. 3 to 5): e_j = w . tanh(W_v v_j + W_h h + b).

    Since tanh(x) = 2 sigmoid(2x) - 1 and a softmax ignores what is added to all its inputs, e_j is computed as
    2 w . sigmoid(2x): torch's sigmoid is six times as fast as its tanh, which would take a tenth of a beam search."""

    def __init__(self, memory: int, hidden: int, attention: int):
        super().__init__()
        self.from_memory = nn.Linear(memory, attention)
        self.from_hidden = nn.Linear(hidden, attention, bias=False)
        self.score = nn.Linear(attention, 1, bias=False)
        self.softmax = AttentionSoftmax()

    def prepare(self, memory: Memory) -> Memory:
        return memory.with_extras(keys=2 * self.from_memory(memory.tokens))

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        query = 2 * self.from_hidden(hidden).unsqueeze(1)
        scores = 2 * self.score(torch.sigmoid(memory.extras["keys"] + query)).squeeze(-1)
        weights = self.softmax(scores, memory.mask)
        return weighted_sum(weights, memory.tokens), weights


class MeanContext(nn.Module):
    """No attention: every step reads the mean of the rows (MP-LSTM)."""

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, None]:
        return memory.summary, None


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """weights (N, T), rows (N, T, D) -> (N, D)."""
    return torch.bmm(weights.unsqueeze(1), rows).squeeze(1)
