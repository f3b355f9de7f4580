"""The table of nearest neighbours: what is written is read, blocks of other data are not taken, pairs come once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import MissingFeatures, StorageError
from storage.files.atomic import write_parquet
from storage.neighbours import (
    NearDuplicates,
    NeighbourMetadata,
    Neighbours,
    block_path,
    near_duplicate_rows,
    neighbour_table,
    read_block,
)

PROBE_FIELDS = NeighbourMetadata("scene", "net-1", "euclidean", 2, 4, "abc")
ITEMS = ["a", "b", "c", "d"]
NUMBERS = np.array([[1, 2], [0, 2], [3, 1], [2, 1]])
DISTANCES = np.array([[0.5, 2.0], [0.5, 1.0], [0.25, 1.0], [0.25, 3.0]])


def write(folder: Path) -> Neighbours:
    """Four training videos and one test video."""
    train = neighbour_table(ITEMS, "train", ITEMS, NUMBERS, DISTANCES, PROBE_FIELDS)
    test = neighbour_table(["t"], "test", ITEMS, np.array([[3, 0]]), np.array([[0.0, 0.125]]), PROBE_FIELDS)
    write_parquet(folder / "neighbours.parquet", pa.concat_tables([train, test]))
    return Neighbours.open(folder)


def test_every_video_has_its_neighbours_nearest_first_and_the_table_says_what_was_compared(tmp_path: Path) -> None:
    table = write(tmp_path)
    assert len(table) == 5 and table.metadata == PROBE_FIELDS
    assert table.of("c") == [("d", 0.25), ("b", 1.0)]
    assert table.of("t") == [("d", 0.0), ("a", 0.125)]
    assert table.ids("train") == ITEMS and table.ids("test") == ["t"] and table.ids("val") == []


def test_a_video_that_is_not_in_the_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFeatures, match=r"x is not in the table.*'scene'.*neighbours\.queries"):
        write(tmp_path).of("x")


def test_tables_that_are_gone_damaged_or_of_unknown_origin_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="--force find_neighbours"):
        Neighbours.open(tmp_path)
    (tmp_path / "neighbours.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(StorageError, match="--force find_neighbours"):
        Neighbours.open(tmp_path)
    pq.write_table(pa.table({"video_id": ["a"]}), tmp_path / "neighbours.parquet")
    with pytest.raises(StorageError, match="does not say what it was made from"):
        Neighbours.open(tmp_path)


def test_a_block_is_taken_only_if_it_is_whole_and_of_the_same_data(tmp_path: Path) -> None:
    path = block_path(tmp_path, "train", 0, 4)
    assert path.name == "rows-train-00000000-00000004.parquet"
    assert read_block(path, PROBE_FIELDS) is None, "there is none"
    write_parquet(path, neighbour_table(ITEMS, "train", ITEMS, NUMBERS, DISTANCES, PROBE_FIELDS))
    block = read_block(path, PROBE_FIELDS)
    assert block is not None and block["video_id"].to_pylist() == ITEMS
    for other in (replace(PROBE_FIELDS, contents="other"), replace(PROBE_FIELDS, k=3), replace(PROBE_FIELDS, metric="cosine")):
        assert read_block(path, other) is None
    path.write_bytes(path.read_bytes()[:-9])
    assert read_block(path, PROBE_FIELDS) is None, "half of it"


def test_twins_come_closest_first_and_each_pair_once(tmp_path: Path) -> None:
    captions = {"a": ["a dog", "a cat"], "c": ["red"], "d": ["blue"]}
    pairs = near_duplicate_rows(write(tmp_path), captions)
    assert [(t.first, t.second, t.distance) for t in pairs] == [
        ("c", "d", 0.25),
        ("a", "b", 0.5),
        ("b", "c", 1.0),
        ("a", "c", 2.0),
        ("b", "d", 3.0),
    ]
    assert pairs[1] == NearDuplicates("a", "b", 0.5, ("a dog", "a cat"), ())
    assert (
        near_duplicate_rows(write(tmp_path), captions, most=2) == pairs[:2]
        and near_duplicate_rows(write(tmp_path), {}, most=0) == []
    )


def test_twins_of_another_split_are_its_videos_and_their_training_videos(tmp_path: Path) -> None:
    pairs = near_duplicate_rows(write(tmp_path), {"t": ["new"], "d": ["blue"]}, split="test")
    assert pairs == [NearDuplicates("t", "d", 0.0, ("new",), ("blue",)), NearDuplicates("t", "a", 0.125, ("new",), ())]
    assert near_duplicate_rows(write(tmp_path), {}, split="val") == []


def test_a_lonely_video_has_no_neighbours_and_no_twin(tmp_path: Path) -> None:
    empty = np.empty((1, 0))
    write_parquet(tmp_path / "neighbours.parquet", neighbour_table(["a"], "train", ["a"], empty.astype(int), empty, PROBE_FIELDS))
    table = Neighbours.open(tmp_path)
    assert table.of("a") == [] and near_duplicate_rows(table, {}) == []
