"""Garbage collection: results and feature stores that no kept run refers to, and left-overs of killed writers."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from storage.datasets.user_files import USER_FILES
from storage.errors import wrap_os_errors
from storage.files.atomic import TEMP_MARK
from storage.runs import RunRecord, latest_runs, load_runs
from storage.workspace import Workspace

_OLD_SECONDS = 3600  # a temporary file younger than this may belong to a living writer


@dataclass(frozen=True)
class GarbageItem:
    """One thing that can go, and why."""

    path: Path
    reason: str
    nbytes: int


def find_garbage(workspace: Workspace, keep: int = 1) -> list[GarbageItem]:
    """What none of the newest `keep` runs of each recipe refers to. Imported features are never garbage; those of user files stay
    as long as a kept run extracts its own in the same way."""
    runs = latest_runs(workspace, keep)
    users: dict[tuple[str, str], RunRecord] = {}  # result -> the newest run that used it
    for run in load_runs(workspace):
        for result in run.stages.values():
            users.setdefault(result, run)
    kept_results = {(stage, key) for run in runs for stage, key in run.stages.values()}
    kept_stores = {store for run in runs for store in run.stores}
    kept_stores |= {f"{USER_FILES}/{Path(store).name}" for store in kept_stores}
    found = []
    for folder in sorted((workspace.root / "artifacts").glob("*/*")):
        stage, key = folder.parent.name, folder.name
        if (stage, key) not in kept_results and not workspace.locked(lock_name(stage, key)):
            of = f"of {users[stage, key].described}; " if (stage, key) in users else ""
            found.append(GarbageItem(folder, f"{of}no kept run uses this {stage}", _size(folder)))
    for store in sorted(workspace.features.glob("*/*")):
        relative = str(store.relative_to(workspace.features))
        if store.parent.name != "imported" and relative not in kept_stores:
            found.append(GarbageItem(store, "no kept run reads these features", _size(store)))
    for path in sorted(_left_overs(workspace.root, {item.path for item in found})):
        found.append(GarbageItem(path, "left over from a killed writer", _size(path)))
    return found


def _left_overs(root: Path, doomed: set[Path]) -> Iterator[Path]:
    """Old temporary files and folders outside of what goes anyway. Living writers make and remove theirs meanwhile."""
    for parent, folders, files in os.walk(root):
        here = Path(parent)
        folders[:] = [name for name in folders if here / name not in doomed]
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                if TEMP_MARK in name and time.time() - (here / name).lstat().st_mtime > _OLD_SECONDS:
                    yield here / name
        folders[:] = [name for name in folders if TEMP_MARK not in name]


def collect(workspace: Workspace, garbage: list[GarbageItem]) -> None:
    """Remove what was found, but for results that a process has begun to recompute since."""
    for item in garbage:
        is_result = item.path.parent.parent == workspace.root / "artifacts"
        if is_result and workspace.locked(lock_name(item.path.parent.name, item.path.name)):
            continue
        with wrap_os_errors(item.path):
            if item.path.is_dir():
                (item.path / "done.json").unlink(missing_ok=True)  # first: nothing half-removed may look done
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)


def lock_name(stage: str, key: str) -> str:
    return f"{stage}-{key}"


def _size(path: Path) -> int:
    size = 0
    for file in (path, *(Path(parent) / name for parent, _, files in os.walk(path) for name in files)):
        with suppress(FileNotFoundError):
            stat = file.lstat()
            size += stat.st_size if S_ISREG(stat.st_mode) else 0
    return size
