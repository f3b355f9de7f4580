"""The table of nearest neighbours: for every video the training videos most like it, and the near duplicates among them.

neighbours.parquet          video_id, split, neighbours (ids, nearest first), distances; its metadata say what was compared
blocks/rows-<split>-<range> the same for some rows, while the table is being made: what a kill leaves is used again"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import MissingFeatures, StorageError

_METADATA = b"longtake_neighbours"
_LISTS = {"neighbours": pa.list_(pa.string()), "distances": pa.list_(pa.float64())}
_SCHEMA = pa.schema({"video_id": "string", "split": "string"} | _LISTS)


@dataclass(frozen=True)
class NeighbourMetadata:
    """What a table was computed from."""

    feature: str
    feature_key: str
    """the key of the extractor that made the feature"""
    metric: str
    k: int
    """how many neighbours were asked for; a split of fewer videos gives fewer"""
    items: int
    """how many training videos were compared (N)"""
    contents: str
    """hash of all the vectors compared and of whose they are"""


def neighbour_table(
    ids: list[str], split: str, items: list[str], indices: np.ndarray, distances: np.ndarray, about: NeighbourMetadata
) -> pa.Table:
    """n ids, the ids of the items, indices of items (n, k) int64 and distances (n, k) float64 -> one row per id."""
    offsets = pa.array(np.arange(len(ids) + 1) * indices.shape[1], pa.int32())
    nearest = pa.array(items, pa.string()).take(pa.array(indices.ravel()))
    lists = (pa.ListArray.from_arrays(offsets, values) for values in (nearest, pa.array(distances.ravel())))
    columns = [pa.array(ids, pa.string()), pa.array([split] * len(ids), pa.string()), *lists]
    return pa.table(columns, schema=_SCHEMA.with_metadata({_METADATA: json.dumps(asdict(about)).encode()}))


def block_path(folder: Path, split: str, start: int, stop: int) -> Path:
    """Where the rows start .. stop - 1 of a split are kept until the table is whole."""
    return folder / "blocks" / f"rows-{split}-{start:08}-{stop:08}.parquet"


def read_block(path: Path, metadata: NeighbourMetadata) -> pa.Table | None:
    """The rows in a block's file; None if there is no such file, or it was made from something else."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException):
        return None
    return table if _metadata_of(table, path) == metadata else None


def _metadata_of(table: pa.Table, path: Path) -> NeighbourMetadata:
    try:
        return NeighbourMetadata(**json.loads((table.schema.metadata or {})[_METADATA]))
    except (KeyError, ValueError, TypeError) as error:
        what = f"does not say what it was made from ({error!r})"
        raise StorageError(f"{path} {what}; run with '--force find_neighbours'") from error


@dataclass(frozen=True)
class Neighbours:
    """The nearest training videos of every video in a table."""

    table: pa.Table
    metadata: NeighbourMetadata

    @classmethod
    def open(cls, folder: Path) -> Neighbours:
        path = folder / "neighbours.parquet"
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"cannot read {path}: {error}; run with '--force find_neighbours'") from error
        return cls(table, _metadata_of(table, path))

    def __len__(self) -> int:
        return self.table.num_rows

    def ids(self, split: str) -> list[str]:
        """The videos of a split that are in the table, in the order of the catalogue."""
        return self.table.filter(pc.equal(self.table["split"], split))["video_id"].to_pylist()

    def of(self, video_id: str) -> list[tuple[str, float]]:
        """The nearest training videos of one video and how far they are, nearest first; never the video itself."""
        if video_id not in self._rows:
            gone = f"{video_id} is not in the table of nearest neighbours: it has no '{self.metadata.feature}' features"
            raise MissingFeatures(f"{gone}, or its split is not among the recipe's neighbours.queries")
        row = self._rows[video_id]
        names, distances = self.table["neighbours"][row].as_py(), self.table["distances"][row].as_py()
        return list(zip(names, distances, strict=True))

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {id: row for row, id in enumerate(self.table["video_id"].to_pylist())}


@dataclass(frozen=True)
class NearDuplicates:
    """Two videos that are much alike, with their captions. Two of a training split: the first comes first in the catalogue;
    else `second` is the training video."""

    first: str
    second: str
    distance: float
    first_captions: tuple[str, ...]
    second_captions: tuple[str, ...]


def near_duplicate_rows(
    table: Neighbours, captions: Mapping[str, Sequence[str]], most: int = 12, split: str = "train"
) -> list[NearDuplicates]:
    """The closest pairs of a split's videos and training videos: closest first, each pair once.

    captions: video id -> its captions; a video without any has none here too."""
    rows = table.table.filter(pc.equal(table.table["split"], split))
    ids = rows["video_id"].to_pylist()
    order = {id: n for n, id in enumerate(ids)}
    query_rows = pc.list_parent_indices(rows["neighbours"].combine_chunks()).to_numpy()
    names = pc.list_flatten(rows["neighbours"].combine_chunks())
    distances = pc.list_flatten(rows["distances"].combine_chunks()).to_numpy()
    pairs_seen: set[frozenset[str]] = set()
    pairs: list[NearDuplicates] = []
    for position in np.argsort(distances, kind="stable"):
        if len(pairs) == most:
            break
        first, second = ids[query_rows[position]], names[int(position)].as_py()
        if (pair := frozenset((first, second))) in pairs_seen:
            continue
        pairs_seen.add(pair)
        if order.get(second, len(ids)) < order[first]:
            first, second = second, first
        texts = (tuple(captions.get(id, ())) for id in (first, second))
        pairs.append(NearDuplicates(first, second, float(distances[position]), *texts))
    return pairs
