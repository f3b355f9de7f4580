"""Scheduled sampling (GL-RG eq. 6): in training the decoder is fed the true word before, or the word it would have said.

The words are chosen first, step by step and without gradients; then the caption that they make is forced like any other.
So every decoder can be trained this way, and its forced pass stays the fast one."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from models.options import Options
from models.types import BOS, PAD, Decoder, Memory

Own = Literal["argmax", "sample"]


class ScheduledSampling(Options):
    """How likely the true word is fed, epoch by epoch. GL-RG raises it to 1 and then lowers it again:
    points [[0, 0.75], [10, 1.0], [29, 0.75]]."""

    points: tuple[tuple[int, float], ...] = Field(((0, 1.0),), min_length=1)
    """Pairs of an epoch (from 0) and the probability of the true word; straight lines between them, flat outside."""
    own: Own = "argmax"
    """The model's own word: its likeliest ("argmax", the paper's "predicted word") or one drawn from it ("sample")."""

    @field_validator("points")
    @classmethod
    def _in_order(cls, points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        if points[0][0] < 0 or any(after[0] <= before[0] for before, after in pairwise(points)):
            raise ValueError(
                f"the epochs {[epoch for epoch, _ in points]} must rise from 0 or later: put them in order"
            )
        if wrong := [truth for _, truth in points if not 0 <= truth <= 1]:
            raise ValueError(f"{wrong} are no probabilities: the true word is fed with one from 0 to 1")
        return points

    def at(self, epoch: int) -> float:
        """The probability of feeding the true word in an epoch (from 0)."""
        for (before, low), (after, high) in pairwise(self.points):
            if before <= epoch < after:
                return low + (high - low) * (epoch - before) / (after - before)
        return self.points[0][1] if epoch < self.points[0][0] else self.points[-1][1]


ALWAYS_TRUE = ScheduledSampling()


@torch.no_grad()
def mixed_words(decoder: Decoder, tokens: Tensor, memory: Memory, truth: float, own: Own) -> Tensor:
    """tokens (N, L), memory of N -> (N, L): each word after the first stays with probability `truth`, on its own; else it
    becomes what the decoder says after the words before it, themselves mixed. What is never fed (PAD, the last) stays."""
    stays = (torch.rand(tokens.shape, device=tokens.device) < truth) | (tokens == PAD)
    mixed = tokens.clone()
    state = decoder.start(memory)
    for t in range(1, tokens.shape[1] - 1):
        logits, state, _ = decoder.step(mixed[:, t - 1], state, memory)
        logits = logits.float()
        logits[:, [PAD, BOS]] = -torch.inf  # no search ever says them, so the decoder need not learn to follow them
        if own == "argmax":
            said = logits.argmax(-1)
        else:
            said = torch.multinomial(torch.softmax(logits, -1), 1).squeeze(1)
        mixed[:, t] = torch.where(stays[:, t], tokens[:, t], said)
    # Autocast keeps the weights that it cast here, and these know no gradient: the forced pass must cast its own.
    torch.clear_autocast_cache()
    return mixed
