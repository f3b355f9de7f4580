"""RecNet's reconstruction loss: the distance of the video's features to those reconstructed from the decoder's states."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from models.captioner import Captioner
from models.captioners.recnet.reconstructors import Reconstruction, ReconstructionTarget
from models.decoding.scheduled_sampling import ALWAYS_TRUE, ScheduledSampling
from models.layers.temporal_encoder import masked_mean
from models.losses.policy_gradient import PolicyGradient
from models.types import Batch

Which = Literal["global", "local", "both"]


class ReconstructionLoss:
    """(captioner, batch) -> the sum over captions of the distance between their videos and the reconstructions, divided by the
    captions' tokens.

    `which` "global" (eq. 8), "local" (eq. 12) or "both" (their sum, eq. 13). In an objective its weight is lambda: eq. 22 adds
    lambda times a caption's distance to its -log P, and both losses are divided by the same number of tokens. Beside a
    cross-entropy with the same schedule it shares that one's teacher-forced pass."""

    def __init__(self, which: Which, sampling: ScheduledSampling = ALWAYS_TRUE, epoch: int = 0) -> None:
        self.which, self.sampling, self.epoch = which, sampling, epoch
        self._count = 0

    def count(self, batch: Batch) -> int:
        """The valid tokens of its last batch's captions, EOS included, as cross-entropy counts them."""
        return self._count

    def at(self, epoch: int) -> ReconstructionLoss:
        """The same, with the schedule as of `epoch`."""
        return ReconstructionLoss(self.which, self.sampling, epoch)

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        reconstruction = captioner.reconstruct(batch, self.sampling.at(self.epoch), self.sampling.own)
        if self.which != "global" and not reconstruction.per_frame:
            raise ValueError(
                f"the {self.which} reconstruction loss compares frame by frame, but the captioner's reconstructor is "
                "global: set it to 'local', 'both' or 'transpose', or the loss to 'global'"
            )
        assert captioner.reconstructor is not None and batch.video_index is not None  # reconstruct has checked both
        target = captioner.reconstructor.target(batch, reconstruction.length)
        wanted = {"global": (global_distance,), "local": (local_distance,), "both": (global_distance, local_distance)}
        distances = [distance(reconstruction, target, batch.video_index) for distance in wanted[self.which]]
        present = target.valid.flatten(1).any(1)[batch.video_index]
        assert batch.valid is not None
        self._count = int(batch.valid.host.sum())
        return (torch.stack(distances).sum(0) * present).sum() / max(self._count, 1)


class SampledReconstructionLoss:
    """The reconstruction loss of the captions that `policy`, an earlier term of the same objective, drew for this batch. It
    shares the pass that the policy's gradient comes from, and is divided by as many tokens."""

    def __init__(self, which: Which, policy: PolicyGradient):
        self._loss, self._policy = ReconstructionLoss(which), policy

    def count(self, batch: Batch) -> int:
        """The tokens that the samples chose."""
        return self._policy.count(batch)

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        assert self._policy.sampled is not None  # terms are computed in their order
        with self._policy.gradient_mode(captioner):
            return self._loss(captioner, self._policy.sampled)


def global_distance(reconstruction: Reconstruction, target: ReconstructionTarget, video_index: Tensor) -> Tensor:
    """N captions -> the Euclidean distance (N,) of the mean reconstructed row and the video's mean valid row (eq. 8)."""
    valid = target.valid.to(target.rows.dtype)
    mean = (target.rows * valid).sum(1) / valid.sum(1).clamp(min=1)
    present = target.valid.any(1)
    difference = masked_mean(reconstruction.rows, reconstruction.mask) - mean[video_index]
    return torch.linalg.vector_norm(difference * present[video_index], dim=-1)


def local_distance(reconstruction: Reconstruction, target: ReconstructionTarget, video_index: Tensor) -> Tensor:
    """N captions -> the mean (N,) over valid frames of the Euclidean distance to the reconstructed frame (eq. 12)."""
    difference = (reconstruction.rows - target.rows[video_index]) * target.valid[video_index]
    distances = torch.linalg.vector_norm(difference, dim=-1)
    return masked_mean(distances.unsqueeze(-1), target.valid.any(-1)[video_index]).squeeze(-1)
