"""Writing features: a writer collects rows and publishes them as segments, often enough that a kill costs seconds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from storage.errors import BadInput
from storage.features.reader import FeatureSegment, SegmentGone
from storage.features.segments import FeatureRow, Shape, delete_segment, remove_leftovers, row_crc32, write_segment
from storage.records import check_video_id

PUBLISH_BYTES = 64_000_000
PUBLISH_SECONDS = 5.0
_MANY_SMALL = 32

PublishedCallback = Callable[[Path, Sequence[Path]], None]
"""Called with a segment that is safely on disk and those whose rows it took over, which are gone."""


@dataclass
class SegmentWriter:
    """Adds rows to a store. Any number of writers, in threads or processes, may work on one store, one thread each.

    A segment is published when it holds `publish_bytes`, or when a row arrives `publish_seconds` or more after the last
    publication: slow extractors publish every video, fast ones a few large segments. The writer merges its own small
    segments now and then (never other writers': that is `compact`), so a long run of slow videos stays quick to open.
    Leaving the `with` block publishes the rest, unless by an exception. `published` is called with
    every segment, for example to copy it elsewhere; if it fails, the rows are on disk all the same."""

    store: Path
    feature_shape: Shape | None
    dtype: np.dtype
    publish_bytes: int = PUBLISH_BYTES
    publish_seconds: float = PUBLISH_SECONDS
    published: PublishedCallback | None = None

    def __post_init__(self) -> None:
        self._rows: list[FeatureRow] = []
        self._bytes = 0
        self._small: list[Path] = []
        self._published_at = time.monotonic()
        remove_leftovers(self.store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def add(
        self, video_id: str, video_key: str, array: np.ndarray, pts: npt.ArrayLike | None = None, damaged: bool = False
    ) -> None:
        """Take one video's features [L, *feature_shape] (copied; L may be 0) and the time of each step, (L,) seconds."""
        check_video_id(video_id)
        if array.ndim < 2 or 0 in array.shape[1:] or array.dtype.kind not in "fiu":
            found = f"{array.dtype}{list(array.shape)}"
            raise BadInput(f"the features of {video_id} are {found}; numbers [L, D] are needed")
        if self.feature_shape not in (None, array.shape[1:]):
            held = ", ".join(map(str, self.feature_shape or ()))
            what = f"the features of {video_id} have shape {list(array.shape)}, but {self.store} holds [L, {held}]"
            raise BadInput(f"{what}; give another extractor or import a store of its own")
        with np.errstate(over="ignore"):
            values = np.array(array, self.dtype, order="C", copy=True)
        if not np.isfinite(values).all():
            cause = f"values beyond the range of {self.dtype.name}" if np.isfinite(array).all() else "NaN or infinity"
            raise BadInput(f"the features of {video_id} hold {cause}; they are not stored: check what made them")
        times = None if pts is None else np.asarray(pts, np.float64)
        if times is not None and times.shape != values.shape[:1]:
            raise BadInput(f"{video_id} has {len(values)} feature rows but {times.size} times; they must match")
        self.feature_shape = values.shape[1:]
        self._rows.append(FeatureRow(video_id, video_key, values, times, row_crc32(values), damaged))
        self._bytes += values.nbytes
        waited = time.monotonic() - self._published_at
        if self._bytes >= self.publish_bytes or waited >= self.publish_seconds:
            self.flush()

    def flush(self) -> None:
        """Publish what was added; it is on disk and visible when this returns."""
        if self._rows and self.feature_shape is not None:
            segment = write_segment(self.store, self._rows, self.feature_shape, self.dtype)
            if self._bytes < self.publish_bytes:
                self._small.append(segment)
            self._rows, self._bytes = [], 0
            if self.published:
                self.published(segment, ())
        if len(self._small) >= _MANY_SMALL:
            self._merge_small()
        self._published_at = time.monotonic()

    def close(self) -> None:
        """Publish the rest and merge the small segments of this writer."""
        self.flush()
        if len(self._small) > 1:
            self._merge_small()

    def _merge_small(self) -> None:
        """One segment in place of this writer's small ones. They hold less than `publish_bytes` each, most far less."""
        try:
            opened = [FeatureSegment.open(path) for path in self._small]
        except SegmentGone:  # a compaction already took some of them; it will take the rest too
            self._small = []
            return
        rows = [segment.row(n) for segment in opened if segment is not None for n in range(len(segment.ids))]
        if rows:
            merged = write_segment(self.store, rows, rows[0].array.shape[1:], self.dtype)
            sources = self._small
            for path in sources:
                delete_segment(path)
            self._small = [merged] if sum(row.array.nbytes for row in rows) < self.publish_bytes else []
            if self.published:
                self.published(merged, sources)
