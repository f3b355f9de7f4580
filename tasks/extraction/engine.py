"""The extraction engine: videos in, rows of several features out.

    decoder processes -> chunks of frames -> batches of one size, filled across videos -> net processes -> one writer per feature

Each video is decoded once for all the nets that still need it. A net always gets batches of one size, padded at the end: so its
output for an item does not depend on the other items, and a row not on what was extracted before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from models.backbones.batches import ItemBatch
from models.backbones.zoo import UnknownOutput, check_output
from storage.errors import BadInput, BadMedia
from storage.features.writer import SegmentWriter
from storage.machine import keep_freed_memory
from storage.media import frame_stream as stream
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Indices
from storage.media.frame_stream import stream_frames
from storage.media.probe import Probe
from tasks.extraction.nets import Net, NetPool
from tasks.framework.runtime import Runtime

Request = stream.FrameRequest | stream.AudioRequest
_FRAME_VALUES = 224 * 224 * 3  # of the frame that `runtime.batch` counts in
_MAX_BATCH = 256


@dataclass(frozen=True)
class Video:
    """One video to extract from. `frames` are its frame plans: the sampling's name -> (P, M) frame numbers."""

    id: str
    path: Path
    segment: tuple[float, float] | None
    probe: Probe | BadMedia
    frames: Mapping[str, Indices] = field(default_factory=dict)


@dataclass(frozen=True)
class Feature:
    """One feature to extract: an output of a net, and the rows that its store still lacks."""

    name: str
    net: Net
    request: Request
    output: str
    averaged: bool
    writer: SegmentWriter
    pending: dict[str, str]
    """video id -> record key"""

    def __post_init__(self) -> None:
        try:
            check_output(self.net.backbone, self.output)
        except UnknownOutput as error:
            raise BadInput(f"features.{self.name}: {error}") from error


@dataclass(frozen=True)
class RowResult:
    """The result for one video in one feature: its row is with the writer, or `bad` says why there is none."""

    feature: str
    id: str
    bad: BadMedia | None = None


def extract(features: Sequence[Feature], videos: Iterable[Video], runtime: Runtime) -> Iterator[RowResult]:
    """Every video through every feature that lacks its row. A bad video fails alone."""
    shared: dict[tuple[int, Request], list[Feature]] = {}  # features that take the same frames through the same net share a pass
    for feature in features:
        shared.setdefault((id(feature.net), feature.request), []).append(feature)
    keep_freed_memory()
    running = RunningBatches(runtime)
    batchers = [NetBatcher(group[0].net, request, group, runtime, running) for (_, request), group in shared.items()]
    names = {request: f"request{n}" for n, request in enumerate(dict.fromkeys(each.request for each in batchers))}
    decoding: deque[Video] = deque()
    unreadable: list[tuple[Video, BadMedia]] = []

    def jobs(videos: Iterable[Video]) -> Iterator[stream.DecodeJob]:
        for video in videos:
            requests = {names[each.request]: each.request for each in batchers if each.needs(video.id)}
            if isinstance(video.probe, BadMedia):
                unreadable.append((video, video.probe))
            elif requests:
                decoding.append(video)
                plans = {name: each.plan for name, each in requests.items() if each.plan}
                planned = {name: video.frames[plan] for name, plan in plans.items() if plan in video.frames}
                yield stream.DecodeJob(video.path, requests, video.segment, video.probe, planned)

    with DecodePool(runtime.decoders, runtime.decode_timeout) as pool, running:
        groups = stream.grouped(jobs(videos))
        while True:
            lost: list[Video] = []
            for group, events in pool.stream(partial(stream.stream_group, stream_frames), groups, _restart_group):
                streams = [_VideoStream(decoding.popleft(), names, batchers) for _ in group.jobs]
                for event in events:
                    yield from _dispatch(event, streams)
                lost += [each.video for each in streams if not each.ended and len(streams) > 1]
            if not lost:
                break
            groups = (stream.JobGroup((job,)) for job in jobs(lost))  # one of them is bad: which, is seen when each is alone
        for batcher in batchers:
            yield from batcher.flush()
        yield from running.take_all()
    for video, reason in unreadable:
        for batcher in batchers:
            yield from batcher.fail(video.id, reason)


def batch_size(item: np.ndarray, runtime: Runtime, device: str) -> int:
    """How many items of this shape go through a net together."""
    return min(_MAX_BATCH, max(1, runtime.batch_on(device) * _FRAME_VALUES // item.size))


@dataclass
class _VideoStream:
    """A video that is being decoded, for the nets that need it."""

    video: Video
    names: Mapping[Request, str]
    batchers: list[NetBatcher]
    ended: bool = False

    def __post_init__(self) -> None:
        self._by_request = [(self.names[each.request], each) for each in self.batchers if each.needs(self.video.id)]

    def restart(self) -> None:
        for _, batcher in self._by_request:
            batcher.restart(self.video.id)

    def take(self, event: Any) -> Iterator[RowResult]:
        """Pass one event to the nets that it concerns."""
        id = self.video.id
        for request, batcher in self._by_request:
            match event:
                case stream.Chunk() if request == event.request:
                    yield from batcher.add(id, event)
                case stream.Restart() if request in event.requests:
                    batcher.restart(id)
                case stream.Failed() if request in event.requests:
                    yield from batcher.fail(id, event.bad)
                case BadMedia():
                    yield from batcher.fail(id, event)
                case stream.EndOfStream():
                    yield from batcher.end(id, event.damaged)
        self.ended = self.ended or isinstance(event, stream.EndOfStream | BadMedia)


def _restart_group(_: stream.JobGroup) -> None:
    """What stands for a new start of a group in its events: the videos of it that have not ended come again."""


def _dispatch(event: tuple[int, Any] | BadMedia | None, streams: list[_VideoStream]) -> Iterator[RowResult]:
    """Pass one event of a group on. A group of several whose decoder was lost ends nothing: they are decoded one by one."""
    match event:
        case (int(number), each):
            if not streams[number].ended:  # else it comes again after a new start
                yield from streams[number].take(each)
        case BadMedia() if len(streams) == 1:
            yield from streams[0].take(event)
        case _:
            for waiting in streams:
                if not waiting.ended:
                    waiting.restart()


@dataclass(eq=False)
class _OpenRow:
    """A video on its way through one net; `queued` of its items are in a batch that did not run yet."""

    id: str
    rows: dict[str, list[np.ndarray]] = field(default_factory=dict)
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    pts: list[np.ndarray] = field(default_factory=list)
    items: int = 0
    queued: int = 0
    complete: bool = False
    damaged: bool = False


class RunningBatches:
    """The batches that run, in order: in net processes at most one more than there are of them, so that none waits for work; in
    this process one, so that a GPU computes it while the rows of the one before are written."""

    def __init__(self, runtime: Runtime):
        self._pool = NetPool(runtime.net_count)
        self._running: deque[tuple[NetBatcher, RowBatch, Callable[[], Any]]] = deque()
        self._here: deque[tuple[NetBatcher, RowBatch, Callable[[], Any]]] = deque()

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.__exit__(*error)

    def submit(self, batcher: NetBatcher, batch: RowBatch) -> Iterator[RowResult]:
        """Start a batch, and settle the first one if enough run."""
        if batcher.net.in_process or not self._pool.workers:
            self._here.append((batcher, batch, batcher.net.submit(batch.items)))
            if len(self._here) > 1:
                yield from self._take(self._here)
            return
        self._running.append((batcher, batch, self._pool.submit(*batcher.net.job(batch.items))))
        if len(self._running) > self._pool.workers:
            yield from self._take(self._running)

    def take_all(self) -> Iterator[RowResult]:
        for waiting in (self._here, self._running):
            while waiting:
                yield from self._take(waiting)

    def _take(self, waiting: deque[tuple[NetBatcher, RowBatch, Callable[[], Any]]]) -> Iterator[RowResult]:
        batcher, batch, take = waiting.popleft()
        yield from batcher.settle(batch, take())


@dataclass(frozen=True, eq=False)
class RowBatch:
    """A batch and, for each of its items, the row that it belongs to."""

    items: ItemBatch
    rows: list[_OpenRow]


class NetBatcher:
    """One net, the features that are taken from it, and the batch that is being filled for it."""

    def __init__(self, net: Net, request: Request, features: list[Feature], runtime: Runtime, running: RunningBatches):
        self.net, self.request, self.features, self._runtime, self._running = net, request, features, runtime, running
        self._buffer: np.ndarray | None = None
        self._spare: list[np.ndarray] = []
        self._filled: list[_OpenRow] = []  # for each item in the buffer, the row that it belongs to
        self._open: dict[str, _OpenRow] = {}
        self._failed: set[str] = set()
        self._stacked = {net.source_output(feature.output) for feature in features if not feature.averaged}
        self._averaged = {feature.output for feature in features if feature.averaged}
        # An output that is wanted both ways travels as float32, and is made float16 here.
        self._wanted = dict.fromkeys(self._stacked, "float16") | dict.fromkeys(self._averaged, "float32")

    def needs(self, id: str) -> bool:
        return any(id in feature.pending for feature in self.features)

    def restart(self, id: str) -> None:
        self._open.pop(id, None)  # its items in the batch are computed for nothing: that row is never complete

    def fail(self, id: str, bad: BadMedia) -> Iterator[RowResult]:
        self.restart(id)
        self._failed.add(id)
        for feature in self.features:
            if id in feature.pending:
                yield RowResult(feature.name, id, bad)

    def add(self, id: str, chunk: stream.Chunk) -> Iterator[RowResult]:
        row = self._open.setdefault(id, _OpenRow(id))
        row.pts.append(chunk.pts)
        row.items += len(chunk.items)
        row.queued += len(chunk.items)
        items = self._middle_frames(chunk.items)
        while len(items):
            if self._buffer is not None and self._buffer.shape[1:] != items.shape[1:]:
                yield from self.flush()
            if self._buffer is None:
                self._buffer = self._new_buffer(items)
            used = len(self._filled)
            free = len(self._buffer) - used
            fitting, items = items[:free], items[free:]
            self._buffer[used : used + len(fitting)] = fitting
            self._filled += [row] * len(fitting)
            if len(self._filled) == len(self._buffer):
                yield from self.flush()

    def end(self, id: str, damaged: bool) -> Iterator[RowResult]:
        if id in self._failed:
            return
        row = self._open.setdefault(id, _OpenRow(id))
        row.complete, row.damaged = True, damaged
        if not row.queued:
            yield from self._write(row)

    def flush(self) -> Iterator[RowResult]:
        """Run the batch as it is, padded with zeros."""
        if not self._filled or self._buffer is None:
            return
        self._buffer[len(self._filled) :] = 0
        batch = RowBatch(ItemBatch(self._buffer, len(self._filled), self._wanted), self._filled)
        self._buffer, self._filled = None, []
        yield from self._running.submit(self, batch)

    def settle(self, batch: RowBatch, outputs: dict[str, np.ndarray]) -> Iterator[RowResult]:
        """Take what the net made of a batch; write the rows that are complete with it."""
        self._spare.append(batch.items.items)
        stacked = {name: outputs[name].astype(np.float16, copy=False) for name in self._stacked}
        for n, row in enumerate(batch.rows):
            row.queued -= 1
            for name, rows in stacked.items():
                row.rows.setdefault(name, []).append(rows[n])
            for name in self._averaged:
                # One after the other, in double: the same sum wherever the batches end.
                row.sums[name] = row.sums.get(name, 0) + outputs[name][n].astype(np.float64)
        for row in dict.fromkeys(batch.rows):
            if row.complete and not row.queued:
                yield from self._write(row)

    def _new_buffer(self, items: np.ndarray) -> np.ndarray:
        """A buffer for items of this shape: one whose batch is done, if there is one."""
        shape = (batch_size(items[0], self._runtime, self.net.device), *items.shape[1:])
        while self._spare:
            if (spare := self._spare.pop()).shape == shape:
                return spare
        if self.net.device.startswith("cuda"):
            return torch.zeros(shape, dtype=getattr(torch, items.dtype.name), pin_memory=True).numpy()
        return np.zeros(shape, items.dtype)

    def _middle_frames(self, items: np.ndarray) -> np.ndarray:
        """A net for single frames gets the middle one of each position."""
        single = self.net.backbone.preprocessing is not None and self.net.backbone.clip is None
        return items[:, (middle := items.shape[1] // 2) : middle + 1] if single else items

    def _write(self, row: _OpenRow) -> Iterator[RowResult]:
        del self._open[row.id]
        for feature in self.features:
            if row.id not in feature.pending:
                continue
            values, times = self._values(feature, row)
            if not np.isfinite(values).all():
                reason = f"{self.net.backbone.name} gives values beyond what is stored (NaN or over 65,504) for it"
                yield RowResult(feature.name, row.id, BadMedia("not_finite", f"{reason}; check the weights"))
                continue
            feature.writer.add(row.id, feature.pending[row.id], values, times, row.damaged)
            yield RowResult(feature.name, row.id)

    def _values(self, feature: Feature, row: _OpenRow) -> tuple[np.ndarray, np.ndarray | None]:
        """A complete row of a feature (P, *shape) float16, and the times (P,) of its positions, if it has positions."""
        shape = self.net.backbone.outputs[feature.output]
        if not row.items:
            return np.zeros((0, shape[-1]) if feature.averaged else (0, *shape), np.float16), None
        if feature.averaged:
            mean = row.sums[feature.output] / row.items
            return mean.reshape(-1, shape[-1]).astype(np.float16), None
        source = self.net.source_output(feature.output)
        values = np.stack(row.rows[source])
        if source == feature.output:
            return values, np.concatenate(row.pts)
        # From float16 as it is stored: so an output of the whole video is a function of the stored rows.
        return self.net.video_output(feature.output, values).astype(np.float16), None
