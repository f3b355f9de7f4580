"""The feature store under hardship: compaction, damage, left-overs, kill -9 and several writers at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from storage.errors import StorageError
from storage.features import maintenance
from storage.features import segments as segments_module
from storage.features import view as view_module
from storage.features.reader import FeatureSegment
from storage.features.segments import segment_names
from storage.features.store import FeatureStore
from tests.storage.features.feature_rows import D, all_right, features, make, only_chunk, start_writer, times


def test_the_newest_row_wins_before_and_after_compaction(tmp_path):
    store = make(tmp_path / "s", 1, 2, key="old")
    with store.writer() as writer:
        writer.add("v1", "new", features(6))
    with store.writer() as writer:
        writer.add("v2", "old", features(22))
    for _ in range(2):
        view = store.view()
        assert np.array_equal(view.read("v2"), features(22)) and np.array_equal(view.read("v1", "old"), features(1))
        for keys, n in (({"v1": "old"}, 1), ({"v1": "new"}, 6), ({"v1": "old"}, 1), ({}, 6), (None, 6)):
            assert np.array_equal(view.read_batch(["v1"], keys, dtype="float16")[0][0], features(n))
        newest = dict(zip(*(view.table()[name].to_pylist() for name in ("video_id", "video_key")), strict=True))
        assert newest == {"v1": "new", "v2": "old"} and view.newest_crc32("v1", "old") is None
        store.compact()
    assert len(segment_names(store.path)) == 1


def test_compaction_merges_and_drops_while_a_view_reads_on(tmp_path):
    store = make(tmp_path / "s")
    for n in range(12):
        make(tmp_path / "s", n)
    view = store.view()
    keep = {f"v{n}": "k" for n in range(10)} | {"v3": "changed"}
    done = store.compact(keep)
    assert (done.before, done.after, done.dropped) == (12, 1, 3)
    assert store.view().fresh({f"v{n}": "k" for n in range(12)}) == {f"v{n}" for n in range(10)} - {"v3"}
    assert all(np.array_equal(view.read(f"v{n}"), features(n)) for n in range(12))
    assert times(view, 11) == [0, 0.25]
    assert store.compact(keep).after == 1 and store.verify() == []
    assert store.compact({}).after == 0 and len(store.view()) == 0


def test_large_segments_without_dead_rows_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(maintenance, "SEGMENT_BYTES", 8 * D * 2)
    store = make(tmp_path / "s", 4, 9)  # ten steps
    before = segment_names(store.path)
    make(tmp_path / "s", 0)
    make(tmp_path / "s", 5)
    store.compact()
    after = segment_names(store.path)
    assert len(after) == 2 and before[0] in after
    assert store.view().fresh({f"v{n}": "k" for n in (0, 4, 5, 9)}) == {"v0", "v4", "v5", "v9"}


def test_merging_old_rows_does_not_make_them_new(tmp_path, monkeypatch):
    monkeypatch.setattr(maintenance, "SEGMENT_BYTES", 8 * D * 2)
    store = make(tmp_path / "s", 1, key="old")
    make(tmp_path / "s", 1, 4, key="new")  # large enough to stay where it is
    make(tmp_path / "s", 0)
    store.compact()
    view = store.view()
    assert len(view.segments) == 2
    assert view.newest_crc32("v1", "new") is not None and view.newest_crc32("v1", "old") is None


def test_a_view_opened_during_a_compaction_has_every_row(tmp_path, monkeypatch):
    store = make(tmp_path / "s", 1, 2)
    make(tmp_path / "s", 3)
    stale = segment_names(store.path)
    store.compact()
    listings = iter([stale])
    monkeypatch.setattr(view_module, "segment_names", lambda path: next(listings, None) or segment_names(path))
    assert set(store.view().lengths()) == {"v1", "v2", "v3"}

    open_data = FeatureSegment._open_data

    def compact_first(segment: FeatureSegment) -> None:  # between the index and the data
        monkeypatch.setattr(FeatureSegment, "_open_data", open_data)
        store.compact({"v1": "k", "v2": "k"})
        segment._open_data()

    monkeypatch.setattr(FeatureSegment, "_open_data", compact_first)
    view = store.view()
    assert view.fresh({f"v{n}": "k" for n in range(4)}) == {"v1", "v2"} and all_right(view)


def test_everything_is_on_disk_before_the_index_is_there(tmp_path, monkeypatch):
    store = make(tmp_path / "s")
    synced: set[str] = set()
    fsync = os.fsync

    def noting(handle: int) -> None:
        fsync(handle)
        if not list(store.path.glob("*/index.parquet")):
            synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))

    monkeypatch.setattr(os, "fsync", noting)
    make(tmp_path / "s", 1)
    (segment,) = (store.path / name for name in segment_names(store.path))
    wanted = {str(path) for path in [segment, *segment.rglob("*")]} - {str(segment / "index.parquet")}
    assert len(wanted) == 5 and wanted <= synced
    assert any("index.parquet" in path for path in synced)


def test_a_compaction_killed_before_it_removes_leaves_a_valid_store(tmp_path):
    store = make(tmp_path / "s", 1, 2)
    make(tmp_path / "s", 3)
    digest = store.digest()
    shutil.copytree(tmp_path / "s", tmp_path / "before")
    store.compact()
    for name in segment_names(tmp_path / "before"):  # as if the old segments had not been removed yet
        shutil.copytree(tmp_path / "before" / name, tmp_path / "s" / name)
    shutil.copytree(tmp_path / "s" / name, tmp_path / "s" / f".dead-{name}")  # or half
    assert len(segment_names(store.path)) == 3
    assert store.digest() == digest and len(store.view()) == 3
    store.compact()
    assert store.digest() == digest and len(segment_names(store.path)) == 1
    assert not list(store.path.glob(".dead-*"))


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_lost_chunk_is_an_error_is_not_fresh_and_heals(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(segments_module, "CHUNK_BYTES", 5 * D * 2)
    store = make(tmp_path / "s", 4, 9, 14)
    digest = store.digest()
    chunk = only_chunk(store, 1)
    chunk.unlink() if damage == "missing" else os.truncate(chunk, 7)
    view = store.view()
    assert np.array_equal(view.read("v4"), features(4))
    for read in (view.read, lambda video_id: view.read_batch([video_id])):
        with pytest.raises(StorageError, match=rf"v9 are lost.*c\.1\.0.*{chunk.parent.parent.name}.*longtake extract"):
            read("v9")
    assert view.fresh({"v4": "k", "v9": "k", "v14": "k"}) == {"v4", "v14"}
    assert {problem.kind for problem in store.verify()} == {"chunk", "row"}
    make(tmp_path / "s", 9)
    assert store.digest() == digest
    store.compact()
    assert store.verify() == [] and store.digest() == digest


def test_a_lost_chunk_does_not_lose_the_empty_rows_inside_it(tmp_path):
    store = make(tmp_path / "s")
    with store.writer() as writer:
        for n in (4, 9):
            writer.add(f"v{n}", "k", features(n))
            writer.add(f"silent{n}", "k", np.zeros((0, D)))
    only_chunk(store).unlink()
    view = store.view()
    assert view.fresh(dict.fromkeys(view.lengths(), "k")) == {"silent4", "silent9"}
    assert {problem.item for problem in store.verify() if problem.kind == "row"} == {"v4", "v9"}


def test_flipped_bits_are_found_and_never_copied(tmp_path):
    store = make(tmp_path / "s", 1, 2)
    data = bytearray(only_chunk(store).read_bytes())
    data[-1] ^= 1
    only_chunk(store).write_bytes(data)
    seen: list[tuple[int, int]] = []
    problems = store.verify(lambda *counts: seen.append(counts))
    assert [(problem.item, problem.kind) for problem in problems] == [("v2", "row")] and seen == [(1, 2), (2, 2)]
    assert "verify --drop" in problems[0].reason and "longtake run" in problems[0].reason
    with pytest.raises(StorageError, match="v2 differ from their checksum"):
        store.compact({"v2": "k"})
    assert len(store.view()) == 2


def test_bad_rows_are_dropped_by_themselves_and_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(segments_module, "CHUNK_BYTES", 5 * D * 2)
    store = make(tmp_path / "s", 4, 9, 14, 19)
    make(tmp_path / "s", 24)
    digest = store.digest()
    first, other = segment_names(store.path)
    data = bytearray((store.path / first / "data/c.0.0").read_bytes())
    data[0] ^= 1
    (store.path / first / "data/c.0.0").write_bytes(data)
    (store.path / first / "data/c.2.0").unlink()
    os.truncate(store.path / other / "index.parquet", 40)
    assert {problem.kind for problem in store.verify()} == {"row", "chunk", "index"}
    assert store.drop_bad() == 3  # two rows and the segment that nobody can read any more
    assert store.verify() == [] and set(store.view().lengths()) == {"v9", "v19"} and all_right(store.view())
    assert store.drop_bad() == 0
    make(tmp_path / "s", 4, 14, 24)
    assert store.digest() == digest


@pytest.mark.parametrize("damage", ["short", "other"])
def test_a_damaged_index_names_the_segment(tmp_path, damage):
    store = make(tmp_path / "s", 1)
    (name,) = segment_names(store.path)
    index = store.path / name / "index.parquet"
    index.write_bytes(index.read_bytes()[:-9] if damage == "short" else b"PAR1 no")
    with pytest.raises(StorageError, match=f"{name}.*index cannot be read.*remove that folder"):
        store.view()
    (problem,) = store.verify()
    assert problem.kind == "index" and "remove that folder" in problem.reason and "--drop" in problem.reason


def test_leftovers_of_dead_writers_go_and_those_of_living_stay(tmp_path):
    store = make(tmp_path / "s", 1)
    (name,) = segment_names(store.path)
    stamp, machine, pid, _ = name.split("-")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, living, foreign, old = (
        store.path / f"{stamp}-{where}-{who}-{n:08x}"
        for n, (where, who) in enumerate([(machine, ended.pid), (machine, pid), ("0" * 8, 1), ("0" * 8, 1)])
    )
    for folder in (dead, living, foreign, old):
        shutil.copytree(store.path / name, folder)
        (folder / "index.parquet").unlink()
    os.utime(old, (time.time() - 4000,) * 2)
    assert len(store.view()) == 1
    assert {problem.item for problem in store.verify()} == {dead.name, old.name}
    assert store.compact().leftovers == 2
    assert set(segment_names(store.path)) == {name, living.name, foreign.name}


def test_killed_and_resumed_writing_equals_undisturbed_writing(tmp_path):
    chance = random.Random(7)
    numbers = range(100)
    counts = []
    for _ in range(5):
        with start_writer(tmp_path / "s", 0.0, numbers) as process:
            time.sleep(chance.uniform(0.02, 0.4))
            process.send_signal(signal.SIGKILL)
        view = FeatureStore.open(tmp_path / "s").view()
        counts.append(len(view))
        assert all_right(view)
    assert counts == sorted(counts) and counts[0] < len(numbers) and counts[-1] > 0
    with start_writer(tmp_path / "s", 0.02, numbers) as process:
        assert process.wait() == 0
    store = FeatureStore.open(tmp_path / "s")
    assert store.digest() == make(tmp_path / "undisturbed", *numbers).digest()
    assert store.verify() == []


def test_two_writers_and_a_compaction_at_once_lose_nothing(tmp_path):
    with start_writer(tmp_path / "s", 0.0, range(0, 40)) as one, start_writer(tmp_path / "s", 0.05, range(20, 60)) as two:
        store = FeatureStore.open(tmp_path / "s")
        seen = 0
        while one.poll() is None or two.poll() is None:
            store.compact()
            view = store.view()
            assert len(view) >= seen
            seen = len(view)
            assert all_right(view)
        assert (one.returncode, two.returncode) == (0, 0)
    assert store.digest() == make(tmp_path / "alone", *range(60)).digest()
    assert store.verify() == []
