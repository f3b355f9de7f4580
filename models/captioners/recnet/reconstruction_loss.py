"""Reconstruction (RecNet): the video's features should be found again in what the decoder thought."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from models.captioner import Captioner
from models.captioners.recnet.reconstructors import Reconstruction, Target
from models.decoding.scheduled_sampling import ALWAYS_TRUE, ScheduledSampling
from models.layers.temporal_encoder import masked_mean
from models.types import Batch

Which = Literal["global", "local", "both"]


class ReconstructionLoss:
    """(captioner, batch) -> the mean over captions of the distance between their videos and what was rebuilt of them.

    `which` "global" (eq. 8), "local" (eq. 12) or "both" (their sum, eq. 13). In an objective its weight is lambda; beside
    a cross-entropy with the same schedule it looks at the same pass."""

    def __init__(self, which: Which, sampling: ScheduledSampling = ALWAYS_TRUE, epoch: int = 0) -> None:
        self.which = which
        self.sampling = sampling
        self.epoch = epoch
        self._rebuilt = 0

    def count(self, batch: Batch) -> int:
        """The captions of its last batch whose videos have something to be rebuilt."""
        return self._rebuilt

    def at(self, epoch: int) -> ReconstructionLoss:
        """The same, with the schedule where it is in `epoch`."""
        return ReconstructionLoss(self.which, self.sampling, epoch)

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        rebuilt = captioner.rebuilt(batch, self.sampling.at(self.epoch), self.sampling.own)
        if self.which != "global" and not rebuilt.per_frame:
            raise ValueError(
                f"the {self.which} reconstruction loss compares frame by frame, but the captioner's reconstructor is "
                "global: set it to 'local', 'both' or 'transpose', or the loss to 'global'"
            )
        assert captioner.reconstructor is not None and batch.owner is not None  # rebuilt has seen to both
        target = captioner.reconstructor.target(batch, rebuilt.length)
        parts = []
        if self.which != "local":
            parts.append(global_distance(rebuilt, target, batch.owner))
        if self.which != "global":
            parts.append(local_distance(rebuilt, target, batch.owner))
        distances = torch.stack(parts).sum(0)
        there = target.real.flatten(1).any(1)[batch.owner]
        self._rebuilt = int(there.sum())
        return (distances * there).sum() / there.sum().clamp(min=1)


def global_distance(rebuilt: Reconstruction, target: Target, owner: Tensor) -> Tensor:
    """Of N captions, the Euclidean distance (N,) of the mean rebuilt row and the mean real row of the video (eq. 8)."""
    real = target.real.to(target.rows.dtype)
    mean = (target.rows * real).sum(1) / real.sum(1).clamp(min=1)
    there = target.real.any(1)
    difference = (masked_mean(rebuilt.rows, rebuilt.mask) - mean[owner]) * there[owner]
    return torch.linalg.vector_norm(difference, dim=-1)


def local_distance(rebuilt: Reconstruction, target: Target, owner: Tensor) -> Tensor:
    """Of N captions, the mean (N,) over real frames of the Euclidean distance to the rebuilt frame (eq. 12)."""
    distances = torch.linalg.vector_norm((rebuilt.rows - target.rows[owner]) * target.real[owner], dim=-1)
    return masked_mean(distances.unsqueeze(-1), target.real.any(-1)[owner]).squeeze(-1)
