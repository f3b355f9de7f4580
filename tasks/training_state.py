"""Between the training loop's torch and the checkpoints' numpy: saving, resuming, and failures in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from models.training.loop import NonFiniteLoss, Progress, TrainState, fit
from storage.checkpoints import Checkpoint
from storage.errors import LongtakeError


def train(*args: Any, **kwargs: Any) -> Iterator[Progress]:
    """`fit`, whose failures reach the user as a message that names the batch instead of a traceback."""
    try:
        yield from fit(*args, **kwargs)
    except NonFiniteLoss as error:
        raise LongtakeError(str(error)) from error


def to_checkpoint(state: TrainState, **values: Any) -> Checkpoint:
    tensors = {name: tensor.numpy() for name, tensor in state.tensors.items()}
    return Checkpoint(tensors, {"training": state.values, **values})


def to_state(checkpoint: Checkpoint) -> TrainState:
    tensors = {name: torch.from_numpy(array.copy()) for name, array in checkpoint.tensors.items()}
    return TrainState(tensors, checkpoint.values["training"])


def model_only(checkpoint: Checkpoint, **values: Any) -> Checkpoint:
    """The weights without the optimiser, for use rather than for going on."""
    return Checkpoint({n: a for n, a in checkpoint.tensors.items() if n.startswith("model.")}, values)


@dataclass(frozen=True)
class Resumed:
    """An interrupted training as its checkpoint knows it; both are empty where there is none."""

    state: TrainState | None = None
    values: dict[str, Any] = field(default_factory=dict)


def resume(path: Path) -> Resumed:
    """Where an interrupted training stands."""
    if not path.exists():
        return Resumed()
    checkpoint = Checkpoint.load(path)
    return Resumed(to_state(checkpoint), checkpoint.values)
