"""Resizing and cropping frames for a net in the decoder process, so that only what the net sees is sent on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image

from storage.media.readers import Picture

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


def resize_and_crop(picture: Picture, fit: FrameTransform) -> Picture:
    """(H, W, 3) uint8 -> (H', W', 3) uint8."""
    if fit.crop is not None and fit.short is not None:
        picture = _without_ends(picture)
    height, width = picture.shape[:2]
    size = fit.resized(width, height)
    if size != (width, height):
        picture = np.asarray(Image.fromarray(picture).resize(size, _FILTERS[fit.interpolation]))
    if fit.crop is not None:
        left, top = (round((whole - part) / 2) for whole, part in zip(size, fit.crop, strict=True))
        picture = picture[max(0, top) : top + fit.crop[1], max(0, left) : left + fit.crop[0]]
    return picture


def _without_ends(picture: Picture) -> Picture:
    """The middle of an extremely long picture: a crop does not see its ends, and resized whole it would fill memory."""
    height, width = picture.shape[:2]
    most = LONGEST * min(height, width)
    top, left = max(0, (height - most) // 2), max(0, (width - most) // 2)
    return picture[top : height - top, left : width - left]
