"""Scheduled sampling (GL-RG eq. 6): in training the decoder's input is the true word, or the word it would predict.

The inputs are chosen first, step by step and without gradients; then they go through the teacher-forced pass like any
other caption. So every decoder can be trained this way, and its teacher-forced pass stays the fast one."""

from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from models.options import Options
from models.types import BOS, PAD, Decoder, Memory

Own = Literal["argmax", "sample"]


class ScheduledSampling(Options):
    """The probability of the true word as input, epoch by epoch. GL-RG's points are [[0, 0.75], [10, 1.0], [29, 0.75]]."""

    points: tuple[tuple[int, float], ...] = Field(((0, 1.0),), min_length=1)
    """Pairs of an epoch (from 0) and the probability of the true word; straight lines between them, flat outside."""
    own: Own = "argmax"
    """The model's own word: its likeliest ("argmax", the paper's "predicted word") or one drawn from it ("sample")."""

    @field_validator("points")
    @classmethod
    def _in_order(cls, points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        if points[0][0] < 0 or any(after[0] <= before[0] for before, after in pairwise(points)):
            epochs = [epoch for epoch, _ in points]
            raise ValueError(f"the epochs {epochs} must rise from 0 or later: put them in order")
        if wrong := [truth for _, truth in points if not 0 <= truth <= 1]:
            raise ValueError(f"{wrong} are no probabilities: the true word is fed with one from 0 to 1")
        return points

    def at(self, epoch: int) -> float:
        """The probability of the true word in an epoch (from 0)."""
        for (before, low), (after, high) in pairwise(self.points):
            if before <= epoch < after:
                return low + (high - low) * (epoch - before) / (after - before)
        return self.points[0][1] if epoch < self.points[0][0] else self.points[-1][1]


ALWAYS_TRUE = ScheduledSampling()


@torch.no_grad()
def mix_tokens(decoder: Decoder, tokens: Tensor, memory: Memory, truth: float, own: Own, stays: Tensor | None = None) -> Tensor:
    """tokens (N, L), memory of N -> (N, L): each token after the first stays with probability `truth`, on its own, or where
    `stays` (N, L) is True; else it is the decoder's prediction given the tokens before it, themselves mixed. PAD and the last
    token, no inputs, stay."""
    if stays is None:
        stays = torch.rand(tokens.shape, device=tokens.device) < truth
    stays = stays | (tokens == PAD)
    mixed = tokens.clone()
    state = decoder.start(memory)
    for t in range(1, tokens.shape[1] - 1):
        # A draw takes a random number per logit, so it wants those of all rows; to count rows, a GPU would have to be waited for.
        some = own == "argmax" and tokens.is_cpu
        predicted = (~stays[:, t]).nonzero().squeeze(1) if some else None
        logits, state, _ = decoder.step(mixed[:, t - 1], state, memory, predicted)
        logits = logits.float()
        logits[:, PAD] = logits[:, BOS] = -torch.inf  # no search ever produces them: the decoder need not learn to follow them
        words = logits.argmax(-1) if own == "argmax" else _draw(torch.softmax(logits, -1))
        if predicted is not None:
            mixed[predicted, t] = words
        else:
            mixed[:, t] = torch.where(stays[:, t], tokens[:, t], words)
    # Autocast caches the weights that it cast here, without gradients: the teacher-forced pass must cast its own.
    torch.clear_autocast_cache()
    return mixed


def _draw(probabilities: Tensor) -> Tensor:
    """(N, V) -> one token per row (N,): torch.multinomial, to the bit, without its check, which waits for a GPU."""
    return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(-1)
