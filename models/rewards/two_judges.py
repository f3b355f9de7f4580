"""Two judges of how well captions fit their videos: each rewards the half of the videos that it was not trained on."""

from collections.abc import Callable

import torch
from torch import Tensor

Reward = Callable[[Tensor, Tensor], Tensor]


class TwoJudges:
    """samples (N, T), video_of (N,) -> rewards (N,): of videos of half 0 by the judge trained on half 1, and the other way round.

    half (V,): 0 or 1 of each video. Each judge sees the whole minibatch: the hardest negatives are those of all videos."""

    def __init__(self, trained_on_0: Reward, trained_on_1: Reward, half: Tensor):
        self.judges, self.half = (trained_on_0, trained_on_1), half

    def __call__(self, samples: Tensor, video_of: Tensor) -> Tensor:
        by_0, by_1 = (reward(samples, video_of) for reward in self.judges)
        return torch.where(self.half.to(video_of.device)[video_of].to(by_0.device) == 0, by_1, by_0)
