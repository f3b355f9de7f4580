"""Exponential moving average (EMA) of a model's weights: usually better on new videos. Training goes on with the weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """The exponential moving average of a model's trained weights over the steps.

    decay: how much of the average is kept at each step, below 1: it reaches back about 1 / (1 - decay) steps. In the first
    steps less is kept, so that the untrained weights are soon forgotten."""

    def __init__(self, model: nn.Module, decay: float):
        self._weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._decay = decay
        self.averages = {name: p.detach().clone() for name, p in self._weights.items()}

    def update(self, step: int) -> None:
        """Add the weights after a step (from 1)."""
        decay = min(self._decay, step / (step + 9))
        with torch.no_grad():
            for name, average in self.averages.items():
                average.lerp_(self._weights[name], 1 - decay)

    def restore(self, averages: Mapping[str, Tensor]) -> None:
        for name, average in self.averages.items():
            average.copy_(averages[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, to the bit."""
        own = {name: p.detach().clone() for name, p in self._weights.items()}
        self._load(self.averages)
        try:
            yield
        finally:
            self._load(own)

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, p in self._weights.items():
                p.copy_(tensors[name])
