"""Interrupt a training after a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tasks.training import trainer


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """A training inside saves after every step, and a KeyboardInterrupt ends it when it asks for the one after `step`."""
    real = trainer.train

    def stops(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for progress in real(*args, **kwargs):
            yield progress
            if progress.step == step:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer, "_SAVE_EVERY", 0.0)
        patch.setattr(trainer, "train", stops)
        yield
