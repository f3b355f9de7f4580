"""A snapshot of a feature store: the newest row of every video, and whole batches read from memory maps."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.errors import MissingFeatures, StorageError
from storage.features.reader import FeatureSegment, SegmentGone
from storage.features.segments import FeatureRow, segment_names
from storage.files.hashing import digest_rows

_ATTEMPTS = 20  # each one lost means that a whole compaction was published in between
_TABLE = pa.schema(
    {"video_id": "string", "video_key": "string", "length": "int64"}
    | {"crc32": "uint32", "damaged": "bool", "written": "int64", "segment": "string"}
)


class View:
    """What a store held when the view was made; later writes and compactions do not change it.

    A row is known by (video id, video key). Where only an id is asked for, its newest row is meant, whatever its key.
    Rows are numbered from 0, oldest first."""

    def __init__(self, path: Path, name: str, segments: list[FeatureSegment], feature_shape: tuple[int, ...] | None):
        self.path, self.name, self.segments, self.feature_shape = path, name, segments, feature_shape
        sizes = [len(segment.ids) for segment in segments]
        segment_index = np.repeat(np.arange(len(segments)), sizes)
        row_index = np.concatenate([np.arange(size) for size in sizes]) if sizes else np.zeros(0, np.int64)
        # Newest last; of two copies of one row (a compaction was killed) the readable one last.
        order = np.lexsort((_joined(segments, "valid", bool), _joined(segments, "written", np.int64)))
        self._segment_index: list[int] = segment_index[order].tolist()
        self._row_index: list[int] = row_index[order].tolist()
        self._lengths: list[int] = _joined(segments, "lengths", np.int64)[order].tolist()
        ids = [video_id for segment in segments for video_id in segment.ids]
        keys = [key for segment in segments for key in segment.keys]
        self._ids = [ids[n] for n in order.tolist()]
        self._keys = [keys[n] for n in order.tolist()]
        self._known_newest: dict[str, np.ndarray] = {}
        """Video id -> memory-mapped array of its newest row, once it was read."""
        self._known: dict[str, tuple[str, np.ndarray]] = {}
        """Video id -> key and memory-mapped array of the row that was last read by its key."""

    def __len__(self) -> int:
        return len(self._rows)

    def fresh(self, wanted: Mapping[str, str]) -> set[str]:
        """The ids among `wanted` (id -> key) whose row of that key is there and readable."""
        rows, lost = self._rows, self._lost
        return {i for i, key in wanted.items() if (n := rows.get((i, key))) is not None and n not in lost}

    def read(self, video_id: str, video_key: str | None = None) -> np.ndarray:
        """One video's features [L, *feature_shape] in the store's dtype; read-only, without a copy where possible."""
        n = self._find(video_id, video_key)
        return self.segments[self._segment_index[n]].read(self._row_index[n])

    def read_batch(
        self,
        ids: Sequence[str],
        keys: Mapping[str, str] | None = None,
        length: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> tuple[np.ndarray, np.ndarray]:
        """B ids -> features (B, T, *feature_shape), mask (B, T) bool, True where a step is real.

        T is the longest video's length, or `length`: longer videos are cut to their first T steps, shorter ones are
        padded with zeros. T is at least 1: videos without a single step, such as silent ones, are zeros and masked. For
        ids that `keys` (id -> key) names, the row of that key is read instead of the newest."""
        # Few lookups per video: each may miss the processor's caches, which a batch of large rows has just swept.
        if keys is None:
            newest = self._known_newest
            arrays = [newest[i] if i in newest else self._load(i) for i in ids]
        else:
            known = self._known
            read = ((i, keys.get(i), known.get(i)) for i in ids)
            arrays = [row[1] if row is not None and row[0] == key else self._load(i, key) for i, key, row in read]
        lengths = [len(array) for array in arrays]
        T = max([1, *lengths]) if length is None else length
        out = np.empty((len(arrays), T, *(self.feature_shape or ())), dtype)
        for index, array in enumerate(arrays):
            if lengths[index] == T:
                out[index] = array
            else:
                out[index, : lengths[index]] = array[:T]
                out[index, lengths[index] :] = 0
        mask = np.arange(T) < np.asarray(lengths, np.int64)[:, None]
        return out, mask

    def _load(self, video_id: str, video_key: str | None = None) -> np.ndarray:
        """A row, remembered if it is memory-mapped."""
        n = self._find(video_id, video_key)
        segment, row = self.segments[self._segment_index[n]], self._row_index[n]
        mapped = segment.mapped(row)
        if mapped is None:
            return segment.read(row)
        if video_key is None:
            self._known_newest[video_id] = mapped
        else:
            self._known[video_id] = (video_key, mapped)
        return mapped

    def row(self, video_id: str, video_key: str | None = None) -> FeatureRow:
        """Everything about a video's row, its bytes checked."""
        n = self._find(video_id, video_key)
        return self.segments[self._segment_index[n]].row(self._row_index[n])

    def pts(self, video_id: str, video_key: str | None = None) -> np.ndarray | None:
        """The time of every step in seconds, (L,) float64, or None where none was recorded."""
        n = self._find(video_id, video_key)
        return self.segments[self._segment_index[n]].pts(self._row_index[n])

    def newest_crc32(self, video_id: str, video_key: str | None = None) -> int | None:
        """The checksum of a video's newest row, if that row has the given key; None if there is no such row."""
        n = self._newest.get(video_id)
        if n is None or n in self._lost or (video_key is not None and self._keys[n] != video_key):
            return None
        return int(self.segments[self._segment_index[n]].crc32s[self._row_index[n]])

    def lengths(self) -> dict[str, int]:
        """Video id -> number of steps of its newest row."""
        return {video_id: self._lengths[n] for video_id, n in self._newest.items()}

    def table(self) -> pa.Table:
        """One line per row (video id, key): length, crc32, damaged, written, and the segment it lies in."""
        live = self.live()
        rows = [(self.segments[self._segment_index[n]], self._row_index[n]) for n in live]
        columns: list[list[Any]] = [[known[n] for n in live] for known in (self._ids, self._keys, self._lengths)]
        columns += [[s.crc32s[n] for s, n in rows], [bool(s.damaged[n]) for s, n in rows]]
        columns += [[s.written[n] for s, n in rows], [s.path.name for s, _ in rows]]
        return pa.table([pa.array(c, field.type) for c, field in zip(columns, _TABLE, strict=True)], schema=_TABLE)

    def digest(self) -> str:
        """The hash of what can be read, however it was written: sorted ids, keys, checksums and shapes."""
        rows, step = sorted((*self.locate(n), self._lengths[n]) for n in self.live()), self.feature_shape or ()
        found = ((id, key, self.segments[segment].crc32s[row], length) for id, key, segment, row, length in rows)
        return digest_rows((id, key, str(crc32), str((length, *step))) for id, key, crc32, length in found)

    def live(self) -> list[int]:
        """The numbers of the rows that count: the newest of every (id, key), oldest first."""
        return sorted(self._rows.values())

    def locate(self, n: int) -> tuple[str, str, int, int]:
        """Row number -> video id, video key, which segment, which row of it."""
        return self._ids[n], self._keys[n], self._segment_index[n], self._row_index[n]

    @cached_property
    def _rows(self) -> dict[tuple[str, str], int]:
        return {pair: n for n, pair in enumerate(zip(self._ids, self._keys, strict=True))}

    @cached_property
    def _newest(self) -> dict[str, int]:
        return {video_id: n for n, video_id in enumerate(self._ids)}

    @cached_property
    def _lost(self) -> set[int]:
        if not any(segment.faults for segment in self.segments):
            return set()
        rows = enumerate(zip(self._segment_index, self._row_index, strict=True))
        return {n for n, (segment, row) in rows if not self.segments[segment].valid[row]}

    def _find(self, video_id: str, video_key: str | None) -> int:
        n = self._newest.get(video_id) if video_key is None else self._rows.get((video_id, video_key))
        if n is not None:
            return n
        if video_key is not None and video_id in self._newest:
            why = f"belong to another version of the video (there is none of key {video_key})"
            found = f"the '{self.name}' features of {video_id} in {self.path}"
            raise MissingFeatures(f"{found} {why}; run 'longtake extract'")
        remedy = f"add '{self.name}' to the recipe's features and run 'longtake extract'"
        raise MissingFeatures(f"no '{self.name}' features for {video_id} in {self.path}; {remedy}")


def open_view(path: Path, name: str, feature_shape: tuple[int, ...] | None) -> View:
    """Open every indexed segment of the store at `path`."""
    for _ in range(_ATTEMPTS):
        try:
            opened = [FeatureSegment.open(path / segment) for segment in segment_names(path)]
        except SegmentGone:  # its rows are in a newer segment that the listing did not have yet
            continue
        except FileNotFoundError:
            raise MissingFeatures(f"the feature store {path} is gone; run 'longtake extract'") from None
        segments = [segment for segment in opened if segment is not None]
        for segment in segments:
            if segment.shape and feature_shape is None:
                feature_shape = segment.feature_shape
            if segment.shape and segment.feature_shape != feature_shape:
                theirs, ours = (", ".join(map(str, shape or ())) for shape in (segment.feature_shape, feature_shape))
                found = f"segment {segment.path} holds rows of shape [L, {theirs}] in a store of [L, {ours}]"
                raise StorageError(f"{found}; remove that folder and run again: only its videos are recomputed")
        return View(path, name, segments, feature_shape)
    raise StorageError(f"{path} changed {_ATTEMPTS} times while it was being opened; run the same command again")


def _joined(segments: list[FeatureSegment], column: str, dtype: npt.DTypeLike) -> np.ndarray:
    return np.concatenate([getattr(segment, column) for segment in segments] or [np.zeros(0, dtype)])
