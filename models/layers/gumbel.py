"""The Gumbel top-k sampler (G2L eq. 5 and 6): k frames chosen in turn by their attention, with a gradient to it."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from models.layers.attention import masked_softmax
from models.options import Options

_LEAST = 1e-20  # that a log is taken of: its slope there is still far from the end of float32


class SamplerOptions(Options):
    """How key frames are chosen."""

    kind: Literal["gumbel", "argmax"] = "gumbel"
    """"gumbel" draws frames in training by their attention, with a gradient to the attention; "argmax" always
    takes the highest, without a gradient (G2L's "w/o Gumbel")."""
    k: int = Field(2, ge=1)
    """Key frames chosen for each word."""
    scale: float = Field(10.0, gt=0)
    """The scaling ratio (lambda)."""
    temperature: float = Field(1e-4, gt=0)
    """Temperature (tau) of a choice: the lower, the closer it is to a single frame."""
    gradient_temperature: float = Field(1.0, gt=0)
    """Temperature at which the gradient of a choice is taken; the same as `temperature` for the plain softmax."""


class TopKSampler(nn.Module):
    """Attention over R frames -> k choices, each a distribution over the frames that is one-hot or nearly so.

    The paper wants both a choice of temperature 1e-4 and a gradient. The slope of such a softmax is 0 in float32 unless
    two frames are within about 1e-2 of each other, once in a hundred draws, and then up to 1 / (4 tau). So the value of a
    choice is the paper's, while its gradient is that of the same softmax at `gradient_temperature`.

    At inference there is no noise: the k highest, of equals the leftmost first."""

    def __init__(self, options: SamplerOptions):
        super().__init__()
        self.options = options

    @property
    def draws(self) -> bool:
        """Whether choices are drawn now and carry a gradient; otherwise they are exactly one-hot."""
        return self.training and self.options.kind == "gumbel"

    def forward(self, attention: Tensor, mask: Tensor) -> Tensor:
        """attention (N, R), mask (N, R), True where a frame may be chosen -> choices (N, k, R) float32.

        No frame leads two choices. Where fewer than k frames may be chosen, the choices left are all zero."""
        with torch.autocast(attention.device.type, enabled=False):  # logs of small differences: never in half precision
            left, free = self.options.scale * attention.float(), mask
            choices = []
            for _ in range(self.options.k):
                choice = self._draw(left, free) if self.draws else _highest(left, free)
                choices.append(choice)
                # eq. 6: what was chosen is taken away. The gradient takes it as given: through the log of what little
                # is left of the others it would be a quotient of two tiny numbers.
                left = left - self.options.scale * choice.detach()
                free = free & ~_highest(choice, free).bool()
            return torch.stack(choices, dim=1)

    def _draw(self, left: Tensor, free: Tensor) -> Tensor:
        """left (N, R), what of lambda pi is not yet chosen -> one Gumbel-softmax draw (N, R), zero where not free."""
        noise = -torch.empty_like(left).exponential_().clamp(min=_LEAST).log()
        noisy = left.clamp(min=_LEAST).log() + noise
        value = masked_softmax(noisy / self.options.temperature, free)
        slope = masked_softmax(noisy / self.options.gradient_temperature, free)
        return value.detach() + (slope - slope.detach())


def _highest(scores: Tensor, free: Tensor) -> Tensor:
    """scores (N, R), free (N, R) -> one-hot (N, R) of the highest free score, the leftmost of equals; zero if none is free."""
    best = scores.detach().masked_fill(~free, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter(-1, best, 1.0) * free
