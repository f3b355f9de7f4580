"""Captions of different lengths through a recurrence: longest first, so that no step is spent behind the end of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from models.types import Memory, State

_CROWDED = (
    0.85  # part of the rows that must still be of use; else the others are left behind, which costs a little itself
)

_Advanced = TypeVar("_Advanced", bound=tuple)


class Unrolling:
    """Which of N captions take part in each of S steps. `real` (N, S) is True up to the end of each caption.

    What is packed has P rows, step after step, in each step the longest captions first: all real places, and a few behind
    the end of a caption that were not worth leaving out."""

    def __init__(self, real: Tensor):
        N, S = real.shape
        self._real = real
        self._order = torch.argsort(real.sum(1), descending=True, stable=True)
        self.counts: list[int] = []  # captions that take part in each step
        rows = N
        for left in real.sum(0).tolist():
            rows = left if left <= _CROWDED * rows else rows
            self.counts.append(rows)
        taking_part = torch.tensor(self.counts, device=real.device).unsqueeze(1) > torch.arange(N, device=real.device)
        flat = self._order * S + torch.arange(S, device=real.device).unsqueeze(1)
        self._places = flat[taking_part]  # (P,) of N*S

    def packed(self, x: Tensor) -> Tensor:
        """x (N, S, X) -> (P, X)."""
        return x.flatten(0, 1).index_select(0, self._places)

    def real(self, x: Tensor) -> Tensor:
        """x (P, X) -> (R, X): those of the real places, caption after caption."""
        rows = torch.empty(self._real.shape, dtype=torch.int64, device=x.device)
        rows.view(-1)[self._places] = torch.arange(len(x), device=x.device)
        return x.index_select(0, rows[self._real])

    def spread(self, x: Tensor) -> Tensor:
        """x (P, X) -> (N, S, X), zero where no step was taken."""
        N, S = self._real.shape
        return x.new_zeros(N * S, x.shape[1]).index_copy(0, self._places, x).view(N, S, -1)

    def run(
        self,
        advance: Callable[[Tensor, State, Memory], _Advanced],
        entering: Tensor,
        memory: Memory,
        start: Callable[[Memory], State],
    ) -> Iterator[_Advanced]:
        """entering (P, X) is what enters each step, memory of N. Yields what `advance` returns, first of all the state, for
        the captions of each step."""
        memory = memory.select(self._order)
        state = start(memory)
        for now in entering.split(self.counts):
            if not len(now):
                return
            if len(now) < len(memory.mask):
                memory, state = _first(memory, len(now)), tuple(part[: len(now)] for part in state)
            advanced = advance(now, state, memory)
            state = advanced[0]
            yield advanced


class GradientAtOnce(torch.autograd.Function):
    """Of a weight that every step multiplies its past with: entering (P, G), weight (G, X) -> entering as it is.

    Steps multiply by the weight without its gradient and put each past (n, X) into the list, and what they make is added to
    `entering`, whose gradient is therefore that of the products. When it has come back from all steps, the weight's is one
    multiplication instead of one a step, each with a sum over the whole weight."""

    @staticmethod
    def forward(ctx: Any, entering: Tensor, weight: Tensor, pasts: list[Tensor]) -> Tensor:
        ctx.pasts, ctx.dtype = pasts, weight.dtype
        return entering.view_as(entering)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        past = torch.cat(ctx.pasts).to(gradient.dtype)
        return gradient, (gradient.t() @ past).to(ctx.dtype), None


def _first(memory: Memory, n: int) -> Memory:
    extras = {name: part[:n] for name, part in memory.extras.items()}
    return Memory(memory.tokens[:n], memory.mask[:n], memory.summary[:n], extras)
