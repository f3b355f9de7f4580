"""Refresh: scan a data set's source, bring features, texts and neighbours up to date, and send an event that says what changed.

Changes are counted from the last run that was recorded as done, and a refresh is recorded after its event was sent: after
a kill in between the next refresh sends it again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.execute import FlowCall, RunOutcome, execute, run_plan, shown_parameters
from flows.pipeline import plan_pipeline
from flows.plan import Plan, runs_like
from flows.recipe import Recipe
from storage.catalogue import Changes
from storage.files.folder_fingerprint import folder_fingerprint
from storage.workspace import Completion, Workspace
from tasks.catalogue import changes_since
from tasks.extraction.pretrained import fetch_weights


@dataclass(frozen=True)
class DatasetChanges:
    """What a scan of the source found: the plan to take it in, and what changed since the last run and training."""

    plan: Plan
    key: str
    last_key: str
    changes: Changes
    since_training: Changes

    @property
    def data_changed(self) -> bool:
        return self.key != self.last_key

    @property
    def any(self) -> bool:
        return self.data_changed or bool(self.plan.to_do)

    def __str__(self) -> str:
        name = self.plan.recipe.dataset.name
        if self.data_changed:
            return f"Refresh {name}: {self.changes}"
        return f"Refresh {name}: " + ("same data, other features" if self.plan.to_do else "nothing changed")


@dataclass(frozen=True)
class Refreshed:
    """The outcome of a refresh."""

    changes: DatasetChanges
    outcome: RunOutcome | None
    retrain: bool

    def payload(self) -> dict[str, Any]:
        """What the event carries and `--json` prints."""
        plan = self.changes.plan
        return {
            "dataset": plan.recipe.dataset.name,
            "data": str(plan.data),
            **asdict(self.changes.changes),
            "key": self.changes.key,
            "since_training": self.changes.since_training.videos,
            "retrain": self.retrain,
        }


def find_changes(recipe: Recipe, workspace: Workspace) -> DatasetChanges:
    """Plan up to the features, and compare the data set with what the last run and the last training had."""
    until = "find_neighbours" if recipe.neighbours else "extract_features"
    plan = plan_pipeline(recipe, workspace, until=until)
    step = plan.steps[0]
    key, last, trained = step.ref.key, _last_catalogue(plan), _last_catalogue(plan, "seed")

    def since(before: Completion | None) -> Changes:
        same = before is not None and before.ref.key == key
        return Changes() if same else changes_since(workspace, before, step.prepared)

    return DatasetChanges(plan, key, last.ref.key if last else "", since(last), since(trained))


def _last_catalogue(plan: Plan, stage: str = "catalogue") -> Completion | None:
    """The catalogue of the last run of this recipe on this data set that ended well and had a stage."""
    for run in runs_like(plan.workspace, plan.recipe):
        if run.state == "done" and stage in run.stages and (done := plan.workspace.done(*run.stages["catalogue"])):
            return done
    return None


def refresh(changes: DatasetChanges, retrain_after: int) -> Refreshed:
    """Take the changes in, inside a flow, and send the event if the data changed."""
    from prefect.logging import get_run_logger

    from flows.orchestration.artifacts import name_run
    from flows.orchestration.events import DATASET_CHANGED, ENOUGH, resource, send

    plan = changes.plan
    retrain = changes.data_changed and changes.since_training.videos >= retrain_after
    if not changes.any:
        name_run(str(changes), {f"recipe:{plan.recipe.name}", f"dataset:{plan.recipe.dataset.name}"})
        return Refreshed(changes, None, False)
    refreshed = Refreshed(changes, None, retrain)

    def announce() -> None:
        about = resource(plan.recipe.dataset.name, plan.recipe.name, str(plan.workspace.root))
        send(DATASET_CHANGED, {**about, ENOUGH: "yes" if retrain else "no"}, refreshed.payload())
        enough = "enough" if retrain else "not enough yet"
        since = f"{changes.since_training} since the last training, {enough} for a new one"
        get_run_logger().info(f"sent {DATASET_CHANGED}: {changes.changes}; {since}")

    outcome = run_plan(plan, str(changes), announce if changes.data_changed else None)
    return Refreshed(changes, outcome, retrain)


def refresh_recipe(recipe: Recipe, workspace: Workspace, retrain_after: int) -> Refreshed:
    """Scan, and if anything changed, run the flow. If nothing changed, nothing is started, Prefect included."""
    fetch_weights(recipe.wanted_nets)
    changes = find_changes(recipe, workspace)
    if not changes.any:
        return Refreshed(changes, None, False)
    parameters = {"run": shown_parameters(changes.plan), "retrain_after": retrain_after}

    def planned_refresh(run: dict[str, Any], retrain_after: int) -> Refreshed:
        return refresh(changes, retrain_after)

    return execute(FlowCall(planned_refresh, "refresh", str(changes), parameters, len(changes.plan.steps)))


def watch(root: Path, every: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Yields at once, and again whenever the folder has changed and then stayed the same for one scan: files that are
    still being copied are waited for."""
    taken = last = folder_fingerprint(root)
    yield
    while True:
        sleep(every)
        seen = folder_fingerprint(root)
        if seen == last and seen != taken:
            taken = seen
            yield
        last = seen
