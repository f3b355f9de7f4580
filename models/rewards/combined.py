"""Several rewards as one: GLD's global reward of the sentence beside the local reward of each word (eq. 4)."""

from collections.abc import Callable

from torch import Tensor


class SumOfRewards:
    """samples (N, T), video_of (N,) -> the sum of all rewards: (N,), or (N, T) as soon as one of them rewards words.
    A sentence's reward counts for each of its words, and after its end too, where a baseline is compared with it."""

    def __init__(self, *rewards: Callable[[Tensor, Tensor], Tensor]):
        if not rewards:
            raise ValueError("a reward of no parts teaches nothing; give it at least one")
        self.rewards = rewards

    def __call__(self, samples: Tensor, video_of: Tensor) -> Tensor:
        rewards = [reward(samples, video_of) for reward in self.rewards]
        widest = max(reward.ndim for reward in rewards)
        total = rewards[0].new_zeros(rewards[0].shape if widest == 1 else samples.shape)
        for reward in rewards:
            total += reward if reward.ndim == widest else reward.unsqueeze(1)
        return total
