"""What every backbone is: a frozen net that says how its pictures must be fitted and which outputs it has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How a frame is made ready: its short side becomes `short` (its long side at most `longest`), or all of it `size`
    (width, height); then the middle `crop` (width, height) is cut out. With neither, frames come whole."""

    short: int | None = None
    longest: int | None = None
    size: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    crop_rounding: Literal["even", "down"] = "even"
    """where an odd margin's half ends: torchvision and timm round it to the even number, transformers rounds it down"""


class Backbone(Protocol):
    """Items in, named outputs out. Always in eval mode, without gradients."""

    name: str
    net: nn.Module
    preprocessing: Preprocessing | None
    """None: it listens; an item is then a log-mel patch (96, 64) float32, not frames"""
    clip: int | None
    """frames that one item needs, such as 16; None: one frame"""
    outputs: Mapping[str, tuple[int, ...]]
    """output -> the shape of one item's, such as {"pooled": (2048,), "grid": (49, 2048), "classes": (1000,)}"""

    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, M, H, W, 3) uint8 (or (N, 96, 64) float32 patches) on the net's device -> output -> (N, *shape)
        float32. An item's result depends on that item alone, for equal N."""
        ...
