"""The cache of source files: hashing only what changed, several processes at once, and damage in plain words."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import StorageError
from storage.files import file_cache as module
from storage.files.file_cache import CachedProbe, FileCache, _pack, _unpack
from storage.files.hashing import digest, digest_file, digest_rows

WRITER = """
import sys
from pathlib import Path
from storage.files.file_cache import FileCache, CachedProbe
cache, who = FileCache(Path(sys.argv[1])), sys.argv[2]
for turn in range(25):
    cache.note_probes({f"{who}-{turn}": CachedProbe({"frames": turn}, None)}, 1)
    cache.note_failure(f"{who}-{turn}", "extractor", "truncated", "ends early")
"""


@pytest.fixture
def file_cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "ledger.sqlite")


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Three files that are old enough to be trusted."""
    root = tmp_path / "videos"
    root.mkdir()
    for name in ("a", "b", "c"):
        (root / name).write_text(f"content of {name}")
        age(root / name)
    return root


def age(path: Path, seconds: float = 3600) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were really read, in order."""
    names: list[str] = []

    def counted(path: Path) -> str:
        names.append(path.name)
        return digest_file(path)

    monkeypatch.setattr(module, "digest_file", counted)
    return names


def test_unchanged_files_are_hashed_once(file_cache: FileCache, videos: Path, hashed: list[str]) -> None:
    first = file_cache.fingerprint(videos, ["a", "b", "c"])
    assert sorted(hashed) == ["a", "b", "c"]
    assert file_cache.fingerprint(videos, ["a", "b", "c"]) == first
    assert FileCache(file_cache.path).fingerprint(videos, ["c", "b"]) == {"b": first["b"], "c": first["c"]}
    assert len(hashed) == 3
    assert first == {name: digest_file(videos / name) for name in ("a", "b", "c")}


def test_a_touched_file_is_hashed_again_to_the_same_key(file_cache: FileCache, videos: Path, hashed: list[str]) -> None:
    first = file_cache.fingerprint(videos, ["a", "b", "c"])
    age(videos / "b", 1800)
    assert file_cache.fingerprint(videos, ["a", "b", "c"]) == first
    assert hashed[3:] == ["b"]
    file_cache.fingerprint(videos, ["a", "b", "c"])
    assert hashed[4:] == [], "its new time is known now"


def test_changed_bytes_change_that_key_only(file_cache: FileCache, videos: Path) -> None:
    first = file_cache.fingerprint(videos, ["a", "b", "c"])
    (videos / "b").write_text("CONTENT OF b")
    second = file_cache.fingerprint(videos, ["a", "b", "c"])
    assert {name for name in first if first[name] != second[name]} == {"b"}


def test_a_file_replaced_by_one_of_equal_size_and_time_is_noticed(file_cache: FileCache, videos: Path) -> None:
    first, stat = file_cache.fingerprint(videos, ["a"]), (videos / "a").stat()
    (videos / "new").write_text("CONTENT OF a")
    os.utime(videos / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (videos / "new").replace(videos / "a")
    assert (videos / "a").stat().st_mtime_ns == stat.st_mtime_ns
    assert file_cache.fingerprint(videos, ["a"]) != first


def test_a_young_file_is_not_trusted_by_its_time(file_cache: FileCache, videos: Path) -> None:
    (videos / "a").write_text("first")
    first, stat = file_cache.fingerprint(videos, ["a"]), (videos / "a").stat()
    with (videos / "a").open("r+") as file:
        file.write("2nd..")
    os.utime(videos / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a clock of coarse ticks would leave it
    assert file_cache.fingerprint(videos, ["a"]) != first


def test_a_missing_file_and_a_folder_have_no_key(file_cache: FileCache, videos: Path) -> None:
    (videos / "folder").mkdir()
    found = file_cache.fingerprint(videos, ["a", "never", "folder", "a/below"])
    assert found == {"a": digest_file(videos / "a"), "never": None, "folder": None, "a/below": None}
    (videos / "a").unlink()
    assert file_cache.fingerprint(videos, ["a"]) == {"a": None}


def test_equal_names_below_other_roots_are_other_files(file_cache: FileCache, videos: Path, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a").write_text("something else")
    age(tmp_path / "others" / "a")
    assert file_cache.fingerprint(videos, ["a"]) != file_cache.fingerprint(tmp_path / "others", ["a"])
    assert file_cache.fingerprint(videos, ["a"]) == {"a": digest_file(videos / "a")}


def test_progress_counts_the_files_that_are_hashed(file_cache: FileCache, videos: Path) -> None:
    seen: list[tuple[int, int]] = []
    file_cache.fingerprint(videos, ["a", "b"], lambda done, total: seen.append((done, total)))
    file_cache.fingerprint(videos, ["a", "b", "c"], lambda done, total: seen.append((done, total)))
    assert seen == [(2, 2), (1, 1)]


def test_probes_survive_with_their_times_and_reasons(file_cache: FileCache) -> None:
    pts = np.array([0.0, 1 / 24, 0.5, 3.25])
    file_cache.note_probes(
        {"good": CachedProbe({"frames": 4, "fps": 24.0}, pts), "bad": CachedProbe(None, None, "empty", "no byte")}, 1
    )
    found = file_cache.probes(["good", "bad", "never"], 1)
    assert set(found) == {"good", "bad"}
    assert found["good"].metadata == {"frames": 4, "fps": 24.0}
    assert found["good"].pts is not None and np.abs(found["good"].pts - pts).max() <= 1e-9
    assert (found["bad"].metadata, found["bad"].bad_kind, found["bad"].bad_reason) == (None, "empty", "no byte")
    assert file_cache.probes(["good"], 1, times=False)["good"].pts is None
    assert file_cache.probes(["good"], 2) == {}, "another version of probing finds other facts"
    file_cache.forget_probes(["bad"], 1)
    assert set(file_cache.probes(["good", "bad"], 1)) == {"good"}


def test_more_keys_than_a_query_may_have(file_cache: FileCache) -> None:
    keys = [f"key-{n}" for n in range(3000)]
    file_cache.note_probes({key: CachedProbe({"frames": 1}, None) for key in keys[::2]}, 1)
    assert list(file_cache.probes(keys + keys, 1)) != [] and set(file_cache.probes(keys + keys, 1)) == set(keys[::2])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-10, 1e6), max_size=200))
def test_times_are_kept_to_a_nanosecond(times: list[float]) -> None:
    kept = _unpack(_pack(np.array(times, dtype=np.float64)))
    assert kept is not None and len(kept) == len(times)
    assert all(abs(a - b) <= 1e-9 for a, b in zip(kept, times, strict=True))
    assert _unpack(_pack(kept)).tolist() == kept.tolist(), "a second trip changes nothing"  # type: ignore[union-attr]


def test_a_constant_frame_rate_takes_little_room() -> None:
    packed = _pack(np.arange(20_000) / 25)
    assert packed is not None and len(packed) < 1000


def test_failures_belong_to_their_extractor(file_cache: FileCache) -> None:
    file_cache.note_failure("video", "extractor", "timeout", "no answer")
    file_cache.note_failure("video", "extractor", "crashed", "the decoder died")
    assert file_cache.failures("extractor") == {"video": ("crashed", "the decoder died")}
    assert file_cache.failures("another") == {}
    file_cache.forget_failures("extractor")
    assert file_cache.failures("extractor") == {}


def test_processes_that_write_at_once_on_a_new_ledger_all_succeed(file_cache: FileCache) -> None:
    command = [sys.executable, "-c", WRITER, str(file_cache.path)]
    writers = [subprocess.Popen([*command, who], stderr=subprocess.PIPE, text=True) for who in "abcd"]
    errors = [writer.communicate(timeout=60)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0], errors
    assert len(file_cache.probes([f"{who}-{turn}" for who in "abcd" for turn in range(25)], 1)) == 100
    assert len(file_cache.failures("extractor")) == 100


def test_a_ledger_that_somebody_is_just_making_is_waited_for(file_cache: FileCache) -> None:
    other = sqlite3.connect(file_cache.path, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")  # sqlite refuses to switch the journal now, at once and whatever its timeout is
    threading.Timer(0.2, other.close).start()
    file_cache.note_failure("video", "extractor", "timeout", "no answer")
    assert set(file_cache.failures("extractor")) == {"video"}


@pytest.mark.parametrize("damage", ["text", "torn"])
def test_a_damaged_file_is_named_with_what_to_do_and_can_be_deleted(file_cache: FileCache, videos: Path, damage: str) -> None:
    file_cache.note_probes({f"key-{n}": CachedProbe({"frames": n}, np.arange(50.0)) for n in range(500)}, 1)
    data = file_cache.path.read_bytes()
    file_cache.path.write_bytes(b"these are not the tables you are looking for" * 50 if damage == "text" else data[:5000])
    with pytest.raises(StorageError, match=r"ledger\.sqlite is damaged .*; delete it: all of it will be found again"):
        file_cache.fingerprint(videos, ["a"])
        file_cache.probes([f"key-{n}" for n in range(500)], 1)
    file_cache.path.unlink()
    assert file_cache.fingerprint(videos, ["a"]) == {"a": digest_file(videos / "a")}


def test_a_ledger_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot use .*ledger\.sqlite.*full or read-only"):
        FileCache(tmp_path / "no such folder" / "ledger.sqlite").failures("extractor")


def test_digests_tell_values_and_rows_apart() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert len({digest(1), digest("1"), digest([1]), digest(1, 1), digest(None), digest(True), digest(1.5)}) == 7
    assert digest_rows([["ab", "c"]]) != digest_rows([["a", "bc"]])
    assert digest_rows([["a"], ["b"]]) != digest_rows([["a", "b"]])
    assert digest_rows([["a", ""]]) != digest_rows([["a"]])
    assert digest_rows([["\udce9"]]) != digest_rows([["?"]])
