"""The extraction engine: videos in, rows of several features out.

    decoder processes -> chunks of frames -> batches of one size, filled across videos -> nets -> one writer per feature

Each video is decoded once for all the nets that still need it. A net always gets batches of one size, padded at the end: so its
output for an item does not depend on the other items, and a row not on what was extracted before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.backbones.zoo import UnknownOutput, check_output
from storage.errors import BadInput, BadMedia
from storage.features.writer import SegmentWriter
from storage.media import frame_stream as stream
from storage.media.decode_pool import DecodePool
from storage.media.frame_sampling import Indices
from storage.media.frame_stream import restart, stream_frames
from storage.media.probe import Probe
from tasks.extraction.nets import Net
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
    groups: dict[tuple[int, Request], list[Feature]] = {}  # features that take the same frames through the same net share a pass
    for feature in features:
        groups.setdefault((id(feature.net), feature.request), []).append(feature)
    batchers = [NetBatcher(group[0].net, request, group, runtime) for (_, request), group in groups.items()]
    names = {request: f"request{n}" for n, request in enumerate(dict.fromkeys(each.request for each in batchers))}
    decoding: deque[Video] = deque()
    unreadable: list[tuple[Video, BadMedia]] = []

    def jobs() -> Iterator[stream.DecodeJob]:
        for video in videos:
            requests = {names[each.request]: each.request for each in batchers if each.needs(video.id)}
            if isinstance(video.probe, BadMedia):
                unreadable.append((video, video.probe))
            elif requests:
                decoding.append(video)
                plans = {name: each.plan for name, each in requests.items() if isinstance(each, stream.FrameRequest)}
                planned = {name: video.frames[plan] for name, plan in plans.items() if plan in video.frames}
                yield stream.DecodeJob(video.path, requests, video.segment, video.probe, planned)

    with DecodePool(runtime.decoders, runtime.decode_timeout) as pool:
        for _, events in pool.stream(stream_frames, jobs(), restart):
            video = decoding.popleft()
            by_request = [(names[each.request], each) for each in batchers if each.needs(video.id)]
            for event in events:
                yield from _dispatch(video, event, by_request)
    for batcher in batchers:
        yield from batcher.flush()
    for video, reason in unreadable:
        for batcher in batchers:
            yield from batcher.fail(video.id, reason)


def batch_size(item: Tensor, runtime: Runtime) -> int:
    """How many items of this shape go through a net together."""
    return min(_MAX_BATCH, max(1, runtime.batch * _FRAME_VALUES // item.numel()))


def _dispatch(video: Video, event: Any, by_request: list[tuple[str, NetBatcher]]) -> Iterator[RowResult]:
    """Pass one event of a video's stream to the nets that it concerns."""
    for request, batcher in by_request:
        match event:
            case stream.Chunk() if request == event.request:
                yield from batcher.add(video.id, event)
            case stream.Restart() if request in event.requests:
                batcher.restart(video.id)
            case stream.Failed() if request in event.requests:
                yield from batcher.fail(video.id, event.bad)
            case BadMedia():
                yield from batcher.fail(video.id, event)
            case stream.EndOfStream():
                yield from batcher.end(video.id, event.damaged)


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


class NetBatcher:
    """One net, the features that are taken from it, and the batch that is being filled for it."""

    def __init__(self, net: Net, request: Request, features: list[Feature], runtime: Runtime):
        self.net, self.request, self.features, self._runtime = net, request, features, runtime
        self._buffer: Tensor | None = None
        self._filled: list[_OpenRow] = []  # for each item in the buffer, the row that it belongs to
        self._open: dict[str, _OpenRow] = {}
        self._failed: set[str] = set()
        self._stacked = {net.source_output(feature.output) for feature in features if not feature.averaged}
        self._averaged = {feature.output for feature in features if feature.averaged}

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
        items = torch.from_numpy(self._middle_frames(chunk.items))
        while len(items):
            if self._buffer is None or self._buffer.shape[1:] != items.shape[1:]:
                yield from self.flush()
                shape, on_gpu = ((batch_size(items[0], self._runtime), *items.shape[1:]), self.net.device.startswith("cuda"))
                self._buffer = torch.zeros(shape, dtype=items.dtype, pin_memory=on_gpu)
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
        outputs = self.net(self._buffer)
        filled, self._filled = self._filled, []
        for n, row in enumerate(filled):
            row.queued -= 1
            for name in self._stacked:
                row.rows.setdefault(name, []).append(outputs[name][n].astype(np.float16))
            for name in self._averaged:
                # One after the other, in double: the same sum wherever the batches end.
                row.sums[name] = row.sums.get(name, 0) + outputs[name][n].astype(np.float64)
        for row in dict.fromkeys(filled):
            if row.complete and not row.queued:
                yield from self._write(row)

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
