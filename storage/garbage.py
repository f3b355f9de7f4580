"""Garbage collection: results and feature stores that no kept run refers to, and left-overs of killed writers."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from storage.atomic import TEMP_MARK
from storage.errors import explained
from storage.runs import latest_runs
from storage.workspace import Workspace

_OLD_SECONDS = 3600  # a temporary file younger than this may belong to a living writer


@dataclass(frozen=True)
class Garbage:
    """One thing that can go, and why."""

    path: Path
    reason: str
    nbytes: int


def find_garbage(workspace: Workspace, keep: int = 1) -> list[Garbage]:
    """What no one of the newest `keep` runs of each recipe refers to. Imported features are never garbage."""
    runs = latest_runs(workspace, keep)
    kept_results = {(stage, key) for run in runs for stage, key in run.stages.values()}
    kept_stores = {store for run in runs for store in run.stores}
    found = []
    artifacts = workspace.root / "artifacts"
    for folder in sorted(artifacts.glob("*/*")):
        stage, key = folder.parent.name, folder.name
        if (stage, key) not in kept_results and not workspace.locked(lock_name(stage, key)):
            found.append(Garbage(folder, f"no kept run uses this {stage}", _size(folder)))
    for store in sorted(workspace.features.glob("*/*")):
        relative = str(store.relative_to(workspace.features))
        if store.parent.name != "imported" and relative not in kept_stores:
            found.append(Garbage(store, "no kept run reads these features", _size(store)))
    doomed = {item.path for item in found}
    for path in sorted(workspace.root.rglob(f"*{TEMP_MARK}*")):
        old = time.time() - path.stat().st_mtime > _OLD_SECONDS
        if old and not doomed.intersection(path.parents):
            found.append(Garbage(path, "left over from a killed writer", _size(path)))
    return found


def collect(workspace: Workspace, garbage: list[Garbage]) -> None:
    for item in garbage:
        with explained(item.path):
            if item.path.is_dir():
                (item.path / "done.json").unlink(missing_ok=True)  # first: nothing half-removed may look done
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)


def lock_name(stage: str, key: str) -> str:
    return f"{stage}-{key}"


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)
