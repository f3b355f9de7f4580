"""What each run used: its recipe, its data, and the key of every stage. What no kept run refers to can be collected."""

import json
import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from storage.errors import StorageError, wrap_os_errors
from storage.files.atomic import write_json
from storage.workspace import Workspace


@dataclass(frozen=True)
class RunRecord:
    """One run of a recipe. `stages` maps a stage's label to (stage, key); `stores` are the feature stores it read; `results`
    are what its report reads, by name: "features" -> [(stage, key)], "captioners" -> one or, of an ensemble, several. `name` and
    `note` are the user's words for it, `settings` what --set changed, `warnings` what is suspicious about its captions,
    `scored` how many videos its scores are of (0: not known)."""

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
    results: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    name: str = ""
    note: str = ""
    settings: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    scored: int = 0

    @property
    def title(self) -> str:
        return f"{self.recipe_name} on {self.dataset}"

    @property
    def described(self) -> str:
        """A run in a few words: its id, its name, what it was, and its score."""
        name = f" '{self.name}'" if self.name else ""
        score = f", CIDEr {100 * self.scores['CIDEr']:.1f}" if "CIDEr" in self.scores else f", {self.state}"
        return f"run {self.short_id}{name} ({self.title}{score})"

    @property
    def short_id(self) -> str:
        """The end of the id, short enough to be typed."""
        return self.id.rpartition("-")[2]


def new_run_id() -> str:
    """Ids sort by the time they were given out, to the microsecond."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{uuid4().hex[:6]}"


def save_run(workspace: Workspace, run: RunRecord) -> None:
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", run.recipe_name).strip(".-") or "run"
    path = workspace.root / "runs" / folder / f"{run.id}.json"
    with wrap_os_errors(path):
        write_json(path, asdict(run))


def load_runs(workspace: Workspace) -> list[RunRecord]:
    """All runs, newest first."""
    found = [_load(path) for path in (workspace.root / "runs").glob("*/*.json")]
    return sorted(found, key=lambda run: run.id, reverse=True)


def _load(path: Path) -> RunRecord:
    try:
        data = json.loads(path.read_bytes())
        data["stages"] = {label: (stage, key) for label, (stage, key) in data["stages"].items()}
        named = data["results"] if "results" in data else _results_by_stage(data["stages"])
        data["results"] = {name: [(stage, key) for stage, key in found] for name, found in named.items()}
        lists = {name: tuple(data.get(name, ())) for name in ("stores", "settings", "warnings")}
        return RunRecord(**{**data, **lists})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{path} is damaged ({error}); remove it") from error


_NAMES = {
    **{"catalogue": "catalogue", "prepare_text": "text", "sample_frames": "frame_plans", "train_tagger": "tagger"},
    **{"extract_features": "features", "find_neighbours": "neighbours", "find_key_frames": "key_frames"},
    **{"seed": "seeded", "boost": "boosted", "caption": "captions", "evaluate": "scores"},
}


def _results_by_stage(stages: dict[str, tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """The results of a run that was recorded before records named them (0.1)."""
    results: dict[str, list[tuple[str, str]]] = {}
    for stage, key in stages.values():
        if stage in _NAMES:
            results.setdefault(_NAMES[stage], []).append((stage, key))
    if "key_frames" in results:
        results["refocused"], results["seeded"] = results["seeded"][:1], results["seeded"][1:]
    if trained := results.get("boosted") or results.get("seeded"):
        results["captioners"] = trained
    return results


def latest_runs(workspace: Workspace, keep: int) -> list[RunRecord]:
    """The newest `keep` runs of every (recipe, data set), and the one with the best CIDEr. Only a run that ended well and went as
    far takes an older one's place: a failed run, or one with --until, must not cost the last good result."""
    kept: list[RunRecord] = []
    best: dict[tuple[str, str], RunRecord] = {}
    newer: dict[tuple[str, str], list[set[str]]] = {}
    for run in load_runs(workspace):
        reached = newer.setdefault((run.recipe_name, run.dataset), [])
        names = [stage for stage, _ in run.stages.values()]
        if sum(names[-1] in stages for stages in reached if names) < keep:
            kept.append(run)
        if run.state == "done":
            reached.append(set(names))
        if "CIDEr" in run.scores and keep:
            known = best.setdefault((run.recipe_name, run.dataset), run)
            if run.scores["CIDEr"] > known.scores["CIDEr"]:
                best[run.recipe_name, run.dataset] = run
    return kept + [run for run in best.values() if run not in kept]
