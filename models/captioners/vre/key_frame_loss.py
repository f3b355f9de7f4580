"""VRE's losses: one for each step, and the refocus loss that trains the choice of the key frame (eq. 17 to 22).

`Objective(step1=(1.0, StepLoss(1)), step2=(1.0, StepLoss(2)), refocus=(0.03, RefocusLoss(rewards)))` is eq. 22: its terms
share one pass over a batch. Only `rewards` is a state that a resume needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from models.captioners.vre.captioner import VreCaptioner
from models.decoding.scheduled_sampling import ALWAYS_TRUE, ScheduledSampling
from models.types import Batch


def refocus_loss(focus: Tensor, mask: Tensor, key: Tensor, change: Tensor) -> Tensor:
    """focus (N, K), scores of frames; mask (N, K), valid ones; key (N,), the frame chosen; change (N,) = R_e - R_e-1
    -> (N,): -|change| log(alpha_key) where the reward rose, -|change| log(1 - alpha_key) where it fell.

    Eq. 21 as printed would raise alpha_key when the reward falls, since both its factors are negative then; this is what
    the paper's text asks for. 1 - alpha is taken from the scores of the other frames: it keeps its gradient where alpha
    is 1 in float32. A video of a single frame has nothing to choose and no loss."""
    focus = focus.float().masked_fill(~mask, torch.finfo(torch.float32).min)
    chosen = torch.zeros_like(mask).scatter(1, key.unsqueeze(1), True)
    total = torch.logsumexp(focus, dim=1)
    log_alpha = focus.gather(1, key.unsqueeze(1)).squeeze(1) - total
    log_others = torch.logsumexp(focus.masked_fill(chosen, torch.finfo(torch.float32).min), dim=1) - total
    wanted = torch.where(change > 0, log_alpha, log_others)
    choice = mask.sum(1) > 1
    return -change.abs() * choice * torch.where(choice, wanted, 0.0)


class RewardMemory:
    """The last reward of every caption, by its id: R_e-1 of eq. 19. Part of the training state.

    Where an epoch shows only some of a video's captions, R_e-1 is that of the last epoch that showed the caption."""

    def __init__(self, rewards: Mapping[str, float] | None = None):
        self._rewards: dict[str, float] = dict(rewards or {})

    def change(self, ids: Sequence[str], rewards: Tensor) -> Tensor:
        """ids of N captions, their rewards (N,) now -> R_e - R_e-1 (N,), zero for a caption that was never seen; from now
        on these rewards are the last ones. So the first epoch with this loss has no gradient and only remembers."""
        if len(ids) != len(rewards):
            raise ValueError(f"{len(rewards)} captions came with {len(ids)} ids: their rewards cannot be remembered")
        now = rewards.detach().float().tolist()
        last = [self._rewards.get(id, reward) for id, reward in zip(ids, now, strict=True)]
        self._rewards.update(zip(ids, now, strict=True))
        return rewards.detach().float() - torch.tensor(last, dtype=torch.float32).to(rewards.device, non_blocking=True)

    def state(self) -> dict[str, float]:
        """For a checkpoint: caption id -> reward. `RewardMemory(state)` restores it."""
        return dict(self._rewards)

    def __len__(self) -> int:
        return len(self._rewards)


class StepLoss:
    """(captioner, batch) -> the mean over captions of a step's -log p(caption) (eq. 17 and 18). Not the mean over tokens: the
    weight of 0.03 for the refocus loss belongs to this scale."""

    def __init__(self, step: Literal[1, 2], sampling: ScheduledSampling = ALWAYS_TRUE, epoch: int = 0):
        self.step, self.sampling, self.epoch = step, sampling, epoch

    def at(self, epoch: int) -> StepLoss:
        """The same, with the schedule as of `epoch`."""
        return StepLoss(self.step, self.sampling, epoch)

    def count(self, batch: Batch) -> int:
        return len(batch.caption_ids)

    def __call__(self, captioner: VreCaptioner, batch: Batch) -> Tensor:
        losses = captioner.step_losses(batch, self.sampling.at(self.epoch), self.sampling.own)
        return (losses.first if self.step == 1 else losses.second).mean()


class RefocusLoss:
    """(captioner, batch) -> the mean over captions of the refocus loss; remembers the rewards of the batch."""

    def __init__(self, rewards: RewardMemory, sampling: ScheduledSampling = ALWAYS_TRUE, epoch: int = 0):
        self.rewards, self.sampling, self.epoch = rewards, sampling, epoch

    def at(self, epoch: int) -> RefocusLoss:
        """The same, with the schedule as of `epoch`, and the same memory."""
        return RefocusLoss(self.rewards, self.sampling, epoch)

    def count(self, batch: Batch) -> int:
        return len(batch.caption_ids)

    def __call__(self, captioner: VreCaptioner, batch: Batch) -> Tensor:
        losses = captioner.step_losses(batch, self.sampling.at(self.epoch), self.sampling.own)
        if losses.focus is None:
            raise ValueError("this captioner's key frames are given: leave the refocus loss out of the objective")
        change = self.rewards.change(batch.caption_ids, losses.first - losses.second)  # eq. 20
        return refocus_loss(losses.focus, losses.mask, losses.key, change).mean()
