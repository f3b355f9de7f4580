"""Which frames of a video are taken: four strategies, each a small option class, and the plan they make.

A plan is an (P, M) array of frame numbers: P positions in time, M frames at each of them (M = 1 for single frames)."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from storage.errors import BadMedia
from storage.options import Options
from storage.records import TimeSpan

Indices = NDArray[np.int64]
Seconds = NDArray[np.float64]


class Uniform(Options):
    """K frames, each in the middle of one of K equal parts. A video of fewer frames gives every frame once."""

    kind: Literal["uniform"] = "uniform"
    frames: int = Field(28, ge=1)
    """How many frames to take."""


class EveryNth(Options):
    """Every n-th frame, from the first or a little later."""

    kind: Literal["every"] = "every"
    stride: int = Field(5, ge=1)
    """Distance in frames."""
    offset: int = Field(0, ge=0)
    """Frames before the first one taken; a shorter video gives its last."""
    limit: int | None = Field(None, ge=1)
    """The most frames to keep; a longer video is thinned evenly, so that its end is still seen."""


class Clips(Options):
    """Short clips of consecutive frames around positions; the frames stop at the borders of the video."""

    kind: Literal["clips"] = "clips"
    positions: int | None = Field(None, ge=1)
    """How many evenly spread clips to take; give this or `stride`."""
    stride: int | None = Field(None, ge=1)
    """Distance in frames between the clips; give this or `positions`."""
    length: int = Field(8, ge=1)
    """Frames in a clip."""
    step: int = Field(1, ge=0)
    """Distance in frames inside a clip; 0 shows one frame `length` times, to a net of clips that is to see no motion."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Clips:
        if (self.positions is None) == (self.stride is None):
            raise ValueError("give exactly one of 'positions' and 'stride'")
        return self


class Keyframes(Options):
    """Evenly spread keyframes t, each with its near (t - near, t + near) and far (t - n, t + n) neighbours."""

    kind: Literal["keyframes"] = "keyframes"
    count: int = Field(ge=1)
    """How many keyframes to take."""
    near: int = Field(10, ge=1, le=25)
    """Distance in frames of the near neighbours."""
    far: int = Field(26, gt=25)
    """Least distance in frames of the far neighbours; every keyframe has its own n from `far` to twice that."""
    seed: int = 0
    """Chooses the n of every keyframe, and where keyframes are if they are drawn."""
    drawn: bool = False
    """Whether keyframes are at random places instead of evenly spread; training draws others at every step."""


Sampling = Annotated[Uniform | EveryNth | Clips | Keyframes, Field(discriminator="kind")]


def frames_at(pts: Seconds, times: Seconds) -> Indices:
    """pts (N,) sorted, times (K,) -> (K,): the frame on display at each time, the nearest one outside the video."""
    shown = np.searchsorted(pts, np.asarray(times, dtype=np.float64), side="right") - 1
    return np.clip(shown, 0, len(pts) - 1).astype(np.int64)


def choose_frames(sampling: Sampling, pts: Seconds, segment: TimeSpan | None = None) -> Indices:
    """pts (N,) seconds of every frame, sorted -> (P, M) frame numbers.

    A segment limits the choice to the frames displayed within [start, end), of which there is always one: the one on
    display at its start."""
    first, stop = _frames_of(pts, segment)
    count = stop - first
    match sampling:
        case Uniform():
            chosen = _spread(count, sampling.frames)[:, None]
        case EveryNth():
            chosen = np.arange(min(sampling.offset, count - 1), count, sampling.stride, dtype=np.int64)
            if sampling.limit is not None:
                chosen = chosen[_spread(len(chosen), sampling.limit)]
            chosen = chosen[:, None]
        case Clips():
            centres = np.arange(0, count, sampling.stride or 1, dtype=np.int64)
            if sampling.positions is not None:
                centres = _spread(count, sampling.positions)
            chosen = centres[:, None] + (np.arange(sampling.length) - sampling.length // 2) * sampling.step
        case Keyframes():
            centres = _drawn(count, sampling) if sampling.drawn else _spread(count, sampling.count)
            far = np.array([_far_distance(sampling, n) for n in range(len(centres))])
            near = np.full_like(far, sampling.near)
            chosen = centres[:, None] + np.stack([-far, -near, 0 * far, near, far], axis=1)
    return (first + np.clip(chosen, 0, count - 1)).astype(np.int64)


def _spread(count: int, parts: int) -> Indices:
    """The middle frames of `parts` equal parts of `count` frames; every frame once if there are not so many."""
    parts = min(count, parts)
    return ((2 * np.arange(parts, dtype=np.int64) + 1) * count) // (2 * parts)


def _drawn(count: int, sampling: Keyframes) -> Indices:
    """As many frames of `count` as there are keyframes, at random, in the order of time."""
    return np.sort(np.array([_hashed(f"{sampling.seed}:at:{n}") % count for n in range(sampling.count)], np.int64))


def _far_distance(sampling: Keyframes, n: int) -> int:
    return sampling.far + _hashed(f"{sampling.seed}:{n}") % sampling.far


def _hashed(text: str) -> int:
    # A hash, not a random generator: the same frames with every numpy, for ever.
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _frames_of(pts: Seconds, segment: TimeSpan | None) -> tuple[int, int]:
    """The first frame of the segment and the one after its last."""
    if segment is None:
        return 0, len(pts)
    start, end = segment
    # The last frame stays on display for as long as the others do; a single picture without end.
    close = float(pts[-1] + np.median(np.diff(pts))) if len(pts) > 1 else float("inf")
    if not start < close:
        reason = f"the segment {start:g} to {end:g} s starts after the end of the video at {close:.2f} s"
        raise BadMedia("segment_outside", f"{reason}; correct its times in the data set")
    first = int(frames_at(pts, np.array([start]))[0])
    return first, max(first + 1, int(np.searchsorted(pts, end, side="left")))
