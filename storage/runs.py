"""What each run used: its recipe, its data, and the key of every stage. What no kept run refers to can be collected."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from storage.atomic import write_json
from storage.errors import StorageError
from storage.workspace import Workspace


@dataclass(frozen=True)
class RunRecord:
    """One run of a recipe. `stages` maps a stage's label to [stage, key]; `stores` are the feature stores it read."""

    id: str
    recipe_name: str
    dataset: str
    data: str
    recipe: dict[str, Any]
    stages: dict[str, tuple[str, str]]
    stores: tuple[str, ...]
    started_at: str
    state: str = "running"
    finished_at: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    report: str = ""
    quarantined: int = 0

    @property
    def title(self) -> str:
        return f"{self.recipe_name} on {self.dataset}"


def new_run_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid4().hex[:6]}"


def save_run(workspace: Workspace, run: RunRecord) -> None:
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", run.recipe_name).strip(".-") or "run"
    write_json(workspace.root / "runs" / folder / f"{run.id}.json", asdict(run))


def load_runs(workspace: Workspace) -> list[RunRecord]:
    """All runs, newest first."""
    found = []
    for path in (workspace.root / "runs").glob("*/*.json"):
        found.append(_load(path))
    return sorted(found, key=lambda run: run.id, reverse=True)


def _load(path: Path) -> RunRecord:
    try:
        data = json.loads(path.read_text())
        data["stages"] = {label: (stage, key) for label, (stage, key) in data["stages"].items()}
        return RunRecord(**{**data, "stores": tuple(data["stores"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged ({error}); remove it") from error


def latest_runs(workspace: Workspace, keep: int) -> list[RunRecord]:
    """The newest `keep` runs of every (recipe, data set)."""
    kept: list[RunRecord] = []
    counts: dict[tuple[str, str], int] = {}
    for run in load_runs(workspace):
        place = (run.recipe_name, run.dataset)
        counts[place] = counts.get(place, 0) + 1
        if counts[place] <= keep:
            kept.append(run)
    return kept
