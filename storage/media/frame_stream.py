"""What extractors read of a video: frames, chosen by a sampling and resized for a net, or sound, streamed in chunks.

One pass over a video serves all requests, and only what the nets see is kept, so memory does not grow with the video. A stream
is chunks, in order for each request, and at last `EndOfStream`. If the frames differ from what the probe counted, `Restart`
takes back everything before it; a request that cannot be met is `Failed`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.errors import BadMedia
from storage.files.disk_check import read_through
from storage.media.audio import stream_audio
from storage.media.frame_sampling import Indices, Sampling, Seconds, choose_frames
from storage.media.log_mel import FRAMES, HOP, RATE, stream_patches, stream_patches_at
from storage.media.probe import SAME_MOMENT, Probe, SampledFrames, open_reader, resize_frame, timeline
from storage.media.readers import DecordFailed, Picture
from storage.media.resize import UNCHANGED, FrameTransform, resize_and_crop
from storage.records import TimeSpan

FRAME_CHUNK_BYTES = 4 * 2**20
PICTURES_TOGETHER = 8
HEARTBEAT_SECONDS = 5.0
PATCH_SECONDS = FRAMES * HOP / RATE


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """Frames: which ones, and how they are resized and cropped. `plan` names the sampling in the frame plans of videos."""

    sampling: Sampling
    transform: FrameTransform = UNCHANGED
    plan: str = ""


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """The sound, as log-mel patches: one after the other, or with a sampling, one around the time of each of its positions.
    `plan` names the sampling in the frame plans of videos."""

    sampling: Sampling | None = None
    plan: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some items of a request, in order: (p, M, H, W, 3) uint8 frames or (p, 96, 64) float32 patches; pts (p,) seconds of
    their middles; indices (p, M) frame numbers, none for sound."""

    request: str
    items: NDArray[np.uint8] | NDArray[np.float32]
    pts: Seconds
    indices: Indices

    @property
    def nbytes(self) -> int:
        return self.items.nbytes


@dataclass(frozen=True, slots=True)
class Restart:
    """The chunks of these requests so far are void; they come again."""

    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """These requests cannot be met; all their chunks are void."""

    requests: tuple[str, ...]
    bad: BadMedia


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing new, but frames are being decoded: this is no hang."""


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """Everything has come."""

    damaged: bool


Event = Chunk | Restart | Failed | Heartbeat | EndOfStream


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """One video and the requests for it by name: the input of a decoder process. `planned` has the (P, M) frame numbers of
    requests that were planned before; the others' are chosen here."""

    path: Path
    requests: Mapping[str, FrameRequest | AudioRequest]
    segment: TimeSpan | None
    probe: Probe
    planned: Mapping[str, Indices] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.path)


def stream_frames(job: DecodeJob) -> Iterator[Event]:
    """The stream of one video. Where something is wrong that the probe did not see, the file is read through and decoded
    again: it may have been the disk."""
    for event in _decode(job):
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
    yield from _decode(job)


def restart(job: DecodeJob) -> Restart:
    """The event that makes all chunks of a job so far void."""
    return Restart(tuple(job.requests))


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs that a decoder process gets at once: a video, or several pictures, each of which takes less time than a message."""

    jobs: tuple[DecodeJob, ...]

    @property
    def path(self) -> Path:
        return self.jobs[0].path

    def __str__(self) -> str:
        return str(self.path)


def grouped(jobs: Iterable[DecodeJob]) -> Iterator[JobGroup]:
    """Consecutive pictures together, every video alone."""
    for is_image, several in groupby(jobs, lambda job: job.probe.is_image):
        while group := tuple(islice(several, PICTURES_TOGETHER if is_image else 1)):
            yield JobGroup(group)


def stream_group(streamed: Callable[[DecodeJob], Iterator[Event]], group: JobGroup) -> Iterator[tuple[int, Event | BadMedia]]:
    """The streams of a group, one after the other: each event with the number of its job."""
    for n, job in enumerate(group.jobs):
        try:
            for event in streamed(job):
                yield n, event
        except BadMedia as bad:
            yield n, bad


def _decode(job: DecodeJob) -> Iterator[Event]:
    frames = {name: request for name, request in job.requests.items() if isinstance(request, FrameRequest)}
    audio = {name: request for name, request in job.requests.items() if isinstance(request, AudioRequest)}
    damaged = job.probe.damaged
    if frames:
        try:
            for event in _stream_frame_chunks(job, frames):
                if isinstance(event, EndOfStream):
                    damaged |= event.damaged
                else:
                    yield event
        except BadMedia as bad:
            yield Failed(tuple(frames), bad)
    plain = tuple(name for name, request in audio.items() if request.sampling is None)
    try:
        if plain:
            yield from _stream_audio_chunks(job, plain)
        for name, request in audio.items():
            if request.sampling is not None:
                yield from _stream_aligned_audio(job, name, request.sampling)
    except BadMedia as bad:
        yield Failed(tuple(audio), bad)
    yield EndOfStream(damaged)


def gather(events: Iterable[Event | BadMedia]) -> dict[str, SampledFrames]:
    """A stream's frames by request, all in memory; BadMedia if one of the requests failed."""
    chunks: dict[str, list[Chunk]] = {}
    damaged = False
    for event in events:
        match event:
            case Chunk():
                chunks.setdefault(event.request, []).append(event)
            case Restart():
                for name in event.requests:
                    chunks.pop(name, None)
            case Failed():
                raise event.bad
            case BadMedia():
                raise event
            case EndOfStream():
                damaged = event.damaged
    frames = {}
    for name, parts in chunks.items():
        images = np.concatenate([np.asarray(chunk.items, np.uint8) for chunk in parts])
        times, indices = (np.concatenate([getattr(chunk, column) for chunk in parts]) for column in ("pts", "indices"))
        frames[name] = SampledFrames(images, times, indices, damaged)
    return frames


def _stream_frame_chunks(job: DecodeJob, requests: Mapping[str, FrameRequest]) -> Iterator[Event]:
    """Frames by one pass. decord gives up on some files half-way, and some hold other frames than their packets promised:
    these are decoded again. Only requests whose own frames did not come are planned again, on the frames that are there: a
    request's frames do not depend on the other requests."""
    path, probe = job.path, job.probe
    indices = {name: job.planned.get(name) for name in requests}
    try:
        incomplete = yield from _decode_once(job, requests, probe, indices)
    except DecordFailed:
        yield Restart(tuple(requests))
        incomplete = yield from _decode_once(job, requests, replace(probe, reader="pyav"), indices)
    if incomplete:
        yield Restart(tuple(incomplete))
        moments = timeline(path)
        start = float(moments[0])
        found = replace(probe, frames=len(moments), pts=moments - start, start=start, damaged=True, reader="pyav")
        if (yield from _decode_once(job, {name: requests[name] for name in incomplete}, found, {})):
            raise BadMedia("undecodable", f"{path} decodes differently each time; convert it or copy it again")


def _decode_once(
    job: DecodeJob, requests: Mapping[str, FrameRequest], probe: Probe, planned: Mapping[str, Indices | None]
) -> Generator[Event, None, list[str]]:
    """One pass; the generator returns the requests whose frames did not all come."""
    collectors = []
    for name, request in requests.items():
        known = planned.get(name)
        indices = choose_frames(request.sampling, probe.pts, job.segment) if known is None else known
        collectors.append(_FrameCollector(name, request, indices, probe))
    wanted = np.unique(np.concatenate([collector.indices.ravel() for collector in collectors]))
    near = min(SAME_MOMENT, 0.4 * float(np.diff(probe.pts).min())) if len(probe.pts) > 1 else SAME_MOMENT
    reader, to_the_end = open_reader(job.path, wanted, probe)
    found = 0
    last_event = time.monotonic()
    with closing(reader.frames()) as frames:
        for moment, render in frames:
            at = moment - probe.start
            while found < len(wanted) and at > probe.pts[wanted[found]] + near:
                _mark_missing(collectors, int(wanted[found]))
                found += 1
            if found < len(wanted) and at >= probe.pts[wanted[found]] - near:
                picture = resize_frame(render(), (probe.width, probe.height))
                resized = cache(partial(resize_and_crop, picture))  # once for all requests with the same transform
                for collector in collectors:
                    if (chunk := collector.add(int(wanted[found]), resized)) is not None:
                        last_event = time.monotonic()
                        yield chunk
                found += 1
            if found == len(wanted) and not to_the_end:
                break
            if time.monotonic() - last_event > HEARTBEAT_SECONDS:
                last_event = time.monotonic()
                yield Heartbeat()
    for number in wanted[found:]:
        _mark_missing(collectors, int(number))
    for collector in collectors:
        if (chunk := collector.flush()) is not None:
            yield chunk
    incomplete = [collector.name for collector in collectors if collector.incomplete]
    yield EndOfStream(probe.damaged or reader.damaged or bool(incomplete))
    return incomplete


def _mark_missing(collectors: Iterable[_FrameCollector], number: int) -> None:
    for collector in collectors:
        collector.mark_missing(number)


class _FrameCollector:
    """The positions of one request. A position is given out when its last frame has come; a frame is kept until its last use. A
    request that misses a frame gives out nothing more."""

    def __init__(self, name: str, request: FrameRequest, indices: Indices, probe: Probe) -> None:
        self.name, self.indices, self.incomplete = name, indices, False
        self._transform = request.transform
        self._pts = probe.pts[indices[:, indices.shape[1] // 2]]
        self._complete_at = np.maximum.accumulate(indices.max(axis=1))
        self._last_use = {int(number): position for position, row in enumerate(indices) for number in row}
        self._kept: dict[int, Picture] = {}
        self._ready: list[Picture] = []
        self._bytes = self._next = self._given = 0

    def add(self, number: int, resized: Callable[[FrameTransform], Picture]) -> Chunk | None:
        """Take a frame; returns a chunk if enough positions are complete."""
        if self.incomplete or number not in self._last_use:
            return None
        self._kept[number] = resized(self._transform)
        while self._next < len(self.indices) and self._complete_at[self._next] <= number:
            numbers = self.indices[self._next].tolist()
            position = np.stack([self._kept[n] for n in numbers])
            self._ready.append(position)
            self._bytes += position.nbytes
            for n in set(numbers):
                if self._last_use[n] == self._next:
                    del self._kept[n]
            self._next += 1
        return self.flush() if self._bytes >= FRAME_CHUNK_BYTES else None

    def mark_missing(self, number: int) -> None:
        """This frame will not come."""
        if number in self._last_use:
            self.incomplete = True
            self._kept, self._ready, self._bytes = {}, [], 0

    def flush(self) -> Chunk | None:
        """The complete positions that were not given out yet."""
        if not self._ready:
            return None
        given = slice(self._given, self._next)
        chunk = Chunk(self.name, np.stack(self._ready), self._pts[given], self.indices[given])
        self._ready, self._bytes, self._given = [], 0, self._next
        return chunk


def _stream_audio_chunks(job: DecodeJob, names: tuple[str, ...]) -> Iterator[Event]:
    """The sound in patches; a video without sound gives no chunk, which is no error."""
    blocks = stream_audio(job.path, segment=job.segment)
    if blocks is None:
        return
    count = 0
    for patches in stream_patches(blocks):
        pts = (count + np.arange(len(patches), dtype=np.float64)) * PATCH_SECONDS
        count += len(patches)
        for name in names:
            yield Chunk(name, patches, pts, np.zeros((len(patches), 0), np.int64))


def _stream_aligned_audio(job: DecodeJob, name: str, sampling: Sampling) -> Iterator[Event]:
    """A patch around the time of each position of a sampling."""
    pts = job.probe.pts
    indices = job.planned.get(name)
    indices = choose_frames(sampling, pts, job.segment) if indices is None else indices
    times = pts[indices[:, indices.shape[1] // 2]]
    blocks = stream_audio(job.path, segment=job.segment)
    if blocks is None:
        return
    count = 0
    for patches in stream_patches_at(blocks, times - (max(0.0, job.segment[0]) if job.segment else 0.0)):
        yield Chunk(name, patches, times[count : count + len(patches)], np.zeros((len(patches), 0), np.int64))
        count += len(patches)
