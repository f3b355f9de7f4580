"""What extractors look at: frames chosen by a sampling and fitted for a net, or the sound, streamed piece by piece.

One pass over a video serves all its looks, and only what the nets see is kept, so memory does not grow with the video.
A stream is pieces in the order of their positions for each look, and at last `EndOfStream`. Should the frames turn out to be
others than the probe counted, `Restart` takes back all that came before; a look that cannot be had is `Failed`."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.errors import BadMedia
from storage.files.disk_check import read_through
from storage.media.audio import stream_audio
from storage.media.frame_sampling import Indices, Sampling, Seconds, choose_frames
from storage.media.log_mel import FRAMES, HOP, RATE, stream_patches
from storage.media.probe import SAME_MOMENT, Probe, Sampled, open_reader, scale_picture, timeline
from storage.media.readers import DecordFailed, Picture
from storage.media.resize import Fit, fit_picture

PIECE_BYTES = 4 * 2**20
TICK_SECONDS = 5.0
PATCH_SECONDS = FRAMES * HOP / RATE
WHOLE = Fit()


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """Frames: which ones, and how they are made ready."""

    sampling: Sampling
    fit: Fit


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """The sound, as log-mel patches."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some items of a look, in order: (p, M, H, W, 3) uint8 frames or (p, 96, 64) float32 patches; pts (p,) seconds of
    their middles; indices (p, M) frame numbers, none for sound."""

    look: str
    items: NDArray[np.uint8] | NDArray[np.float32]
    pts: Seconds
    indices: Indices


@dataclass(frozen=True, slots=True)
class Restart:
    """The pieces of these looks so far are void; they come again."""

    looks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """These looks cannot be had; whatever came of them is void."""

    looks: tuple[str, ...]
    bad: BadMedia


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing new, but frames are being decoded: this is no hang."""


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """All has come that will."""

    damaged: bool


Event = Chunk | Restart | Failed | Heartbeat | EndOfStream


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """One video and the looks wanted of it: what a decoder process is given."""

    path: Path
    looks: Mapping[str, FrameRequest | AudioRequest]
    segment: tuple[float, float] | None
    probe: Probe

    def __str__(self) -> str:
        return str(self.path)


def stream_frames(job: DecodeJob) -> Iterator[Event]:
    """The stream of one video. Only what concerns the whole file is raised; see the module's words. Where something is wrong
    that the probe did not see, the file is read through and looked at again: it may have been the disk."""
    for event in _look(job):
        if isinstance(event, Failed) and event.bad.kind != "segment_outside":
            break
        if isinstance(event, EndOfStream) and event.damaged and not job.probe.damaged:
            break
        yield event
    else:
        return
    for _ in read_through(job.path):
        yield Heartbeat()
    yield restart(job)
    yield from _look(job)


def restart(job: DecodeJob) -> Restart:
    """What tells that all of a job's pieces so far are void."""
    return Restart(tuple(job.looks))


def _look(job: DecodeJob) -> Iterator[Event]:
    seen = {name: look for name, look in job.looks.items() if isinstance(look, FrameRequest)}
    damaged = job.probe.damaged
    if seen:
        try:
            for event in _watch(job.path, seen, job.segment, job.probe):
                if isinstance(event, EndOfStream):
                    damaged |= event.damaged
                else:
                    yield event
        except BadMedia as bad:
            yield Failed(tuple(seen), bad)
    heard = tuple(name for name, look in job.looks.items() if isinstance(look, AudioRequest))
    if heard:
        try:
            yield from _listen(job, heard)
        except BadMedia as bad:
            yield Failed(heard, bad)
    yield EndOfStream(damaged)


def read_samples(
    path: Path, samplings: Mapping[str, Sampling], segment: tuple[float, float] | None, probe: Probe, fit: Fit = WHOLE
) -> dict[str, Sampled]:
    """The frames of several samplings, decoded once, all in memory: for few or small frames."""
    looks = {name: FrameRequest(sampling, fit) for name, sampling in samplings.items()}
    return gather(stream_frames(DecodeJob(path, looks, segment, probe)))


def gather(events: Iterable[Event | BadMedia]) -> dict[str, Sampled]:
    """A stream's frames by look; BadMedia if one of them could not be had."""
    pieces: dict[str, list[Chunk]] = {}
    damaged = False
    for event in events:
        match event:
            case Chunk():
                pieces.setdefault(event.look, []).append(event)
            case Restart():
                for name in event.looks:
                    pieces.pop(name, None)
            case Failed():
                raise event.bad
            case BadMedia():
                raise event
            case EndOfStream():
                damaged = event.damaged
    return {
        name: Sampled(
            images=np.concatenate([np.asarray(piece.items, np.uint8) for piece in parts]),
            pts=np.concatenate([piece.pts for piece in parts]),
            indices=np.concatenate([piece.indices for piece in parts]),
            damaged=damaged,
        )
        for name, parts in pieces.items()
    }


def _watch(
    path: Path, looks: Mapping[str, FrameRequest], segment: tuple[float, float] | None, probe: Probe
) -> Iterator[Event]:
    """Frames by one pass. decord gives up on some files half-way, and some hold other frames than their packets promised:
    these are read again. Only looks whose own frames did not come are planned again, on what is really there: what a
    look gets does not depend on which others are taken with it."""
    try:
        lost = yield from _pass(path, looks, segment, probe)
    except DecordFailed:
        yield Restart(tuple(looks))
        lost = yield from _pass(path, looks, segment, replace(probe, reader="pyav"))
    if lost:
        yield Restart(tuple(lost))
        moments = timeline(path)
        real = replace(
            probe, frames=len(moments), pts=moments - moments[0], start=float(moments[0]), damaged=True, reader="pyav"
        )
        if (yield from _pass(path, {name: looks[name] for name in lost}, segment, real)):
            raise BadMedia("undecodable", f"{path} decodes differently each time; convert it or copy it again")


def _pass(
    path: Path, looks: Mapping[str, FrameRequest], segment: tuple[float, float] | None, probe: Probe
) -> Generator[Event, None, list[str]]:
    """One pass; the generator's value is the looks whose frames did not all come."""
    windows = [
        _Window(name, look, choose_frames(look.sampling, probe.pts, segment), probe) for name, look in looks.items()
    ]
    wanted = np.unique(np.concatenate([window.indices.ravel() for window in windows]))
    near = min(SAME_MOMENT, 0.4 * float(np.diff(probe.pts).min())) if len(probe.pts) > 1 else SAME_MOMENT
    reader, to_the_end = open_reader(path, wanted, probe)
    found = 0
    ticked = time.monotonic()
    with closing(reader.frames()) as frames:
        for moment, render in frames:
            at = moment - probe.start
            while found < len(wanted) and at > probe.pts[wanted[found]] + near:
                _miss(windows, int(wanted[found]))
                found += 1
            if found < len(wanted) and at >= probe.pts[wanted[found]] - near:
                shown = _Shown(scale_picture(render(), (probe.width, probe.height)))
                for window in windows:
                    if (piece := window.take(int(wanted[found]), shown)) is not None:
                        ticked = time.monotonic()
                        yield piece
                found += 1
            if found == len(wanted) and not to_the_end:
                break
            if time.monotonic() - ticked > TICK_SECONDS:
                ticked = time.monotonic()
                yield Heartbeat()
    for missing in wanted[found:]:
        _miss(windows, int(missing))
    for window in windows:
        if (piece := window.rest()) is not None:
            yield piece
    yield EndOfStream(probe.damaged or reader.damaged or any(window.lost for window in windows))
    return [window.name for window in windows if window.lost]


def _miss(windows: Iterable[_Window], frame: int) -> None:
    for window in windows:
        window.miss(frame)


class _Shown:
    """One decoded frame, fitted for each net at most once."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._fitted: dict[Fit, Picture] = {}

    def fitted(self, fit: Fit) -> Picture:
        if fit not in self._fitted:
            self._fitted[fit] = fit_picture(self._picture, fit)
        return self._fitted[fit]


class _Window:
    """The positions of one look, each given out once its last frame has come; a frame is kept until its last use. A look
    that lost a frame gives out nothing more."""

    def __init__(self, name: str, look: FrameRequest, indices: Indices, probe: Probe) -> None:
        self.name, self.indices, self.lost = name, indices, False
        self._fit = look.fit
        self._pts = probe.pts[indices[:, indices.shape[1] // 2]]
        self._complete = np.maximum.accumulate(indices.max(axis=1))
        self._uses = {int(frame): position for position, row in enumerate(indices) for frame in row}
        self._kept: dict[int, Picture] = {}
        self._ready: list[Picture] = []
        self._bytes = self._next = self._given = 0

    def take(self, frame: int, shown: _Shown) -> Chunk | None:
        """A frame has come. A piece, if enough positions are complete."""
        if self.lost or frame not in self._uses:
            return None
        self._kept[frame] = shown.fitted(self._fit)
        while self._next < len(self.indices) and self._complete[self._next] <= frame:
            position = np.stack([self._kept[int(number)] for number in self.indices[self._next]])
            self._ready.append(position)
            self._bytes += position.nbytes
            for number in set(self.indices[self._next].tolist()):
                if self._uses[number] == self._next:
                    del self._kept[number]
            self._next += 1
        return self.rest() if self._bytes >= PIECE_BYTES else None

    def miss(self, frame: int) -> None:
        """A frame will not come."""
        if frame in self._uses:
            self.lost = True
            self._kept, self._ready, self._bytes = {}, [], 0

    def rest(self) -> Chunk | None:
        """What is complete and not given out yet."""
        if not self._ready:
            return None
        given = slice(self._given, self._next)
        piece = Chunk(self.name, np.stack(self._ready), self._pts[given], self.indices[given])
        self._ready, self._bytes, self._given = [], 0, self._next
        return piece


def _listen(job: DecodeJob, names: tuple[str, ...]) -> Iterator[Event]:
    """The sound in patches; a video without any gives no piece, which is an answer and not an error."""
    blocks = stream_audio(job.path, segment=job.segment)
    if blocks is None:
        return
    count = 0
    for patches in stream_patches(blocks):
        pts = (count + np.arange(len(patches), dtype=np.float64)) * PATCH_SECONDS
        count += len(patches)
        for name in names:
            yield Chunk(name, patches, pts, np.zeros((len(patches), 0), np.int64))
