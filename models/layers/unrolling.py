"""Run a recurrence over captions of different lengths, longest first, so that few steps are spent on padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from models.types import Memory, State

_Output = TypeVar("_Output", bound=tuple)


def worth_dropping_rows(active: int, rows: int) -> bool:
    """Whether so few rows of a batch are still active that it is worth copying them out: below 85 %."""
    return active <= 0.85 * rows


class Unrolling:
    """Which of N captions take part in each of S steps. `valid` (N, S) is True up to the end of each caption.

    Packed tensors have P rows, step after step, in each step the longest captions first: all valid positions, and a few
    of padding that were not worth dropping."""

    def __init__(self, valid: Tensor):
        N, S = valid.shape
        self._valid = valid
        self._order = torch.argsort(valid.sum(1), descending=True, stable=True)
        self.counts: list[int] = []  # captions that take part in each step
        rows = N
        for active in valid.sum(0).tolist():
            rows = active if worth_dropping_rows(active, rows) else rows
            self.counts.append(rows)
        takes_part = torch.tensor(self.counts, device=valid.device).unsqueeze(1) > torch.arange(N, device=valid.device)
        flat = self._order * S + torch.arange(S, device=valid.device).unsqueeze(1)
        self._positions = flat[takes_part]  # (P,) of N*S

    def pack(self, x: Tensor) -> Tensor:
        """x (N, S, X) -> (P, X)."""
        return x.flatten(0, 1).index_select(0, self._positions)

    def valid(self, x: Tensor) -> Tensor:
        """x (P, X) -> (R, X): the valid positions, caption after caption."""
        rows = torch.empty(self._valid.shape, dtype=torch.int64, device=x.device)
        rows.view(-1)[self._positions] = torch.arange(len(x), device=x.device)
        return x.index_select(0, rows[self._valid])

    def unpack(self, x: Tensor) -> Tensor:
        """x (P, X) -> (N, S, X), zero where no step was taken."""
        N, S = self._valid.shape
        return x.new_zeros(N * S, x.shape[1]).index_copy(0, self._positions, x).view(N, S, -1)

    def run(
        self,
        step: Callable[[Tensor, State, Memory], _Output],
        inputs: Tensor,
        memory: Memory,
        start: Callable[[Memory], State],
    ) -> Iterator[_Output]:
        """inputs (P, X) packed, memory of N. Yields for every step what `step` returns, whose first item is the state."""
        memory = memory.select(self._order)
        state = start(memory)
        for now in inputs.split(self.counts):
            if not len(now):
                return
            if len(now) < len(memory.mask):
                memory, state = memory.first(len(now)), tuple(x[: len(now)] for x in state)
            output = step(now, state, memory)
            state = output[0]
            yield output
