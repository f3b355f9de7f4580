"""Where a video cuts from one shot to the next: found in one pass over thumbnails of its frames.

A cut is a frame that differs from the one before far more than its neighbours do from theirs (a pan or a busy scene differs all
the time), and that stays: some frames later the picture is still another one than some frames before (a flash of light comes
and goes)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from pydantic import Field, model_validator

from storage.media.frame_sampling import Seconds
from storage.media.probe import Probe
from storage.media.readers import Picture, PyavReader
from storage.options import Options
from storage.records import TimeSpan

THUMBNAIL = (48, 32)
"""width and height of the frames that are compared"""
HEARTBEAT_SECONDS = 2.0
_BINS = 4  # steps of each colour channel in a histogram
_CLOSEST = 1 / 31  # seconds between frames that are compared: more than 30 per second tell nothing new
_LATER = 2  # frames that a flash may last
_AROUND = 0.42  # seconds on either side that a cut has to stand out from
_OUTSTANDING = 3.0  # times their mean
_UNMATCHED = 1.8  # times the largest of them: jerky motion has many alike
_LEAST = 0.12  # of 1: smaller changes are no cut however still the film is


class ShotOptions(Options):
    """How a long video is cut at its shots."""

    shortest: float = Field(1.0, gt=0)
    """seconds that a shot lasts at least: of two cuts that are closer, the clearer one counts"""
    longest: float = Field(12.0, gt=0)
    """seconds that a segment lasts at most: a longer shot is divided evenly"""

    @model_validator(mode="after")
    def _some_room(self) -> ShotOptions:
        if self.longest < 2 * self.shortest:
            raise ValueError(f"longest {self.longest:g} must be at least twice shortest {self.shortest:g}")
        return self


@dataclass(frozen=True, slots=True)
class ShotJob:
    """One video to find the cuts of: the input of a decoder process."""

    path: Path
    probe: Probe

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class ScanProgress:
    """The video was scanned up to this second."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cuts:
    """The moments (N,) in seconds at which new shots begin, and how clear each is, from 0 to 1."""

    moments: Seconds
    strengths: Seconds


def detect_cuts(job: ShotJob) -> Iterator[ScanProgress | Cuts]:
    """Scan a video once; memory grows with it only by two numbers per frame."""
    if job.probe.is_image or job.probe.frames < 2:
        yield Cuts(np.zeros(0), np.zeros(0))
        return
    finder = CutDetector()
    ticked, last, first = time.monotonic(), float("-inf"), None
    with closing(PyavReader(job.path, THUMBNAIL).frames()) as frames:
        for moment, render in frames:
            first = moment if first is None else first
            if moment - last < _CLOSEST:
                continue
            last = moment
            finder.add(moment - first, render())
            if time.monotonic() - ticked > HEARTBEAT_SECONDS:
                ticked = time.monotonic()
                yield ScanProgress(moment - first)
    found = finder.cuts()
    # The frames' own times as everybody else knows them: a segment must begin with the first frame of its shot.
    pts, moments = job.probe.pts, found.moments
    after = np.clip(np.searchsorted(pts, moments), 1, len(pts) - 1)
    nearest = after - (moments - pts[after - 1] < pts[after] - moments)
    yield Cuts(pts[nearest], found.strengths)


class CutDetector:
    """Takes thumbnails (h, w, 3) in the order of display; keeps the last few and two numbers of each."""

    def __init__(self) -> None:
        self._recent: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=_LATER + 2)
        self._moments: list[float] = []
        self._steps: list[float] = []
        self._strides: list[float] = []

    def add(self, moment: float, picture: Picture) -> None:
        self._recent.append((picture.astype(np.int16), _histogram(picture)))
        self._moments.append(moment)
        self._steps.append(_difference(self._recent[-2], self._recent[-1]) if len(self._recent) > 1 else 0.0)
        if len(self._recent) == _LATER + 2:
            self._strides.append(_difference(self._recent[0], self._recent[-1]))

    def cuts(self) -> Cuts:
        """The cuts among the frames so far."""
        steps, moments = np.array(self._steps), np.array(self._moments)
        # strides[n] is from frame n to n + _LATER + 1. A cut at n is in the stride that begins before it and in the one that
        # ends with it; a flash is in one of them only. At the ends of the film there is none, and the step alone counts.
        stays, strides = steps.copy(), np.array(self._strides)
        stays[1 : 1 + len(strides)] = strides
        stays[_LATER + 1 : _LATER + 1 + len(strides)] = np.minimum(stays[_LATER + 1 :], strides)
        clear = np.minimum(steps, stays)
        found = [n for n in np.flatnonzero(clear >= _LEAST).tolist() if _stands_out(steps, moments, n)]
        return Cuts(moments[found], clear[found])


def _stands_out(steps: np.ndarray, moments: Seconds, n: int) -> bool:
    """Whether the step to frame n is larger than those near it. The very next ones may be as large: a cut can take two
    frames. Step 0 has no frame before it."""
    first, stop = np.searchsorted(moments, [moments[n] - _AROUND, moments[n] + _AROUND]).tolist()
    near = np.concatenate([steps[max(1, first) : max(1, n - 1)], steps[n + 2 : stop]])
    return not len(near) or bool(steps[n] >= max(_OUTSTANDING * near.mean(), _UNMATCHED * near.max()))


def _histogram(picture: Picture) -> np.ndarray:
    """(h, w, 3) uint8 -> (64,): the share of each colour."""
    coarse = (picture // (256 // _BINS)).reshape(-1, 3).astype(np.int64)
    bins = (coarse[:, 0] * _BINS + coarse[:, 1]) * _BINS + coarse[:, 2]
    return np.bincount(bins, minlength=_BINS**3) / len(bins)


def _difference(before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray]) -> float:
    """0 for the same picture; near 1 if both the colours and where they are have changed."""
    colours = 0.5 * float(np.abs(after[1] - before[1]).sum())
    positions = min(1.0, float(np.abs(after[0] - before[0]).mean()) / 64)
    return 0.5 * (colours + positions)


def shot_spans(cuts: Cuts, duration: float, options: ShotOptions) -> list[TimeSpan]:
    """The segments of a video of this length, without gaps, from 0 to its end."""
    kept: list[float] = []
    for n in np.argsort(-cuts.strengths, kind="stable").tolist():  # the clearest first
        moment = float(cuts.moments[n])
        if all(abs(moment - other) >= options.shortest for other in (0.0, duration, *kept)):
            kept.append(moment)
    return split_spans([0.0, *sorted(kept), duration], options.longest)


def window_spans(duration: float, seconds: float) -> list[TimeSpan]:
    """Equal windows; a rest shorter than half of one belongs to the last."""
    count = max(1, round(duration / seconds))
    return list(pairwise([*(n * seconds for n in range(count)), duration]))


def split_spans(borders: Sequence[float], longest: float) -> list[TimeSpan]:
    """Segments between the borders, those that are too long in equal parts."""
    found: list[TimeSpan] = []
    for start, end in pairwise(borders):
        parts = max(1, int(np.ceil((end - start) / longest - 1e-9)))
        found += pairwise([start + (end - start) * n / parts for n in range(parts)] + [end])
    return found
