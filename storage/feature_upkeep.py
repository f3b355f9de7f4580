"""Upkeep of a feature store: checking every byte, and compacting small or partly dead segments into few sound ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import StorageError
from storage.feature_reading import Segment, SegmentGoneError
from storage.feature_segments import Row, is_abandoned, retire, row_crc32, segment_names, sweep, write_segment
from storage.feature_view import View
from storage.records import Problem

SEGMENT_BYTES = 256_000_000
"""Compaction writes segments of about this size, and leaves those of half of it or more alone if no row died."""


@dataclass(frozen=True)
class Compaction:
    """What a compaction did: segments before and after, rows dropped, left-over folders removed."""

    before: int
    after: int
    dropped: int
    leftovers: int


def verify(store: Path) -> list[Problem]:
    """Everything wrong with a store: unreadable indexes, chunks missing or of a wrong size, rows that differ from their
    checksum, folders that a killed writer left behind. Reads every byte."""
    problems: list[Problem] = []
    for name in segment_names(store):
        try:
            segment = Segment.open(store / name)
        except SegmentGoneError:
            continue
        except StorageError as error:
            problems.append(Problem(name, "index", str(error), name))
            continue
        if segment is None:
            if is_abandoned(store / name):
                reason = "a writer died before it published this segment; nothing reads it, compaction removes it"
                problems.append(Problem(name, "unindexed", reason, name))
            continue
        problems += [Problem(name, "chunk", fault, name) for fault in segment.faults]
        problems += _damaged_rows(segment)
    return problems


def compact(view: View, dtype: np.dtype, keep: Mapping[str, str] | None) -> Compaction:
    """Rewrite segments that are small or hold dead rows, then remove them; remove left-overs of dead writers.

    A row is dead if a newer one of the same id and key exists, if `keep` (id -> key) is given and does not name it, or
    if its bytes are lost. New segments are published before old ones go: a kill in between loses nothing."""
    leftovers = sweep(view.path)
    kept: list[list[int]] = [[] for _ in view.segments]
    for n in view.live():
        video_id, key, owner, number = view.place(n)
        if view.segments[owner].valid[number] and (keep is None or keep.get(video_id) == key):
            kept[owner].append(number)
    dead = [len(segment.ids) - len(numbers) for segment, numbers in zip(view.segments, kept, strict=True)]
    chosen = [n for n, s in enumerate(view.segments) if dead[n] or s.faults or s.nbytes < SEGMENT_BYTES // 2]
    if len(chosen) == 1 and not dead[chosen[0]] and not view.segments[chosen[0]].faults:
        chosen = []
    rows = (view.segments[n].row(number) for n in chosen for number in kept[n])
    made = [write_segment(view.path, group, group[0].array.shape[1:], dtype) for group in _groups(rows)]
    for n in chosen:
        retire(view.segments[n].path)
    before = len(view.segments)
    return Compaction(before, before - len(chosen) + len(made), sum(dead), leftovers)


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows in groups of about SEGMENT_BYTES; they are maps until they are written, so a group needs no memory."""
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row.array.nbytes
        if size >= SEGMENT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _damaged_rows(segment: Segment) -> list[Problem]:
    problems = []
    for n, video_id in enumerate(segment.ids):
        if not segment.valid[n]:
            reason = str(segment.fault(video_id))
        else:
            try:
                if row_crc32(segment.read(n)) == segment.crc32s[n]:
                    continue
                reason = f"the features of {video_id} differ from their checksum"
            except StorageError as error:  # read through zarr-python, which checks by itself
                reason = str(error)
        problems.append(Problem(video_id, "row", reason, segment.path.name))
    return problems
