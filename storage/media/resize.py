"""Resizing and cropping frames for a net in the decoder process, so that only what the net sees is sent on."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from storage.media.readers import Frame, Picture

LONGEST = 16  # times as long as wide
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True, slots=True)
class FrameTransform:
    """The short side becomes `short` (the long side at most `longest`), or the whole frame `size` (width, height); then
    the middle `crop` (width, height) is cut out. With neither, frames stay whole."""

    short: int | None = None
    longest: int | None = None
    size: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    crop_rounding: Literal["even", "down"] = "even"
    """where the half of an odd margin ends: at the even number, or below"""

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) that a frame has before it is cropped."""
        if self.size is not None:
            return self.size
        if self.short is None:
            return width, height
        least, most = min(width, height), max(width, height)
        short, long = self.short, self.short * most // least
        if self.longest is not None and long > self.longest:
            short, long = max(1, self.longest * least // most), self.longest
        return (short, long) if width <= height else (long, short)


UNCHANGED = FrameTransform()


def resize_and_crop(picture: Frame, fit: FrameTransform) -> Picture:
    """(H, W, 3) uint8 -> (H', W', 3) uint8. Always one call of Pillow's resize: which axis it takes first, rounding in between,
    is its own secret, so one axis after the other could give other pixels."""
    if fit.crop is not None and fit.short is not None:
        picture = _without_ends(picture)
    width, height = frame_size(picture)
    size = fit.resized(width, height)
    if size != (width, height):
        picture = to_image(picture).resize(size, _FILTERS[fit.interpolation])
    return np.asarray(
        picture if fit.crop is None else _middle(picture, *fit.crop, math.floor if fit.crop_rounding == "down" else round)
    )


def frame_size(picture: Frame) -> tuple[int, int]:
    """(width, height)"""
    return picture.size if isinstance(picture, Image.Image) else (picture.shape[1], picture.shape[0])


def to_image(picture: Frame) -> Image.Image:
    return picture if isinstance(picture, Image.Image) else Image.fromarray(picture)


def _middle(picture: Frame, width: int, height: int, rounded: Callable[[float], int]) -> Frame:
    """The middle of a frame, or all of a side that is no longer than asked for."""
    whole = frame_size(picture)
    left, top = (max(0, rounded((side - part) / 2)) for side, part in zip(whole, (width, height), strict=True))
    right, bottom = min(whole[0], left + width), min(whole[1], top + height)
    if isinstance(picture, Image.Image):
        return picture.crop((left, top, right, bottom))
    return picture[top:bottom, left:right]


def _without_ends(picture: Frame) -> Frame:
    """The middle of an extremely long picture: a crop does not see its ends, and resized whole it would fill memory."""
    width, height = frame_size(picture)
    most = LONGEST * min(height, width)
    top, left = max(0, (height - most) // 2), max(0, (width - most) // 2)
    return np.asarray(picture)[top : height - top, left : width - left] if top or left else picture
