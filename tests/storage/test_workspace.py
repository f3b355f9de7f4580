"""The workspace: opening and refusing folders, results that exist only when whole, locks that a kill frees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.files.atomic import TEMP_MARK
from storage.records import ArtifactRef
from storage.workspace import FORMAT, Completion, Workspace

KEY = "0123abcd"
HOLDER = """
import sys, time
from storage.workspace import Workspace
with Workspace.open(sys.argv[1]).lock("seed-1"):
    print("held", flush=True)
    time.sleep(120)
"""


def finished(workspace: Workspace, made_at: str = "2024-01-01T00:00:00Z", key: str = KEY) -> Completion:
    """A result of two files, published."""
    folder = workspace.folder("seed", key)
    (folder / "more").mkdir(parents=True)
    (folder / "weights").write_bytes(b"12345")
    (folder / "more" / "curve").write_bytes(b"1")
    ref = ArtifactRef("seed", f"artifacts/seed/{key}", key, count=7, made_by="seed v1", parts={"a": "b"})
    done = Completion(ref, "seed", {"version": 1}, 1.5, made_at, {"loss": 0.5})
    workspace.finish(done)
    return done


def test_a_new_folder_becomes_a_workspace_with_its_parents(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    assert Workspace.open(root).root == root
    assert json.loads((root / "workspace.json").read_text()) == {"format": FORMAT}
    assert Workspace.open(root) == Workspace.open(str(root))


def test_an_empty_folder_becomes_a_workspace(tmp_path: Path) -> None:
    Workspace.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["workspace.json"]


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StorageError, match="not empty and not a Longtake workspace; choose a new or empty folder"):
        Workspace.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_marker_that_a_killed_writer_left_half_written_is_no_strangers_file(tmp_path: Path) -> None:
    (tmp_path / f"workspace.json{TEMP_MARK}0123456789ab").write_text('{"for')
    assert Workspace.open(tmp_path).root == tmp_path
    assert json.loads((tmp_path / "workspace.json").read_text()) == {"format": FORMAT}


def test_a_workspace_made_by_many_at_once_refuses_nobody(tmp_path: Path) -> None:
    def make(root: Path) -> None:
        Workspace.open(root).file_cache_path.touch()  # the first of its files

    with ThreadPoolExecutor(8) as pool:
        for number in range(60):
            root = tmp_path / str(number)
            list(pool.map(make, [root] * 8))
            assert sorted(path.name for path in root.iterdir()) == ["ledger.sqlite", "workspace.json"]


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workspace.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(StorageError, match=rf"format {FORMAT + 1}, this Longtake reads {FORMAT}.*--workspace"):
        Workspace.open(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"format"', "\xff"])
def test_a_damaged_marker_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "workspace.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(StorageError, match=r"workspace\.json is damaged .*; restore it or choose another --workspace"):
        Workspace.open(tmp_path)


def test_a_file_where_the_folder_should_be_and_places_that_refuse_even_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refusing = [tmp_path / "file", tmp_path / "file" / "below", Path("/proc/sys/longtake"), Path("/sys/longtake")]
    for root in refusing:
        with pytest.raises(StorageError, match=rf"cannot write {root}.*; .*") as caught:
            Workspace.open(root)
        message = str(caught.value)
        assert "\n" not in message and "Errno" not in message and "Traceback" not in message and "Error" not in message
        assert "--workspace" in message or "check the disk" in message
    assert (tmp_path / "file").read_text() == "mine"


def test_a_result_exists_once_it_is_finished(workspace: Workspace) -> None:
    assert workspace.done("seed", KEY) is None
    done = finished(workspace)
    found = workspace.done("seed", KEY)
    assert found is not None
    assert (found.ref, found.ingredients, found.seconds, found.summary) == (done.ref, {"version": 1}, 1.5, {"loss": 0.5})
    assert found.files == {"weights": 5, "more/curve": 1}


def test_a_result_whose_marker_cannot_be_written_does_not_exist(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("storage.workspace.write_json", full)
    with pytest.raises(StorageError, match="disk is full"):
        finished(workspace)
    assert workspace.done("seed", KEY) is None


@pytest.mark.parametrize("name", ["weights", "more/curve"])
def test_a_result_with_a_missing_file_is_not_done(workspace: Workspace, name: str) -> None:
    finished(workspace)
    (workspace.folder("seed", KEY) / name).unlink()
    assert workspace.done("seed", KEY) is None


def test_a_result_with_a_file_of_another_size_is_not_done(workspace: Workspace) -> None:
    finished(workspace)
    (workspace.folder("seed", KEY) / "weights").write_bytes(b"123")
    assert workspace.done("seed", KEY) is None


def test_a_result_with_a_folder_replaced_by_a_file_is_not_done(workspace: Workspace) -> None:
    finished(workspace)
    folder = workspace.folder("seed", KEY)
    (folder / "more" / "curve").unlink()
    (folder / "more").rmdir()
    (folder / "more").write_text("?")
    assert workspace.done("seed", KEY) is None


def test_a_temp_file_of_a_killed_writer_is_no_part_of_the_result(workspace: Workspace) -> None:
    folder = workspace.folder("seed", KEY)
    folder.mkdir(parents=True)
    left_over = folder / "weights.tmp-0123456789ab"
    left_over.write_text("half")
    finished(workspace)
    left_over.unlink(missing_ok=True)
    assert workspace.done("seed", KEY) is not None, "cleaning up must not undo a result"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"ref": 1}', '{"ref": {}, "more": 1}'])
def test_a_damaged_done_marker_is_named_with_what_to_do(workspace: Workspace, content: str) -> None:
    finished(workspace)
    (workspace.folder("seed", KEY) / "done.json").write_text(content)
    with pytest.raises(StorageError, match=r"done\.json is damaged .*; remove that folder and run again"):
        workspace.done("seed", KEY)


def test_a_discarded_result_is_gone_and_discarding_twice_is_fine(workspace: Workspace) -> None:
    finished(workspace)
    workspace.discard("seed", KEY)
    workspace.discard("seed", KEY)
    assert workspace.done("seed", KEY) is None and not workspace.folder("seed", KEY).exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc", "a\n", "-rf", " a", "a b", "é", "x" * 200])
def test_names_that_could_leave_the_workspace_are_refused(workspace: Workspace, name: str) -> None:
    for use in (
        lambda: workspace.folder(name, "key"),
        lambda: workspace.folder("stage", name),
        lambda: workspace.feature_store(name, "scene"),
        lambda: workspace.feature_store("demo", name),
        lambda: workspace.locked(name),
        lambda: workspace.lock(name).__enter__(),
    ):
        with pytest.raises(StorageError, match="cannot be the name of a folder in the workspace"):
            use()


def test_a_second_holder_waits_is_told_by_whom_and_goes_on(workspace: Workspace) -> None:
    told: list[str] = []
    order: list[str] = []

    def second() -> None:
        with workspace.lock("one", told.append):
            order.append("second")

    with workspace.lock("one"):
        assert workspace.locked("one")
        waiter = threading.Thread(target=second)
        waiter.start()
        while not told:
            time.sleep(0.01)
        order.append("first")
    waiter.join(10)
    assert order == ["first", "second"]
    assert told[0].startswith(f"process {os.getpid()} since ")
    assert not workspace.locked("one")


def test_locks_of_other_names_do_not_wait(workspace: Workspace) -> None:
    with workspace.lock("one"), workspace.lock("two"):
        assert workspace.locked("one") and workspace.locked("two") and not workspace.locked("three")


def test_a_block_that_raises_frees_its_lock(workspace: Workspace) -> None:
    with pytest.raises(KeyboardInterrupt), workspace.lock("one"):
        raise KeyboardInterrupt
    assert not workspace.locked("one")


def test_a_killed_holder_frees_its_lock_at_once(workspace: Workspace) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(workspace.root)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        told: list[str] = []
        waiting = threading.Thread(target=lambda: workspace.lock("seed-1", told.append).__enter__())
        waiting.start()
        while not told:
            time.sleep(0.01)
        assert f"process {holder.pid} " in told[0]
        assert waiting.is_alive(), "it waits while the holder lives"
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    waiting.join(5)
    assert not waiting.is_alive()
