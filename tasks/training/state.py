"""Training state on disk: torch's snapshots as checkpoints, resuming from them, and failures in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from models.training.loop import NonFiniteLoss, Progress, TrainState, fit
from models.training.parallel import Ranks
from storage.checkpoints import Checkpoint, LastCheckpoints
from storage.errors import LongtakeError, Mismatch
from storage.files.atomic import write_json

LAST = "last.safetensors"
BAD_BATCH = "not-finite.json"


def train(folder: Path, *args: Any, **kwargs: Any) -> Iterator[Progress]:
    """`fit`, but a loss that is not finite becomes an error message that names the batch; the batch is written to the stage's
    folder, beside the last checkpoint."""
    try:
        yield from fit(*args, **kwargs)
    except NonFiniteLoss as error:
        # JSON has no NaN: as text, every reader can read it
        losses = {name: loss if math.isfinite(loss) else str(loss) for name, loss in error.losses.items()}
        batch = {"what": error.what, "step": error.step, "losses": losses, "videos": list(error.video_ids)}
        if Ranks().is_main_process:
            write_json(folder / BAD_BATCH, batch)
        raise LongtakeError(f"{error}; the batch is listed in {folder / BAD_BATCH}") from error


def to_checkpoint(state: TrainState, **values: Any) -> Checkpoint:
    tensors = {name: tensor.numpy() for name, tensor in state.tensors.items()}
    return Checkpoint(tensors, {"training": state.values, **values})


def model_only(checkpoint: Checkpoint, **values: Any) -> Checkpoint:
    """The weights without the optimiser: for inference, not for resuming."""
    return Checkpoint({n: a for n, a in checkpoint.tensors.items() if n.startswith("model.")}, values)


@dataclass(frozen=True)
class Resumed:
    """An interrupted training as its checkpoint has it; both fields are empty where there is none."""

    state: TrainState | None = None
    values: dict[str, Any] = field(default_factory=dict)

    def expect(self, metadata: dict[str, Any], folder: Path) -> None:
        """Refuse the checkpoint of another training."""
        found = self.values.get("about", {})
        for name, wanted in metadata.items():
            if found.get(name) != wanted:
                raise Mismatch(
                    f"the checkpoint in {folder} was trained with {name} {_short(found.get(name))}, not {_short(wanted)}; "
                    "it belongs to another training: remove it, and this one starts from its beginning"
                )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def resume(folder: Path) -> Resumed:
    """The newest readable checkpoint of an interrupted training in a stage's folder."""
    checkpoint = LastCheckpoints(folder / LAST).load()
    if checkpoint is None:
        return Resumed()
    tensors = {name: torch.from_numpy(array.copy()) for name, array in checkpoint.tensors.items()}
    return Resumed(TrainState(tensors, checkpoint.values["training"]), checkpoint.values)
