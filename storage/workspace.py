"""The folder of one project: where every stage keeps its result, the done-markers that are written last, and locks.

workspace.json              format of this folder
artifacts/<stage>/<key>/    the result of one stage; it exists once done.json is there
features/                   Zarr feature stores
runs/<recipe>/<id>.json     what each run used; what no run refers to can be collected
ledger.sqlite               what is known of source files: fingerprints, probes, failures
locks/                      lock files; the kernel frees the lock of a killed process"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import StorageError, explain_os_error, wrap_os_errors
from storage.files.atomic import TEMP_MARK, write_json
from storage.files.locks import is_locked, named_lock
from storage.records import ArtifactRef

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")


@dataclass(frozen=True)
class Completion:
    """The done-marker of a stage's result: its inputs, how long it took, and its files."""

    ref: ArtifactRef
    stage: str
    ingredients: dict[str, Any]
    seconds: float
    made_at: str
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)


def _safe(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise StorageError(f"'{name}' cannot be the name of a folder in the workspace; use letters, digits, . _ and -")
    return name


@dataclass(frozen=True)
class Workspace:
    """One project's folder. Cheap to open; all state is on disk."""

    root: Path

    @classmethod
    def open(cls, root: Path | str) -> Workspace:
        """Open the workspace, or make it if the folder is new or empty. Several may make it at once: whose marker is last
        does not matter, and a marker on its way (or left by a killed writer) is no foreign file."""
        root = Path(root).expanduser().absolute()
        marker, temporary = root / "workspace.json", f"workspace.json{TEMP_MARK}"
        try:
            if not marker.is_file():
                # the marker comes before all else, so a process that sees other files first checks for it once more
                names = [path.name for path in root.iterdir()] if root.is_dir() else []
                if not all(name.startswith(temporary) for name in names) and not marker.is_file():
                    remedy = "choose a new or empty folder with --workspace"
                    raise StorageError(f"{root} is not empty and not a Longtake workspace; {remedy}")
                root.mkdir(parents=True, exist_ok=True)
                write_json(marker, {"format": FORMAT})
            found = json.loads(marker.read_bytes())["format"]
            if found != FORMAT:
                what = f"a workspace of format {found}, this Longtake reads {FORMAT}"
                raise StorageError(f"{root} is {what}; choose another --workspace")
        except OSError as error:
            raise explain_os_error(error, root) from error
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{marker} is damaged ({error}); restore it or choose another --workspace") from error
        return cls(root)

    @property
    def file_cache_path(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def features(self) -> Path:
        return self.root / "features"

    def feature_store(self, dataset: str, name: str) -> Path:
        return self.features / _safe(dataset) / _safe(name)

    def folder(self, stage: str, key: str) -> Path:
        return self.root / "artifacts" / _safe(stage) / _safe(key)

    def done(self, stage: str, key: str) -> Completion | None:
        """The done-marker of a result, or None if it was never finished or its files are gone."""
        folder = self.folder(stage, key)
        done = read_done(folder)
        try:
            whole = done and all((folder / name).stat().st_size == size for name, size in done.files.items())
        except (FileNotFoundError, NotADirectoryError):
            return None
        return done if whole else None

    def finish(self, done: Completion) -> None:
        """Publish a result: note its files and sizes, then write done.json, last. What a killed writer left behind is no
        part of the result: it may be collected at any time."""
        folder = self.folder(done.stage, done.ref.key)
        with wrap_os_errors(folder):
            files = [path for path in sorted(folder.rglob("*")) if path.is_file() and TEMP_MARK not in path.name]
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files if path.name != "done.json"}
            write_json(folder / "done.json", {**asdict(done), "ref": done.ref.to_json(), "files": sizes})

    def discard(self, stage: str, key: str) -> None:
        """Forget a result so that it is recomputed: the marker goes first, so nothing half-removed looks done."""
        folder = self.folder(stage, key)
        with wrap_os_errors(folder):
            (folder / "done.json").unlink(missing_ok=True)
            if folder.is_dir():
                shutil.rmtree(folder)

    def lock(self, name: str, waiting: Callable[[str], None] | None = None) -> AbstractContextManager[None]:
        """Hold a named lock. A second process waits, and `waiting` hears who holds it."""
        return named_lock(self._lock_path(name), waiting)

    def locked(self, name: str) -> bool:
        """Whether a process holds the lock at this moment."""
        return is_locked(self._lock_path(name))

    def _lock_path(self, name: str) -> Path:
        return self.root / "locks" / f"{_safe(name)}.lock"


def read_done(folder: Path) -> Completion | None:
    """The done-marker in a folder, if there is a whole one."""
    try:
        data = json.loads((folder / "done.json").read_bytes())
        done = Completion(**{**data, "ref": ArtifactRef.from_json(data["ref"])})
        if done.ref.uri != f"artifacts/{folder.parent.name}/{folder.name}":
            raise ValueError(f"it speaks of {done.ref.uri!r:.100}")  # which may lie outside of the workspace
        return done
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{folder / 'done.json'} is damaged ({error}); remove that folder and run again") from error
