"""A small data set and a workspace in which a small recipe is carried out, without Prefect: what the plans' tests change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from flows.execute import new_record
from flows.pipeline import plan_pipeline
from flows.plan import Plan
from flows.recipe import Recipe, check_recipe
from storage.catalogue import Catalogue
from storage.runs import save_run
from storage.workspace import Workspace

TOY = Path(__file__).with_name("toy.yaml")
FRAMES = "sample_frames[clips]"
LABELS = ["catalogue", "prepare_text", FRAMES, "train_tagger", "extract_features", "seed", "caption", "evaluate", "report"]
AFTER_SEED = ["seed", "caption", "evaluate", "report"]
TEST_VIDEOS = ["catalogue", FRAMES, "extract_features", "caption", "evaluate", "report"]


def recipe_on(data: Path, **changes: Any) -> Recipe:
    """The toy recipe; changes are written as section__key=value."""
    values: dict[str, Any] = yaml.safe_load(TOY.read_text())
    values["dataset"]["path"] = str(data)
    for place, value in changes.items():
        *parents, last = place.split("__")
        section = values
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return check_recipe(values, "of the test")


def noted(plan: Plan, state: str = "done") -> None:
    """Keep a record of the run, as a run does."""
    save_run(plan.workspace, replace(new_record(plan), started_at="2024-01-01T00:00:00Z", state=state))


def executed(plan: Plan) -> list[str]:
    """Do what the plan says; the labels of the steps that were computed."""
    computed = [step.label for step in plan.steps if step.execute(step.state == "forced")[1]]
    noted(plan)
    return computed


class Place:
    """A copy of the finished folder that a test may change."""

    def __init__(self, root: Path):
        self.root, self.data = root, root / "data"
        self.workspace = Workspace.open(root / "workspace")
        folder = self.plan().steps[0].folder
        self.records = Catalogue(folder, self.data).records

    def plan(self, force: Iterable[str] = (), until: str | None = None, **changes: Any) -> Plan:
        return plan_pipeline(recipe_on(self.data, **changes), self.workspace, force, until)

    def to_do(self, **changes: Any) -> dict[str, str]:
        """label -> why, of the steps that a run would make; all of them stale."""
        plan = self.plan(**changes)
        assert {step.state for step in plan.to_do} <= {"stale"}
        return {step.label: step.reason for step in plan.to_do}

    def clip(self, split: str, n: int = 0) -> Path:
        sources = [record.source for record in self.records.values() if record.split == split]
        return self.data / str(sources[n])

    def folder(self, label: str) -> Path:
        step = self.plan().step(label)
        assert step is not None
        return step.folder
