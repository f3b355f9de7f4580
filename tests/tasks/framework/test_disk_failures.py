"""A disk that is full or refuses: a stage ends in words, the workspace stays valid, and the same stage then succeeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.options import Options
from storage.workspace import Workspace
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageContext, StageResult, stage

# Carries out the real text stage; what happens to the disk meanwhile follows below.
SCRIPT = """
import json, resource, subprocess, sys
from pathlib import Path
from storage.datasets import FolderOptions
from storage.errors import StorageError
from storage.text.vocabulary import TextOptions
from storage.workspace import Workspace
from tasks.catalogue import catalogue
from tasks.prepare_text import prepare_text
from tasks.framework.runtime import Runtime
data, root = Path(sys.argv[1]), Path(sys.argv[2])

def text(workspace):
    runtime = Runtime(decoders=0)
    inputs = catalogue.bind(workspace, data, runtime, FolderOptions(), {})
    inputs.execute()
    return prepare_text.bind(workspace, data, runtime, TextOptions(min_count=1), {"captions": inputs.ref.part("captions")})

def attempt(job):
    try:
        job.execute()
    except StorageError as error:
        return str(error)

def left_over():
    return [str(path) for path in root.rglob("*.tmp-*")]
"""
LIMITED = """
job = text(Workspace.open(root))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
message = attempt(job)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps([message, left_over(), attempt(job), job.find_completion() is not None]))
"""
FULL = """
root.mkdir()
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)]).returncode:
    sys.exit(77)
job = text(Workspace.open(root / "workspace"))
filler = root / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
message = attempt(job)
filler.unlink()
print(json.dumps([message, left_over(), attempt(job), job.find_completion() is not None]))
"""


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (28, "the disk is full: free some room"),
        (30, "read-only: choose another --workspace"),
        (13, "no permission"),
        (5, "check the disk"),
    ],
)
def test_a_failing_disk_is_told_in_words(workspace: Workspace, number: int, remedy: str) -> None:
    @stage(version=1)
    def writes(context: StageContext, options: Options) -> StageResult:
        raise OSError(number, "the system's words", str(context.folder / "big.bin"))

    with pytest.raises(StorageError, match=rf"big\.bin: the system's words; .*{remedy}"):
        writes.bind(workspace, workspace.root, Runtime(), Options(), {}).execute()


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"video": f"v{n}", "caption": f"a caption of number {n}", "split": "train"} for n in range(200)]
    (folder / "captions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for row in rows:
        (folder / f"{row['video']}.mp4").write_bytes(b"")
    return folder


def check(answer: subprocess.CompletedProcess[str], word: str) -> None:
    """The stage failed in one line of words, left nothing half-written, and the same stage then succeeded."""
    assert answer.returncode == 0, answer.stderr
    message, left_over, second, done = json.loads(answer.stdout)
    assert message is not None and word in message and "cannot write" in message and "\n" not in message
    assert left_over == [] and second is None and done is True


@pytest.mark.parametrize("limit", [0, 1000])
def test_a_file_that_may_not_grow_ends_a_stage_in_words_and_loses_nothing(captions: Path, tmp_path: Path, limit: int) -> None:
    command = [sys.executable, "-c", SCRIPT + LIMITED, str(captions), str(tmp_path / "workspace"), str(limit)]
    check(subprocess.run(command, capture_output=True, text=True, check=False), "finished work is kept")


def test_a_full_disk_ends_a_stage_in_words_and_loses_nothing(captions: Path, tmp_path: Path) -> None:
    command = ["unshare", "-Urm", sys.executable, "-c", SCRIPT + FULL, str(captions), str(tmp_path / "disk")]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no 'unshare' here to mount a small disk with")
    if answer.returncode == 77 or "unshare" in answer.stderr:
        pytest.skip("mounting a small disk is not allowed here; the test above does it by a limit")
    check(answer, "the disk is full: free some room")
