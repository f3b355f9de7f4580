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
    """The last reward of every caption, by its id, and the epoch it is from: R_e-1 of eq. 19. Part of the training state."""

    def __init__(self, rewards: Mapping[str, Sequence[float]] | None = None):
        self._rewards: dict[str, tuple[int, float]] = {id: (int(epoch), r) for id, (epoch, r) in (rewards or {}).items()}

    def change(self, ids: Sequence[str], rewards: Tensor, epoch: int) -> Tensor:
        """ids of N captions, their rewards (N,) in this epoch -> R_e - R_e-1 (N,), zero for a caption that the epoch before did
        not show; from now on these rewards are the last ones. So the first epoch with this loss only remembers."""
        if len(ids) != len(rewards):
            raise ValueError(f"{len(rewards)} captions came with {len(ids)} ids: their rewards cannot be remembered")
        now = rewards.detach().float().tolist()
        last = [self._before(id, epoch, reward) for id, reward in zip(ids, now, strict=True)]
        self._rewards.update((id, (epoch, reward)) for id, reward in zip(ids, now, strict=True))
        return rewards.detach().float() - torch.tensor(last, dtype=torch.float32).to(rewards.device, non_blocking=True)

    def _before(self, id: str, epoch: int, otherwise: float) -> float:
        seen, reward = self._rewards.get(id, (-1, otherwise))
        return reward if seen == epoch - 1 else otherwise

    def state(self) -> dict[str, tuple[int, float]]:
        """For a checkpoint: caption id -> epoch and reward. `RewardMemory(state)` restores it."""
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
    """(captioner, batch) -> the mean over captions of the refocus loss; remembers the rewards of the batch.

    Where candidates are compared, the mean reward of a caption's candidates stands in for R_e-1, and the loss is that of
    eq. 19, summed over them: a policy gradient with a baseline, whose noise cancels between the candidates."""

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
        rewards = (losses.first.unsqueeze(1) - losses.second).detach()  # eq. 20
        if rewards.shape[1] > 1:
            focus = losses.focus.float().masked_fill(~losses.mask, torch.finfo(torch.float32).min)
            log_alpha = torch.log_softmax(focus, dim=1).gather(1, losses.key)
            return -((rewards - rewards.mean(1, keepdim=True)) * log_alpha).sum(1).mean()
        change = self.rewards.change(batch.caption_ids, rewards[:, 0], self.epoch)
        return refocus_loss(losses.focus, losses.mask, losses.key[:, 0], change).mean()
