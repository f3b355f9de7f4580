"""Refresh: look at a data set's source, bring features, texts and neighbours up to date, tell Prefect what changed.

Changes are told from the last run that was noted as done, and a refresh is noted after it has told: a kill in between
makes the next one tell again, never keep silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.execute import Outcome, run_plan, run_with_prefect
from flows.pipeline import plan_pipeline
from flows.plan import Plan
from flows.recipe import Recipe, recipe_text
from storage.catalogue import Changes
from storage.files.folder_fingerprint import folder_fingerprint
from storage.runs import RunRecord, load_runs
from storage.workspace import Completion, Workspace
from tasks.catalogue import changes_since
from tasks.extraction.pretrained import fetch_weights


@dataclass(frozen=True)
class DatasetChanges:
    """What a look at the source found: the plan to take it in, and what changed since the last run and training."""

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
    """What a refresh came to."""

    news: DatasetChanges
    outcome: Outcome | None
    retrain: bool

    def payload(self) -> dict[str, Any]:
        """What the event and `--json` tell."""
        plan = self.news.plan
        return {
            "dataset": plan.recipe.dataset.name,
            "data": str(plan.data),
            **asdict(self.news.changes),
            "key": self.news.key,
            "since_training": self.news.since_training.videos,
            "retrain": self.retrain,
        }


def find_changes(recipe: Recipe, workspace: Workspace) -> DatasetChanges:
    """Plan up to the features, and compare the data set with what the last run and the last training had."""
    until = "find_neighbours" if recipe.neighbours else "extract_features"
    plan = plan_pipeline(recipe, workspace, until=until)
    step = plan.steps[0]
    key, last, trained = step.job.ref.key, _catalogue_of_last(plan), _catalogue_of_last(plan, "seed")

    def since(before: Completion | None) -> Changes:
        same = before is not None and before.ref.key == key
        return Changes() if same else changes_since(workspace, before, step.job.prepared)

    return DatasetChanges(plan, key, last.ref.key if last else "", since(last), since(trained))


def _catalogue_of_last(plan: Plan, stage: str = "catalogue") -> Completion | None:
    """The catalogue of the last run of this recipe on this data set that ended well and had a stage."""
    name, dataset = plan.recipe.name, plan.recipe.dataset.name

    def fits(run: RunRecord) -> bool:
        return run.state == "done" and (run.recipe_name, run.dataset) == (name, dataset) and stage in run.stages

    for run in filter(fits, load_runs(plan.workspace)):
        if done := plan.workspace.done(*run.stages["catalogue"]):
            return done
    return None


def refresh(news: DatasetChanges, retrain_after: int) -> Refreshed:
    """Take the news in, inside a flow, and send the event if the data changed."""
    from prefect.logging import get_run_logger

    from flows.orchestration.artifacts import name_run
    from flows.orchestration.events import DATASET_CHANGED, ENOUGH, resource, send

    plan = news.plan
    retrain = news.data_changed and news.since_training.videos >= retrain_after
    if not news.any:
        name_run(str(news), {f"recipe:{plan.recipe.name}", f"dataset:{plan.recipe.dataset.name}"})
        return Refreshed(news, None, False)
    refreshed = Refreshed(news, None, retrain)

    def tell() -> None:
        about = resource(plan.recipe.dataset.name, plan.recipe.name, str(plan.workspace.root))
        send(DATASET_CHANGED, {**about, ENOUGH: "yes" if retrain else "no"}, refreshed.payload())
        enough = "enough" if retrain else "not enough yet"
        since = f"{news.since_training} since the last training, {enough} for a new one"
        get_run_logger().info(f"sent {DATASET_CHANGED}: {news.changes}; {since}")

    outcome = run_plan(plan, str(news), tell if news.data_changed else None)
    return Refreshed(news, outcome, retrain)


def refresh_recipe(recipe: Recipe, workspace: Workspace, retrain_after: int) -> Refreshed:
    """Look, and if there is news, run the flow. If nothing changed, nothing is started, Prefect included."""
    fetch_weights(recipe.features.values())
    news = find_changes(recipe, workspace)
    if not news.any:
        return Refreshed(news, None, False)
    from flows.orchestration.flows import refresh_flow

    values = {"recipe": recipe_text(recipe), "workspace": str(workspace.root), "retrain_after": retrain_after}
    refreshed: Refreshed = run_with_prefect(refresh_flow, str(news), values, len(news.plan.steps))
    return refreshed


def watch(root: Path, every: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[None]:
    """Yields at once, and again whenever the folder has changed and then stayed the same for one look: files that are
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
