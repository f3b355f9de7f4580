"""Text tables: what is written is what is read, by caption id, and a table made for something else is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import Mismatch, StorageError
from storage.text.tables import (
    Origin,
    ReferenceTable,
    caption_id,
    read_frequency_table,
    read_reference_table,
    read_weight_table,
    write_frequency_table,
    write_reference_table,
    write_weight_table,
)

ORIGIN = Origin("vocabulary-of-the-training-split", "captions-of-the-training-split", True)


@pytest.fixture
def references(tmp_path: Path) -> ReferenceTable:
    path = tmp_path / "references.parquet"
    write_reference_table(path, ["b", "a", "b", "a"], [1, 0, 0, 2], [[7], [4, 5], [], [6, 2, 6]], ORIGIN)
    return read_reference_table(path, ORIGIN)


def test_references_are_sorted_by_video_and_n(references: ReferenceTable) -> None:
    assert references.video_ids == ("a", "b")
    assert references.videos.tolist() == [0, 2, 4]
    assert references.caption_indices.tolist() == [0, 2, 0, 1]
    assert references.tokens.tolist() == [4, 5, 6, 2, 6, 7]
    assert references.starts.tolist() == [0, 2, 5, 5, 6]
    assert references.caption_ids == ["a#0", "a#2", "b#0", "b#1"]
    assert references.origin == ORIGIN


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab\U0001f600é#"), st.integers(0, 12)), unique=True, max_size=12))
def test_any_order_of_rows_gives_the_same_bytes(tmp_path_factory: pytest.TempPathFactory, rows: list) -> None:
    folder = tmp_path_factory.mktemp("order")
    sentences = [[n, n + 1] for _, n in rows]
    write_reference_table(folder / "1", [id for id, _ in rows], [n for _, n in rows], sentences, ORIGIN)
    back = rows[::-1]
    write_reference_table(folder / "2", [id for id, _ in back], [n for _, n in back], sentences[::-1], ORIGIN)
    assert (folder / "1").read_bytes() == (folder / "2").read_bytes()
    table = read_reference_table(folder / "1", ORIGIN)
    assert table.caption_ids == [caption_id(id, n) for id, n in sorted(rows)]
    assert np.split(table.tokens, table.starts[1:-1])[-1].tolist() == ([max(rows)[1], max(rows)[1] + 1] if rows else [])


def test_frequencies_come_back_with_the_number_of_videos(tmp_path: Path) -> None:
    keys = np.array([5, (6 << 16) | 7, np.iinfo(np.uint64).max], np.uint64)
    write_frequency_table(tmp_path / "f.parquet", keys, np.array([3, 2, 1], np.int32), 3, ORIGIN)
    table = read_frequency_table(tmp_path / "f.parquet", ORIGIN)
    assert np.array_equal(table.keys, keys) and table.keys.dtype == np.uint64
    assert table.counts.tolist() == [3, 2, 1] and table.videos == 3


def test_weights_are_found_by_caption_whatever_their_place(tmp_path: Path, references: ReferenceTable) -> None:
    shuffled = ["b#1", "a#2", "a#0", "b#0"]
    write_weight_table(tmp_path / "w.parquet", shuffled, {"cider_d": np.array([4.0, 2.0, 1.0, 3.0])}, ORIGIN)
    table = read_weight_table(tmp_path / "w.parquet", ORIGIN)
    assert table.by_caption("cider_d") == {"a#0": 1, "a#2": 2, "b#0": 3, "b#1": 4}
    assert table.of_references("cider_d", references).tolist() == [1, 2, 3, 4]
    with pytest.raises(Mismatch, match="by 'meteor' here; there are cider_d"):
        table.by_caption("meteor")


def test_a_caption_without_others_weighs_as_the_average(tmp_path: Path) -> None:
    weights = {"some": np.array([1.0, np.nan, 2.0]), "none": np.full(3, np.nan), "zero": np.array([0.0, np.nan, 0.0])}
    write_weight_table(tmp_path / "w.parquet", ["a#0", "b#0", "a#1"], weights, ORIGIN)
    table = read_weight_table(tmp_path / "w.parquet", ORIGIN)
    assert np.isnan(table.scores["some"][1]), "the table itself stays raw"
    assert table.by_caption("some") == {"a#0": 1.0, "b#0": 1.5, "a#1": 2.0}
    assert table.by_caption("none") == {"a#0": 1.0, "b#0": 1.0, "a#1": 1.0}
    assert table.by_caption("zero")["b#0"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": "another-words"}, "vocabulary vocabulary-o, but another-word is in use"),
        ({"split": "other-captions"}, "captions captions-of-, but those of the split in use are other-captio"),
        ({"eos": False}, "the end of a sentence counts as a word, where it is used it does not"),
    ],
)
def test_tables_for_something_else_are_refused(tmp_path: Path, changes: dict, message: str) -> None:
    wanted = replace(ORIGIN, **changes)
    write_reference_table(tmp_path / "r", ["a"], [0], [[4]], ORIGIN)
    write_frequency_table(tmp_path / "f", np.array([5], np.uint64), np.array([1], np.int32), 1, ORIGIN)
    write_weight_table(tmp_path / "w", ["a#0"], {"cider_d": np.array([1.0])}, ORIGIN)
    for read, name in ((read_reference_table, "r"), (read_frequency_table, "f"), (read_weight_table, "w")):
        with pytest.raises(Mismatch, match=message) as caught:
            read(tmp_path / name, wanted)
        assert "--force prepare_text" in str(caught.value) and str(tmp_path / name) in str(caught.value)


def test_a_table_of_words_serves_every_vocabulary_but_not_every_split(tmp_path: Path) -> None:
    words = Origin(None, ORIGIN.split, ORIGIN.eos)
    write_weight_table(tmp_path / "w", ["a#0"], {"meteor": np.array([1.0])}, words)
    assert read_weight_table(tmp_path / "w", replace(ORIGIN, vocabulary="another", eos=False)).scores.keys() == {"meteor"}
    with pytest.raises(Mismatch, match="captions"):
        read_weight_table(tmp_path / "w", replace(ORIGIN, split="another"))


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "torn").write_bytes(b"PAR1")
    pq.write_table(pa.table({"key": [1]}), tmp_path / "foreign")
    for name in ("torn", "foreign", "missing"):
        with pytest.raises(StorageError, match=f"cannot read .*{name}.*--force"):
            read_frequency_table(tmp_path / name, ORIGIN)
