"""The plan of a run: every stage with its key, whether its result is there, and if not, why it must be computed.

Planning reads annotations and looks at files, but computes and writes nothing that a run would: `status`, `--dry-run` and
the run itself all go by the same plan."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from flows.recipe import Recipe
from storage.errors import UsageError
from storage.records import ArtifactRef
from storage.runs import RunRecord, load_runs
from storage.workspace import Completion, Workspace, read_done
from tasks.framework.stage import Input, Stage, StageRun, refs_in


@dataclass(frozen=True)
class Earlier:
    """What an earlier run computed at a step; `completion` is None if its files are gone."""

    key: str
    completion: Completion | None


@dataclass
class Plan:
    """All steps of a run, in order, and its results by the names that the report and the run's record know them by."""

    recipe: Recipe
    workspace: Workspace
    data: Path
    steps: list[StageRun] = field(default_factory=list)
    results: dict[str, Input] = field(default_factory=dict)
    settings: Sequence[str] = ()
    name: str = ""
    note: str = ""
    """what --set changed, and the user's words for the run: for its record"""
    notes: list[str] = field(default_factory=list)
    """what the data made of the recipe, for people"""

    @property
    def to_do(self) -> list[StageRun]:
        return [step for step in self.steps if step.to_do]

    def step(self, name: str) -> StageRun | None:
        """The step of a stage, by the stage's name or its label."""
        return next((step for step in self.steps if name in (step.label, step.stage.name)), None)

    @property
    def keys(self) -> dict[str, tuple[str, str]]:
        return {step.label: (step.stage.name, step.ref.key) for step in self.steps}


class _EndOfPlan(Exception):
    """Raised to leave the pipeline definition once --until is reached."""


class Planner:
    """Adds stages to a plan as the pipeline definition calls it: works out each one's key and state, runs nothing."""

    def __init__(
        self,
        plan: Plan,
        force: frozenset[str] = frozenset(),
        until: str | None = None,
        before: Mapping[str, Earlier] | None = None,
        order: Sequence[str] = (),
    ):
        self.plan, self.force, self.until, self.before, self.order = plan, force, until, before or {}, order
        self._recomputed: dict[str, str] = {}  # URI of a result that is computed again under the same key -> its step's label

    @property
    def results(self) -> dict[str, Input]:
        return self.plan.results

    def __call__(self, stage: Stage, options: BaseModel, label: str = "", /, **inputs: Input | None) -> ArtifactRef:
        if self._is_over(stage):
            raise _EndOfPlan
        plan = self.plan
        run = self._assess(stage.bind(plan.workspace, plan.data, plan.recipe.runtime, options, inputs, label))
        plan.steps.append(run)
        return run.ref

    def _is_over(self, upcoming: Stage) -> bool:
        """Whether --until is behind us. Several samplings are several steps of one stage, whose name stands for all: it is
        behind us when a stage comes that is after it in the order of stages."""
        reached = self.plan.step(self.until) if self.until else None
        if reached is None or self.until != reached.stage.name:
            return reached is not None
        if upcoming.name not in self.order or self.until not in self.order:
            return upcoming.name != self.until
        return self.order.index(upcoming.name) > self.order.index(self.until)

    def _assess(self, run: StageRun) -> StageRun:
        done = run.find_completion()
        inputs = {ref.uri for ref in run.input_refs}
        forced_inputs = [label for uri, label in self._recomputed.items() if uri in inputs]
        if {run.label, run.stage.name} & self.force:
            reason = "forced by --force"
        elif forced_inputs:
            reason = f"{', '.join(forced_inputs)} recomputed"
        elif done:
            reason = run.rerun_reason()
            if not reason:
                return replace(run, state="done", completion=done)
        else:
            before = self.before.get(run.label)
            if run.stage.half_done and (so_far := run.stage.half_done(run.folder)):
                return replace(run, state="partial", reason=f"half done: {so_far}")
            return replace(run, state="stale" if before else "missing", reason=self._why(run, before))
        self._recomputed[run.ref.uri] = run.label
        return replace(run, state="forced", reason=reason, completion=done)

    def _why(self, run: StageRun, before: Earlier | None) -> str:
        if before is None:
            return "not computed yet"
        if before.key == run.ref.key or before.completion is None:
            return "its files are gone or incomplete"
        old, new = before.completion.ingredients, run.ingredients
        reasons = []
        if old.get("version") != new["version"]:
            reasons.append(f"{run.stage.name} is now version {new['version']} (was {old.get('version')})")
        reasons += _option_changes(old.get("options"), new["options"])
        if old.get("extra") != new["extra"]:
            if run.stage.explain_stale:
                reasons.append(run.stage.explain_stale(run.workspace, before.completion, run.prepared))
            else:
                reasons.append("what it is computed from changed")
        if changed := _changed_inputs(run, old.get("inputs", {})):
            reasons.append(f"{changed} changed")
        return "; ".join(reasons) or "its inputs changed"


def _changed_inputs(run: StageRun, old: Mapping[str, Any]) -> str:
    """The stages whose results changed, with the parts that did: 'prepare_text (train, val)'."""
    parts: dict[str, list[str]] = {}
    for name, value in run.inputs.items():
        before, now = old.get(name), run.ingredients["inputs"][name]
        if before == now:
            continue
        for ref in refs_in(value):
            known = before if isinstance(before, dict) and isinstance(now, dict) else {}
            changed = [part for part in ref.selected if known.get(part) != ref.parts.get(part, ref.key)]
            parts.setdefault(ref.kind, []).extend(changed)
    return ", ".join(f"{kind} ({', '.join(found)})" if found else kind for kind, found in parts.items())


def _option_changes(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(old.keys() | new.keys())
        return [c for n in names for c in _option_changes(old.get(n), new.get(n), f"{path}.{n}" if path else n)]
    return [] if old == new else [f"{path} {old} -> {new}"]


PipelineDefinition = Callable[[Planner, Recipe], None]


def make_plan(
    definition: PipelineDefinition,
    recipe: Recipe,
    workspace: Workspace,
    data: Path,
    force: frozenset[str] = frozenset(),
    until: str | None = None,
    stage_names: Sequence[str] = (),
) -> Plan:
    """Plan the pipeline that `definition` describes; `stage_names` are all that it can have, in their order."""
    for name in (*force, *((until,) if until else ())):
        if stage_names and name.split("[")[0] not in stage_names:
            raise UsageError(f"there is no stage '{name}'; stages: {', '.join(sorted(stage_names))}")
    plan = Plan(recipe, workspace, data)
    with suppress(_EndOfPlan):
        definition(Planner(plan, force, until, _earlier(workspace, recipe), stage_names), recipe)
    for name in (*force, *((until,) if until else ())):
        if plan.step(name) is None:
            labels = ", ".join(step.label for step in plan.steps)
            raise UsageError(f"this run has no step '{name}'; its steps: {labels}")
    return plan


def runs_like(workspace: Workspace, recipe: Recipe) -> Iterator[RunRecord]:
    """The runs of a recipe on a data set, newest first."""
    return (r for r in load_runs(workspace) if (r.recipe_name, r.dataset) == (recipe.name, recipe.dataset.name))


def _earlier(workspace: Workspace, recipe: Recipe) -> dict[str, Earlier]:
    """The newest result of each step in earlier runs of this recipe on this data set, to say what changed since."""
    found: dict[str, Earlier] = {}
    for run in runs_like(workspace, recipe):
        for label, (stage, key) in run.stages.items():
            if label in found:
                continue
            done = workspace.done(stage, key)
            if done or run.state == "done" or read_done(workspace.folder(stage, key)):
                found[label] = Earlier(key, done)
    return found
