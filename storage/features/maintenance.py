"""Maintenance of a feature store: verifying every byte, and compacting small or partly dead segments into few large ones."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import StorageError
from storage.features import segments as files
from storage.features.reader import FeatureSegment, SegmentGone
from storage.features.segments import FeatureRow, delete_segment, segment_names
from storage.features.view import View
from storage.records import Problem

SEGMENT_BYTES = 256_000_000
"""Compaction writes segments of about this size, and leaves those of half of it or more alone if no row died."""
_REMEDY = """'longtake features verify --drop' takes such rows out, then 'longtake run' extracts just them again; rows that \
were imported or pulled are imported or pulled again"""

ProgressCallback = Callable[[int, int], None]
"""Called with (done, total) now and then."""
RowTimes = dict[tuple[str, str], int]
"""(video id, video key) -> when its newest row was written."""


@dataclass(frozen=True)
class Compaction:
    """What a compaction did: segments before and after, rows dropped (of them bad ones), leftover folders removed."""

    before: int
    after: int
    dropped: int
    leftovers: int
    bad: int = 0


def verify(store: Path, progress: ProgressCallback | None = None) -> list[Problem]:
    """Everything wrong with a store: unreadable indexes, chunks missing or of a wrong size, rows that differ from their
    checksum, folders that a killed writer left behind. Reads every byte; progress counts rows."""
    problems: list[Problem] = []
    opened: list[FeatureSegment] = []
    for name, segment in _open_segments(store):
        if isinstance(segment, StorageError):
            problems.append(Problem(name, "index", f"{segment}; or {_REMEDY}", name))
        elif segment is not None:
            opened.append(segment)
        elif files.is_abandoned(store / name):
            reason = "a writer died before it published this segment; nothing reads it, the next writer removes it"
            problems.append(Problem(name, "unindexed", reason, name))
    done, total = 0, sum(len(segment.ids) for segment in opened)
    for segment in opened:
        name = segment.path.name
        problems += [Problem(name, "chunk", f"{fault}; the rows in it are listed", name) for fault in segment.faults]
        for n, video_id in enumerate(segment.ids):
            if reason := _find_error(segment, n):
                problems.append(Problem(video_id, "row", f"{reason}; {_REMEDY}", name))
            done += 1
            if progress:
                progress(done, total)
    return problems


def delete_unreadable_segments(store: Path) -> int:
    """Remove the segments whose index cannot be read: nothing can tell which rows they hold -> how many."""
    broken = [name for name, segment in _open_segments(store) if isinstance(segment, StorageError)]
    for name in broken:
        delete_segment(store / name)
    return len(broken)


def compact(view: View, dtype: np.dtype, keep: Mapping[str, str] | None, check: bool = False) -> Compaction:
    """Rewrite segments that are small or hold dead rows, then remove them; remove the leftovers of dead writers.

    A row is dead if a newer one of the same id and key exists, if `keep` (id -> key) is given and does not name it, or
    if its bytes are lost; with `check`, also if they differ from their checksum, which else is an error. New segments
    are published before old ones go: a kill in between loses nothing."""
    leftovers = files.remove_leftovers(view.path)
    kept: list[list[int]] = [[] for _ in view.segments]
    bad = 0
    for n in view.live():
        video_id, key, index, row = view.locate(n)
        segment = view.segments[index]
        if not segment.valid[row] or (check and _find_error(segment, row)):
            bad += 1
        elif keep is None or keep.get(video_id) == key:
            kept[index].append(row)
    dead = [len(segment.ids) - len(rows) for segment, rows in zip(view.segments, kept, strict=True)]
    chosen = [n for n, s in enumerate(view.segments) if dead[n] or s.faults or s.nbytes < SEGMENT_BYTES // 2]
    if len(chosen) == 1 and not dead[chosen[0]] and not view.segments[chosen[0]].faults:
        chosen = []
    rows = (view.segments[n].row(row) for n in chosen for row in kept[n])
    merged = [files.write_segment(view.path, group, group[0].array.shape[1:], dtype) for group in _groups(rows)]
    for n in chosen:
        delete_segment(view.segments[n].path)
    before = len(view.segments)
    return Compaction(before, before - len(chosen) + len(merged), sum(dead), leftovers, bad)


def superseded(segments: Mapping[str, RowTimes], keep: Mapping[str, str] | None = None) -> list[str]:
    """The names of segments whose every row is in one of newer name, too; with `keep` (id -> key), a row that it does not
    name need not be. Only ever the older of two goes, so whoever removes these, and when, no row is lost."""
    newer: RowTimes = {}
    found = []
    for name in sorted(segments, reverse=True):
        rows = segments[name]
        wanted = {row: at for row, at in rows.items() if keep is None or keep.get(row[0]) == row[1]}
        if all(newer.get(row, -1) >= at for row, at in wanted.items()):
            found.append(name)
        newer.update({row: max(at, newer.get(row, -1)) for row, at in rows.items()})
    return found


def index_rows(index: bytes) -> RowTimes:
    """The rows that the bytes of an index.parquet name."""
    table = pq.read_table(pa.BufferReader(index), columns=["video_id", "video_key", "written"])
    rows: RowTimes = {}
    for video_id, key, at in zip(*(column.to_pylist() for column in table.columns), strict=True):
        rows[video_id, key] = max(at, rows.get((video_id, key), -1))
    return rows


def _open_segments(store: Path) -> Iterator[tuple[str, FeatureSegment | StorageError | None]]:
    """Every segment folder by name: opened, or None without an index, or why it cannot be opened."""
    for name in segment_names(store):
        try:
            yield name, FeatureSegment.open(store / name)
        except SegmentGone:  # compacted away meanwhile
            continue
        except StorageError as error:
            yield name, error


def _groups(rows: Iterator[FeatureRow]) -> Iterator[list[FeatureRow]]:
    """Rows in groups of about SEGMENT_BYTES; they are maps until they are written, so a group needs no memory."""
    group: list[FeatureRow] = []
    size = 0
    for row in rows:
        group.append(row)
        size += row.array.nbytes
        if size >= SEGMENT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _find_error(segment: FeatureSegment, n: int) -> str:
    """What is wrong with a row's bytes, "" for nothing."""
    video_id = segment.ids[n]
    if not segment.valid[n]:
        return f"the features of {video_id} are lost with a chunk of segment {segment.path.name}"
    try:
        segment.check(n, segment.read(n))
    except StorageError:
        return f"the features of {video_id} differ from their checksum"
    return ""
