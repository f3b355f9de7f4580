"""Eval mode for a while, inside training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from torch import nn

_M = TypeVar("_M", bound=nn.Module)


@contextmanager
def eval_mode(model: _M) -> Iterator[_M]:
    """Inside, every module of the model is in eval mode; afterwards each is as before. Random numbers stay drawn."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, training in modes:
            module.training = training
