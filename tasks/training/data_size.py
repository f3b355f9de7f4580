"""Batch size and patience that fit the data. The usual ones are for thousands of videos: of 30, a batch of 32 is one step per
epoch, and a patience of 10 epochs ends after 22 steps with a captioner that has learnt nothing."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from models.training.loop import FitOptions

LEAST_STEPS, SMALLEST_BATCH = 16, 4
"""batches get smaller until an epoch has so many steps, but never smaller than that"""
PATIENT_STEPS = 300
"""training goes on for so many steps without a better score, whatever the number of epochs"""

BatchSize = Annotated[int, Field(ge=1)] | Literal["auto"]
Patience = Annotated[int, Field(ge=1)] | Literal["auto"]


class DataSizedOptions(FitOptions):
    """How a model is trained, with a batch size and a patience that may depend on the size of the data."""

    usual_batch_size: ClassVar[int] = 32
    usual_patience: ClassVar[int] = 10

    def sized(self, visits: int) -> Self:
        """`batch_size` and `patience` as numbers. visits: how often an epoch shows a video, each video counted as often as it
        comes; an epoch has visits / batch_size steps."""
        given = {name: getattr(self, name) for name in ("batch_size", "patience")}
        if "auto" not in given.values():
            return self
        size = auto_batch_size(visits, self.usual_batch_size) if given["batch_size"] == "auto" else given["batch_size"]
        patience = auto_patience(visits, size, self.usual_patience) if given["patience"] == "auto" else given["patience"]
        return self.model_copy(update={"batch_size": size, "patience": patience})


def auto_batch_size(visits: int, usual: int) -> int:
    """The usual size, halved until an epoch has LEAST_STEPS steps."""
    size = usual
    while size > SMALLEST_BATCH and visits < LEAST_STEPS * size:
        size = max(size // 2, SMALLEST_BATCH)
    return size


def auto_patience(visits: int, batch_size: int, usual: int) -> int:
    """The usual number of epochs, or as many as PATIENT_STEPS steps take."""
    return max(usual, math.ceil(PATIENT_STEPS / math.ceil(max(visits, 1) / batch_size)))
