"""How a decoder reads a Memory at each step: soft attention over its rows, or its summary as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from models.types import Memory


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """scores (..., T), mask (..., T) -> weights (..., T) that sum to 1 over the real entries, or are all 0 without any."""
    floor = torch.finfo(scores.dtype).min  # not -inf: a row without real entries must not become NaN
    weights = torch.softmax(scores.masked_fill(~mask, floor), dim=-1) * mask
    share = _IGNORED.get()
    return without_the_smallest(weights, mask, share) if share else weights


_IGNORED: ContextVar[float] = ContextVar("ignored", default=0.0)


@contextmanager
def ignoring_the_smallest(share: float) -> Iterator[None]:
    """Inside, every attention does without that part of its weights, from 0 to 1, the smallest first (G2L, Fig. 6)."""
    before = _IGNORED.set(share)
    try:
        yield
    finally:
        _IGNORED.reset(before)


def without_the_smallest(weights: Tensor, mask: Tensor, share: float) -> Tensor:
    """weights (..., T), mask (..., T) -> weights (..., T), zero for `share` of the real entries, rounded down, the smallest
    and of equals the last ones; the others sum to 1 again."""
    order = weights.masked_fill(~mask, -1.0).argsort(dim=-1, descending=True, stable=True)
    real = mask.sum(-1, keepdim=True)
    kept = real - torch.floor(share * real + 1e-3)  # 0.53 x 100 are 53
    first = (torch.arange(mask.shape[-1], device=mask.device) < kept).expand_as(mask)
    left = weights * torch.zeros_like(mask).scatter(-1, order, first)
    return left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)


class Reader(Protocol):
    """What an LSTM decoder asks at each step: hidden (N, H), memory of N -> context (N, M), weights (N, T) or None."""

    def prepare(self, memory: Memory) -> Memory: ...

    def __call__(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]: ...


class AdditiveAttention(nn.Module):
    """Soft attention over time (RecNet eq. 3 to 5): e_j = w . tanh(W_v v_j + W_h h + b).

    Since tanh(x) = 2 sigmoid(2x) - 1, and a softmax does not feel what is added to all, e_j is computed as
    2 w . sigmoid(2x): torch's sigmoid is six times as fast as its tanh, which would be a tenth of a search."""

    def __init__(self, memory: int, hidden: int, attention: int):
        super().__init__()
        self.from_memory = nn.Linear(memory, attention)
        self.from_hidden = nn.Linear(hidden, attention, bias=False)
        self.score = nn.Linear(attention, 1, bias=False)

    def prepare(self, memory: Memory) -> Memory:
        return replace(memory, extras={**memory.extras, "keys": 2 * self.from_memory(memory.tokens)})

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        query = 2 * self.from_hidden(hidden).unsqueeze(1)
        scores = 2 * self.score(torch.sigmoid(memory.extras["keys"] + query)).squeeze(-1)
        weights = masked_softmax(scores, memory.mask)
        context = torch.bmm(weights.unsqueeze(1), memory.tokens).squeeze(1)
        return context, weights


class MeanContext(nn.Module):
    """No attention: every step reads the mean of the rows (MP-LSTM)."""

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, None]:
        return memory.summary, None
