"""The plan of a run: every stage with its key, whether its result is there, and if not, why it must be made.

Planning reads annotations and looks at files, but computes and writes nothing that a run would: `status`, `--dry-run` and
the run itself all go by the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from flows.recipe import Recipe
from storage.errors import UsageError
from storage.records import ArtifactRef
from storage.runs import load_runs
from storage.workspace import Completion, Workspace, read_done
from tasks.framework.runtime import Runtime
from tasks.framework.stage import Stage, StageRun

State = Literal["done", "stale", "missing", "forced"]


@dataclass(frozen=True)
class Step:
    """One stage of a plan. `why` is empty for a stage whose result is there."""

    job: StageRun
    state: State
    why: str
    done: Completion | None

    @property
    def label(self) -> str:
        return self.job.label

    @property
    def to_do(self) -> bool:
        return self.state != "done"


@dataclass(frozen=True)
class Earlier:
    """What an earlier run made at a step; `done` is None if its files are gone."""

    key: str
    done: Completion | None


@dataclass
class Plan:
    """All steps of a run, in order."""

    recipe: Recipe
    workspace: Workspace
    data: Path
    steps: list[Step] = field(default_factory=list)

    @property
    def to_do(self) -> list[Step]:
        return [step for step in self.steps if step.to_do]

    def step(self, name: str) -> Step | None:
        """The step of a stage, by the stage's name or its label."""
        return next((s for s in self.steps if name in (s.label, s.job.stage.name)), None)

    @property
    def keys(self) -> dict[str, tuple[str, str]]:
        return {step.label: (step.job.stage.name, step.job.ref.key) for step in self.steps}


class _EndOfPlan(Exception):
    """Raised to leave the sentence once --until is reached."""


class Planner:
    """Called like a stage by the sentence of a flow: works out the stage's key and state, runs nothing."""

    def __init__(
        self,
        plan: Plan,
        runtime: Runtime,
        force: frozenset[str],
        until: str | None,
        before: dict[str, Earlier],
        order: Sequence[str] = (),
    ):
        self.plan, self.runtime, self.force, self.until, self.before = plan, runtime, force, until, before
        self.order = order
        self._forced: dict[
            str, str
        ] = {}  # place of a result that is made again under the same key -> label of its step

    def __call__(self, stage: Stage, options: BaseModel, label: str = "", /, **inputs: ArtifactRef) -> ArtifactRef:
        if self._is_over(stage):
            raise _EndOfPlan
        job = stage.job(self.plan.workspace, self.plan.data, self.runtime, options, inputs, label)
        self.plan.steps.append(self._assess(job))
        return job.ref

    def _is_over(self, upcoming: Stage) -> bool:
        """Whether --until is behind us. Several samplings are several steps of one stage, whose name stands for all: it is
        behind us when a stage comes that is after it in the order of stages."""
        reached = self.plan.step(self.until) if self.until else None
        if reached is None or self.until != reached.job.stage.name:
            return reached is not None
        if upcoming.name not in self.order or self.until not in self.order:
            return upcoming.name != self.until
        return self.order.index(upcoming.name) > self.order.index(self.until)

    def _assess(self, job: StageRun) -> Step:
        done = job.done()
        inputs = {ref.uri for ref in job.inputs.values()}
        forced_inputs = [label for uri, label in self._forced.items() if uri in inputs]
        if {job.label, job.stage.name} & self.force:
            step = Step(job, "forced", "forced by --force", done)
        elif forced_inputs:
            step = Step(job, "forced", f"{', '.join(forced_inputs)} made again", done)
        elif done and (again := job.stage.again and job.stage.again(job.context())):
            step = Step(job, "forced", again, done)
        elif done:
            return Step(job, "done", "", done)
        else:
            before = self.before.get(job.label)
            step = Step(job, "stale" if before else "missing", self._why(job, before), None)
        if step.state == "forced":
            self._forced[job.ref.uri] = job.label
        return step

    def _why(self, job: StageRun, before: Earlier | None) -> str:
        if before is None:
            return "never made"
        if before.key == job.ref.key or before.done is None:
            return "its files are gone or incomplete"
        old, new = before.done.ingredients, job.ingredients
        reasons = []
        if old.get("version") != new["version"]:
            reasons.append(f"{job.stage.name} is now version {new['version']} (was {old.get('version')})")
        reasons += _option_changes(old.get("options"), new["options"])
        if old.get("extra") != new["extra"]:
            if job.stage.changes:
                reasons.append(job.stage.changes(job.workspace, before.done, job.prepared))
            else:
                reasons.append("what it is made with changed")
        changed = [name for name, key in new["inputs"].items() if old.get("inputs", {}).get(name) != key]
        if changed:
            reasons.append(f"{_makers(job.inputs[name] for name in changed)} changed")
        return "; ".join(reasons) or "its inputs changed"


def _makers(refs: Iterable[ArtifactRef]) -> str:
    """The stages that made these inputs, with the parts that are read: 'prepare_text (train, val)'."""
    parts: dict[str, list[str]] = {}
    for ref in refs:
        maker, _, part = ref.kind.partition(":")
        parts.setdefault(maker, []).extend([part] if part else [])
    return ", ".join(f"{maker} ({', '.join(found)})" if found else maker for maker, found in parts.items())


def _option_changes(old: Any, new: Any, place: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        return [c for n in names for c in _option_changes(old.get(n), new.get(n), f"{place}.{n}" if place else n)]
    return [] if old == new else [f"{place} {old} -> {new}"]


Sentence = Callable[[Planner, Recipe], None]


def make_plan(
    sentence: Sentence,
    recipe: Recipe,
    workspace: Workspace,
    data: Path,
    force: frozenset[str] = frozenset(),
    until: str | None = None,
    stage_names: Sequence[str] = (),
) -> Plan:
    """Plan the flow that `sentence` describes; `stage_names` are all that it can have, in their order."""
    for name in (*force, *((until,) if until else ())):
        if stage_names and name.split("[")[0] not in stage_names:
            raise UsageError(f"there is no stage '{name}'; stages: {', '.join(sorted(stage_names))}")
    plan = Plan(recipe, workspace, data)
    planner = Planner(plan, recipe.runtime, force, until, _earlier(workspace, recipe), stage_names)
    with suppress(_EndOfPlan):
        sentence(planner, recipe)
    for name in (*force, *((until,) if until else ())):
        if plan.step(name) is None:
            labels = ", ".join(step.label for step in plan.steps)
            raise UsageError(f"this run has no step '{name}'; its steps: {labels}")
    return plan


def _earlier(workspace: Workspace, recipe: Recipe) -> dict[str, Earlier]:
    """The newest result of each step in earlier runs of this recipe on this data set, to say what changed since."""
    found: dict[str, Earlier] = {}
    for run in _runs_of(workspace, recipe):
        for label, (stage, key) in run.stages.items():
            if label in found:
                continue
            done = workspace.done(stage, key)
            if done or run.state == "done" or read_done(workspace.folder(stage, key)):
                found[label] = Earlier(key, done)
    return found


def _runs_of(workspace: Workspace, recipe: Recipe) -> Iterator[Any]:
    return (r for r in load_runs(workspace) if r.recipe_name == recipe.name and r.dataset == recipe.dataset.name)
