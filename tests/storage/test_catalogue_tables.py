"""Inventories and catalogue tables: keys that follow content and nothing else, tables that say what is usable."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.catalogue import (
    ABSENT,
    Catalogue,
    Changes,
    DatasetSnapshot,
    compare,
    problem_table,
    snapshot_dataset,
    write_catalogue,
)
from storage.datasets import FolderOptions, read_dataset
from storage.errors import StorageError
from storage.files.atomic import write_parquet
from storage.files.file_cache import CachedProbe, FileCache
from storage.records import SPLITS, Problem, VideoRecord

PROBE_FIELDS = {"frames": 36, "fps": 12.0, "duration": 3.0, "width": 48, "height": 48, "codec": "h264", "has_audio": True}


def rows() -> list[dict[str, Any]]:
    """Two captions of two videos a split; `cut` is two segments of one file."""
    found: list[dict[str, Any]] = []
    for split in SPLITS:
        for name in (f"{split}1", f"{split}2"):
            found += [{"video": name, "caption": f"{text} {name}", "split": split} for text in ("a ball in", "a box in")]
    for start in (0.0, 1.0):
        found.append({"video": "cut", "caption": f"from {start}", "split": "train", "start": start, "end": start + 1})
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in sorted({row["video"] for row in rows()}):
        (folder / f"{name}.mp4").write_text(f"bytes of {name}")
    return folder


def inventory(root: Path, found: list[dict[str, Any]] | None = None) -> DatasetSnapshot:
    (root / "captions.jsonl").write_text("\n".join(json.dumps(row) for row in found or rows()))
    return snapshot_dataset(read_dataset(FolderOptions(), root), FileCache(root.parent / "ledger.sqlite"))


def changed(before: DatasetSnapshot, after: DatasetSnapshot) -> set[str]:
    return {name for name in before.parts if before.parts[name] != after.parts[name]}


def test_the_order_of_rows_and_files_changes_no_key(root: Path) -> None:
    before = inventory(root)
    videos = sorted({row["video"] for row in rows()})
    random.Random(3).shuffle(videos)
    mixed = sorted(rows(), key=lambda row: videos.index(row["video"]))
    for name in videos:  # made again in another order, so that the folder lists them in another order
        data = (root / f"{name}.mp4").read_bytes()
        (root / f"{name}.mp4").unlink()
        (root / f"{name}.mp4").write_bytes(data)
    after = inventory(root, mixed)
    assert (after.key, after.parts, after.record_keys) == (before.key, before.parts, before.record_keys)


@pytest.mark.parametrize("split", SPLITS)
def test_a_caption_moves_the_captions_of_its_split_only(root: Path, split: str) -> None:
    before, found = inventory(root), rows()
    next(row for row in found if row["split"] == split)["caption"] = "something else"
    after = inventory(root, found)
    assert changed(before, after) == {f"captions/{split}", "captions"}
    assert after.key != before.key


@pytest.mark.parametrize("split", SPLITS)
def test_a_file_moves_the_videos_of_its_split_only(root: Path, split: str) -> None:
    before = inventory(root)
    (root / f"{split}1.mp4").write_text("other bytes")
    after = inventory(root)
    assert changed(before, after) == {f"videos/{split}", "videos"}
    assert str(compare(_table(root, before), after)) == "1 video changed"


def test_a_video_that_changes_its_split_moves_both(root: Path) -> None:
    before = inventory(root)
    found = [row | {"split": "val"} if row["video"] == "test1" else row for row in rows()]
    after = inventory(root, found)
    parts = {f"{what}/{split}" for what in ("videos", "captions") for split in ("val", "test")}
    assert changed(before, after) == parts | {"videos", "captions"}
    assert str(compare(_table(root, before), after)) == "splits or problems changed"


def test_segments_of_one_file_have_keys_of_their_own(root: Path) -> None:
    keys = inventory(root).record_keys
    assert len({keys["cut_0"], keys["cut_1"], inventory(root).contents["cut.mp4"]}) == 3
    found = rows()
    found[-1]["end"] = 1.5
    moved = inventory(root, found).record_keys
    assert moved["cut_0"] == keys["cut_0"] and moved["cut_1"] != keys["cut_1"]


def test_a_copied_file_has_the_same_key_and_a_missing_one_is_absent(root: Path) -> None:
    (root / "train2.mp4").write_bytes((root / "train1.mp4").read_bytes())
    (root / "val1.mp4").unlink()
    keys = inventory(root).record_keys
    assert keys["train1"] == keys["train2"] and keys["val1"] == ABSENT


def test_a_problem_is_part_of_the_key(root: Path) -> None:
    before = inventory(root)
    problems = (*before.dataset.problems, Problem("x", "malformed", "no caption"))
    assert DatasetSnapshot(replace(before.dataset, problems=problems), before.contents).key != before.key


def test_additions_and_removals_are_counted(root: Path) -> None:
    before = inventory(root)
    table = _table(root, before)
    fewer = [row for row in rows() if row["video"] not in ("val1", "val2")]
    assert str(compare(table, inventory(root, fewer))) == "2 videos removed"
    (root / "new.mp4").write_text("new")
    more = [*rows(), {"video": "new", "caption": "a new one", "split": "train"}]
    assert str(compare(table, inventory(root, more))) == "1 video added"
    (root / "test1.mp4").write_text("other")
    assert str(compare(table, inventory(root, more))) == "1 video added, 1 video changed"


def test_other_captions_are_counted_apart_from_other_videos(root: Path) -> None:
    table, found = _table(root, inventory(root)), rows()
    next(row for row in found if row["video"] == "val1")["caption"] = "something else"
    changes = compare(table, inventory(root, found))
    assert changes == Changes(recaptioned=1) and str(changes) == "1 video recaptioned" and changes.videos == 1


def _table(root: Path, found: DatasetSnapshot) -> Catalogue:
    write_catalogue(root.parent / "tables", found, {})
    return Catalogue(root.parent / "tables", root)


def test_tables_tell_the_usable_the_broken_the_absent_and_the_damaged(root: Path, tmp_path: Path) -> None:
    (root / "val1.mp4").unlink()
    found = inventory(root)
    probes = {
        key: CachedProbe({**PROBE_FIELDS, "damaged": source == "test1.mp4"}, None) for source, key in found.contents.items()
    }
    probes[found.contents["val2.mp4"]] = CachedProbe(None, None, "truncated", "it ends early")
    del probes[found.contents["test2.mp4"]]
    counts = write_catalogue(tmp_path / "tables", found, probes)
    assert counts == {"usable": 5, "quarantined": 2, "absent": 1, "damaged": 1, "captions": 14}
    read = Catalogue(tmp_path / "tables", root)
    assert set(read.usable_keys) == {"cut_0", "cut_1", "train1", "train2", "test1"}
    assert read.records["cut_1"] == VideoRecord("cut_1", "cut.mp4", "train", (1.0, 2.0))
    assert read.records["val1"] == VideoRecord("val1", None, "val")
    assert read.ids("val", "test") == ["test1", "test2", "val1", "val2"]
    assert read.content_keys["cut_0"] == read.content_keys["cut_1"] == found.contents["cut.mp4"]
    assert read.path_of("train1") == root / "train1.mp4"
    with pytest.raises(StorageError, match="val1 has no file"):
        read.path_of("val1")
    notes = [(p.item, p.kind, p.quarantined) for p in read.problems]
    assert notes[:2] == [("test2", "unreadable", True), ("val2", "truncated", True)], "the quarantined come first"
    assert ("test1", "damaged", False) in notes and ("val1", "no_video", False) in notes


def test_a_table_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    write_parquet(tmp_path / "videos.parquet", problem_table([]))
    os.truncate(tmp_path / "videos.parquet", 20)
    for name in ("videos", "captions"):
        with pytest.raises(StorageError, match=rf"cannot read .*{name}\.parquet.*--force catalogue"):
            getattr(Catalogue(tmp_path, tmp_path), name)
