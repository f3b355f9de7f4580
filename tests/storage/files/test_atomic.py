"""Atomic writing: the old file or the new one, never half of one, and nothing left beside it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.files.atomic import FileWriter, replacing, write_bytes, write_json, write_jsonl, write_parquet, write_text
from storage.results import read_jsonl


class _Stop(Exception):
    pass


def test_a_block_that_raises_leaves_the_old_file_and_no_temp_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("old")
    with pytest.raises(_Stop), replacing(path) as temp:
        temp.write_text("ne")
        assert temp.parent == path.parent, "a rename is atomic only within one folder"
        raise _Stop
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["table.json"]


def test_rows_that_raise_half_way_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"n": 1}])

    def rows() -> Any:
        yield {"n": 2}
        raise _Stop

    with pytest.raises(_Stop):
        write_jsonl(path, rows())
    assert read_jsonl(path) == [{"n": 1}]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_value_that_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"good": 1})
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    assert json.loads(path.read_text()) == {"good": 1}


def test_a_block_that_writes_nothing_is_an_error_and_not_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "never"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "note.txt", "grüße 🎬")
    assert (tmp_path / "a" / "b" / "note.txt").read_text(encoding="utf-8") == "grüße 🎬"


def test_a_folder_in_the_way_is_an_error_and_leaves_no_temp_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_bytes(tmp_path / "taken", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("write", [write_text, write_bytes, write_json, write_jsonl, write_parquet])
def test_a_reader_never_sees_half_a_file(tmp_path: Path, write: Callable[[Path, Any], None]) -> None:
    path, ended, spoiled = tmp_path / "file", threading.Event(), []

    def content(letter: str) -> Any:
        long = letter * 20_000
        kinds: dict[Any, Any] = {write_bytes: long.encode(), write_json: [long], write_jsonl: [{"row": long}] * 3}
        return pa.table({"row": [long] * 3}) if write is write_parquet else kinds.get(write, long)

    write(path, content("a"))
    whole = {path.read_bytes()}
    write(path, content("b"))
    whole.add(path.read_bytes())

    def read() -> None:
        while not ended.is_set():
            if path.read_bytes() not in whole:
                spoiled.append(path)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(40):
        write(path, content("ab"[turn % 2]))
    ended.set()
    reader.join()
    assert len(whole) == 2 and not spoiled


def test_equal_tables_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_parquet(tmp_path / name, pa.table({"id": ["a", "b"], "n": [1, 2]}))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert pq.read_table(tmp_path / "one").to_pylist() == [{"id": "a", "n": 1}, {"id": "b", "n": 2}]


def test_a_writer_writes_in_order_beside_its_caller_and_raises_what_failed(tmp_path: Path) -> None:
    may_write = threading.Event()

    def slowly() -> None:
        assert may_write.wait(10)
        write_text(tmp_path / "a", "first")

    with FileWriter() as writer:
        writer.submit(slowly)
        writer.submit(lambda: write_text(tmp_path / "a", "second"))
        assert not (tmp_path / "a").exists(), "the caller waited"
        may_write.set()
    assert (tmp_path / "a").read_text() == "second"
    with pytest.raises(OSError, match="a"), FileWriter() as writer:
        writer.submit(lambda: write_text(tmp_path / "a" / "b", "below a file"))
    with pytest.raises(KeyError), FileWriter() as writer:
        writer.submit(lambda: write_text(tmp_path / "c", "kept"))
        raise KeyError("the training failed")
    assert (tmp_path / "c").read_text() == "kept"
