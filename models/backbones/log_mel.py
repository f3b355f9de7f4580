"""Sound without a net: how loud each mel band is in a second of sound, and how much that changes. Needs no weights."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.vggish import PATCH
from models.backbones.weights import WeightsUnavailable

SILENCE = math.log(0.01)  # of a patch: the logarithm of its offset


class LogMelStatistics:
    """The mean and the standard deviation over 0.96 s of each of VGGish's 64 log-mel bands, counted from silence."""

    preprocessing: Preprocessing | None = None
    clip: int | None = None
    outputs: Mapping[str, tuple[int, ...]] = {"embedding": (2 * PATCH[1],)}

    def __init__(self, name: str):
        self.name = name
        self.net: nn.Module = nn.Identity()

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, 96, 64) float32 log-mel patches -> embedding (N, 128), zeros for silence."""
        spread, mean = torch.std_mean(items - SILENCE, dim=1, correction=0)
        return {"embedding": torch.cat([mean, spread], dim=1)}


def load(name: str, weights: Path | None, seed: int) -> Backbone:
    """It has no weights: a file is refused."""
    if weights is not None:
        raise WeightsUnavailable(f"'{name}' has no weights, so the file {weights} cannot be theirs; leave it out")
    return LogMelStatistics(name)
