"""Which frames of a video are taken: strategies by number and by time, each a small option class, and the plan they make.

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


class Times(Options):
    """Frames at fixed times, from the start of the video on: `fps` per second, or one `every` so many seconds."""

    kind: Literal["times"] = "times"
    fps: float | None = Field(None, gt=0, le=240)
    """Frames per second of the video's time; give this or `every`."""
    every: float | None = Field(None, ge=1 / 240)
    """Seconds from one frame to the next; give this or `fps`."""
    limit: int | None = Field(1000, ge=1)
    """The most frames to keep; a longer video is thinned evenly, so that its end is still seen. null: no limit"""

    @model_validator(mode="after")
    def _one_of_two(self) -> Times:
        if (self.fps is None) == (self.every is None):
            raise ValueError("give exactly one of 'fps' and 'every'")
        return self

    @property
    def distance(self) -> float:
        """Seconds from one frame to the next."""
        return self.every if self.every is not None else 1 / (self.fps or 1)


class Windows(Options):
    """Clips by time: windows of so many seconds, each seen by `length` frames that are spread evenly over it."""

    kind: Literal["windows"] = "windows"
    seconds: float = Field(gt=0)
    """Seconds of a window."""
    overlap: float = Field(0.0, ge=0)
    """Seconds that a window shares with the next one."""
    length: int = Field(16, ge=1)
    """Frames of a window."""
    limit: int | None = Field(1000, ge=1)
    """The most windows to keep; a longer video is thinned evenly, so that its end is still seen. null: no limit"""

    @model_validator(mode="after")
    def _windows_move_on(self) -> Windows:
        if self.overlap > 0.99 * self.seconds:
            raise ValueError("'overlap' must be less than 'seconds' (at most 99 % of it), or the windows stay where they are")
        return self


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


Sampling = Annotated[Uniform | EveryNth | Times | Clips | Windows | Keyframes, Field(discriminator="kind")]


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
        case Times():
            begin, end = _span_of(pts, segment)
            times = begin + _steps(end - begin, sampling.distance, sampling.limit)
            chosen = frames_at(pts, times)[:, None] - first
        case Windows():
            begin, end = _span_of(pts, segment)
            seconds = min(sampling.seconds, end - begin)  # the one window of a video that is shorter is all of it
            # A window half of which is beyond the end is left out: it would mostly show the last frame.
            starts = begin + _steps(end - begin - seconds / 2, sampling.seconds - sampling.overlap, sampling.limit)
            inside = (np.arange(sampling.length) + 0.5) * (seconds / sampling.length)
            chosen = frames_at(pts, (starts[:, None] + inside).ravel()).reshape(len(starts), -1) - first
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


def _steps(length: float, step: float, limit: int | None) -> Seconds:
    """Moments from 0 on, `step` seconds apart, before `length`: one at the least, and evenly thinned to `limit`."""
    count = max(1, int(np.ceil(length / step - 1e-6)))  # what rounding makes of the end is not a moment more
    chosen = np.arange(count) if limit is None else _spread(count, limit)
    return chosen.astype(np.float64) * step


def _span_of(pts: Seconds, segment: TimeSpan | None) -> TimeSpan:
    """When the video, or its segment, begins and ends; a single picture lasts no time."""
    begin, end = (0.0, float("inf")) if segment is None else segment
    return (begin, begin) if len(pts) == 1 else (begin, min(end, _end_of(pts)))


def _end_of(pts: Seconds) -> float:
    """When a video ends: its last frame stays on display for as long as the others do; a single picture without end."""
    return float(pts[-1] + np.median(np.diff(pts))) if len(pts) > 1 else float("inf")


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
    close = _end_of(pts)
    if not start < close:
        reason = f"the segment {start:g} to {end:g} s starts after the end of the video at {close:.2f} s"
        raise BadMedia("segment_outside", f"{reason}; correct its times in the data set")
    first = int(frames_at(pts, np.array([start]))[0])
    return first, max(first + 1, int(np.searchsorted(pts, end, side="left")))
