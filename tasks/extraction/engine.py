"""The engine of extraction: videos in, rows of several features out.

    decoder processes -> pieces of looks -> batches of one size, filled across videos -> nets -> one writer a feature

Each video is decoded once for all the nets that owe it a row. A net always gets batches of one size, padded at the end: then
its answer for an item does not depend on which items are beside it, and a row not on what was extracted before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.backbones.zoo import UnknownOutput, check_output
from storage.errors import BadInput, BadMedia
from storage.features.writer import SegmentWriter
from storage.media.decode_pool import DecodePool
from storage.media.frame_stream import (
    AudioRequest,
    Chunk,
    DecodeJob,
    EndOfStream,
    Failed,
    FrameRequest,
    Restart,
    restart,
    stream_frames,
)
from storage.media.probe import Probe
from tasks.extraction.nets import Net
from tasks.framework.runtime import Runtime

_FRAME = 224 * 224 * 3  # values of the frame that `runtime.batch` counts in
_MOST = 256


@dataclass(frozen=True)
class Video:
    """One video to extract from."""

    id: str
    path: Path
    segment: tuple[float, float] | None
    probe: Probe | BadMedia


@dataclass(frozen=True)
class Feature:
    """One feature to fill: what it takes from which net, and the rows it owes."""

    name: str
    net: Net
    look: FrameRequest | AudioRequest
    output: str
    averaged: bool
    writer: SegmentWriter
    owed: dict[str, str]
    """video id -> record key"""

    def __post_init__(self) -> None:
        try:
            check_output(self.net.backbone, self.output)
        except UnknownOutput as error:
            raise BadInput(f"features.{self.name}: {error}") from error


@dataclass(frozen=True)
class Outcome:
    """What became of one video in one feature: its row is with the writer, or the reason why there is none."""

    feature: str
    id: str
    bad: BadMedia | None = None


def extract(features: Sequence[Feature], videos: Iterable[Video], runtime: Runtime) -> Iterator[Outcome]:
    """Every video through every feature that owes it a row. Nothing that is wrong with one video ends the work."""
    stations = _batchers(features, runtime)
    names = {look: f"look{n}" for n, look in enumerate(dict.fromkeys(station.look for station in stations))}
    good: deque[Video] = deque()

    def jobs() -> Iterator[DecodeJob]:
        for video in videos:
            looks = {names[station.look]: station.look for station in stations if station.owes(video.id)}
            if isinstance(video.probe, BadMedia):
                bad.append((video, video.probe))
            elif looks:
                good.append(video)
                yield DecodeJob(video.path, looks, video.segment, video.probe)

    bad: list[tuple[Video, BadMedia]] = []
    with DecodePool(runtime.decoders, runtime.decode_timeout) as pool:
        for _, events in pool.stream(stream_frames, jobs(), restart):
            video = good.popleft()
            owing = [station for station in stations if station.owes(video.id)]
            for event in events:
                yield from _take(video, event, [(names[station.look], station) for station in owing])
    for station in stations:
        yield from station.flush()
    for video, reason in bad:
        for station in stations:
            yield from station.fail(video.id, reason)


def batch_size(item: Tensor, runtime: Runtime) -> int:
    """How many items of this shape go through a net together."""
    return min(_MOST, max(1, runtime.batch * _FRAME // item.numel()))


def _take(video: Video, event: Any, owing: list[tuple[str, NetBatcher]]) -> Iterator[Outcome]:
    """Pass one event of a video's stream on to the nets that it concerns."""
    match event:
        case Chunk():
            for look, station in owing:
                if look == event.request:
                    yield from station.add(video.id, event)
        case Restart():
            for look, station in owing:
                if look in event.requests:
                    station.restart(video.id)
        case Failed():
            for look, station in owing:
                if look in event.requests:
                    yield from station.fail(video.id, event.bad)
        case BadMedia():
            for _, station in owing:
                yield from station.fail(video.id, event)
        case EndOfStream():
            for _, station in owing:
                yield from station.end(video.id, event.damaged)


@dataclass
class _Row:
    """A video on its way through one net; `pending` items are in a batch that was not run yet."""

    id: str
    rows: dict[str, list[np.ndarray]] = field(default_factory=dict)
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    pts: list[np.ndarray] = field(default_factory=list)
    items: int = 0
    pending: int = 0
    ended: bool = False
    damaged: bool = False


class NetBatcher:
    """One net with the features taken from it, and the batch being filled for it."""

    def __init__(self, net: Net, look: FrameRequest | AudioRequest, features: list[Feature], runtime: Runtime):
        self.net, self.look, self.features = net, look, features
        self._runtime = runtime
        self._buffer: Tensor | None = None
        self._owners: list[_Row] = []
        self._open: dict[str, _Row] = {}
        self._failed: set[str] = set()
        self._kept = {net.made_from(feature.output) for feature in features if not feature.averaged}
        self._averaged = {feature.output for feature in features if feature.averaged}

    def owes(self, id: str) -> bool:
        return any(id in feature.owed for feature in self.features)

    def restart(self, id: str) -> None:
        self._open.pop(id, None)  # what of it is in a batch is computed for nobody: it never ends

    def fail(self, id: str, bad: BadMedia) -> Iterator[Outcome]:
        self.restart(id)
        self._failed.add(id)
        for feature in self.features:
            if id in feature.owed:
                yield Outcome(feature.name, id, bad)

    def add(self, id: str, piece: Chunk) -> Iterator[Outcome]:
        row = self._open.setdefault(id, _Row(id))
        row.pts.append(piece.pts)
        row.items += len(piece.items)
        row.pending += len(piece.items)
        items = torch.from_numpy(self._seen(piece.items))
        while len(items):
            buffer = self._room(items)
            if buffer is None:
                yield from self.flush()
                continue
            free = len(buffer) - len(self._owners)
            part, items = items[:free], items[free:]
            buffer[len(self._owners) : len(self._owners) + len(part)] = part
            self._owners += [row] * len(part)
            if len(self._owners) == len(buffer):
                yield from self.flush()

    def end(self, id: str, damaged: bool) -> Iterator[Outcome]:
        if id in self._failed:
            return
        row = self._open.setdefault(id, _Row(id))
        row.ended, row.damaged = True, damaged
        if not row.pending:
            yield from self._finish(row)

    def flush(self) -> Iterator[Outcome]:
        """Run the batch as it is, the free places filled with zeros."""
        if not self._owners or self._buffer is None:
            return
        self._buffer[len(self._owners) :] = 0
        found = self.net(self._buffer)
        owners, self._owners = self._owners, []
        for n, row in enumerate(owners):
            row.pending -= 1
            for name in self._kept:
                row.rows.setdefault(name, []).append(found[name][n].astype(np.float16))
            for name in self._averaged:
                # One after the other, in double: the same sum wherever the batches end.
                row.sums[name] = row.sums.get(name, 0) + found[name][n].astype(np.float64)
        for row in {id(row): row for row in owners}.values():
            if row.ended and not row.pending:
                yield from self._finish(row)

    def _seen(self, items: np.ndarray) -> np.ndarray:
        """A net for single frames sees the middle one of each position."""
        if self.net.backbone.pictures is None or self.net.backbone.clip is not None:
            return items
        middle = items.shape[1] // 2
        return items[:, middle : middle + 1]

    def _room(self, items: Tensor) -> Tensor | None:
        """The batch that these items can go into; None if the one begun is of another shape and has to be run first."""
        if self._buffer is not None and self._buffer.shape[1:] == items.shape[1:]:
            return self._buffer
        if self._owners:
            return None
        size = batch_size(items[0], self._runtime)
        pinned = self.net.device.startswith("cuda")
        self._buffer = torch.zeros((size, *items.shape[1:]), dtype=items.dtype, pin_memory=pinned)
        return self._buffer

    def _finish(self, row: _Row) -> Iterator[Outcome]:
        del self._open[row.id]
        pts = np.concatenate(row.pts) if row.pts else np.zeros(0)
        for feature in self.features:
            if row.id not in feature.owed:
                continue
            shape = self.net.backbone.outputs[feature.output]
            if feature.averaged and row.items:
                mean = row.sums[feature.output] / row.items
                rows, times = mean.reshape(-1, shape[-1]).astype(np.float16), None
            elif row.items:
                source = self.net.made_from(feature.output)
                rows, times = np.stack(row.rows[source]), pts
                if source != feature.output:  # of the rows as they are stored: so it is a function of these
                    rows, times = self.net.whole(feature.output, rows).astype(np.float16), None
            else:
                rows = np.zeros((0, shape[-1]) if feature.averaged else (0, *shape), np.float16)
                times = None
            if not np.isfinite(rows).all():
                words = f"{self.net.backbone.name} gives values beyond what is stored (NaN or over 65,504) for it"
                yield Outcome(feature.name, row.id, BadMedia("not_finite", f"{words}; check the weights"))
                continue
            feature.writer.add(row.id, feature.owed[row.id], rows, times, row.damaged)
            yield Outcome(feature.name, row.id)


def _batchers(features: Sequence[Feature], runtime: Runtime) -> list[NetBatcher]:
    """Features that take from the same net under the same look share one pass through it."""
    groups: dict[tuple[int, FrameRequest | AudioRequest], list[Feature]] = {}
    for feature in features:
        groups.setdefault((id(feature.net), feature.look), []).append(feature)
    return [NetBatcher(group[0].net, look, group, runtime) for (_, look), group in groups.items()]
