"""The running mean of a model's weights: smoother from epoch to epoch than the weights themselves, and usually better on videos
that were not trained on. Training goes on with the weights; what is validated and kept are their means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MeanWeights:
    """The mean of a model's trained weights over the steps, of which the last ones count most.

    memory: how much of the mean is kept at each step, below 1: it reaches back about 1 / (1 - memory) steps. In the first
    steps less is kept, so that the untrained weights are soon forgotten."""

    def __init__(self, model: nn.Module, memory: float):
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._memory = memory
        self.means = {name: p.detach().clone() for name, p in self._weights.items()}

    def add(self, step: int) -> None:
        """Take in the weights after a step (from 1)."""
        kept = min(self._memory, step / (step + 9))
        with torch.no_grad():
            for name, mean in self.means.items():
                mean.lerp_(self._weights[name], 1 - kept)

    def restore(self, means: Mapping[str, Tensor]) -> None:
        for name, mean in self.means.items():
            mean.copy_(means[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has its mean weights; afterwards its own again, to the bit."""
        own = {name: p.detach().clone() for name, p in self._weights.items()}
        self._put(self.means)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, p in self._weights.items():
                p.copy_(tensors[name])
