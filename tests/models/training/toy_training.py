"""Toy batches and options for the training loop."""

from __future__ import annotations

from collections.abc import Iterator

from models.losses.cross_entropy import CrossEntropy
from models.training.loop import FitOptions
from models.training.objective import Objective
from models.types import Batch
from tests.models.toy_captions import toy_batch

OBJECTIVE = Objective(xe=(1.0, CrossEntropy()))
STEPS = 4


class ToyBatches:
    """Four batches per epoch, other ones in every epoch."""

    steps_per_epoch = STEPS

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        return (toy_batch(videos=3, seed=100 * epoch + step) for step in range(skip, STEPS))


def options(**changes: object) -> FitOptions:
    values = {"epochs": 3, "learning_rate": 1e-2, "weight_decay": 1e-3, "gradient_clip": 1.0, "warmup_steps": 2}
    return FitOptions.model_validate({**values, "schedule": "cosine", **changes})
