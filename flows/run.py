"""Running a plan as a Prefect flow, telling people what happens, and keeping a record of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.markup import escape

from flows.pipeline import plan_pipeline
from flows.plan import Plan, Step
from flows.recipe import Recipe, check_recipe
from storage.records import Problem
from storage.results import read_scores
from storage.runs import RunRecord, load_runs, new_run_id, save_run
from storage.workspace import Workspace
from tasks.pretrained import fetch_weights
from tasks.problems import gather_problems
from tasks.progress import console

_FIGURES = ("diversity", "self_retrieval", "not_computed")


@dataclass(frozen=True)
class Outcome:
    """What a run came to: its record, the problems with the data, and the stages that did work."""

    run: RunRecord
    problems: list[Problem] = field(default_factory=list)
    worked: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    """what evaluation says beside the scores: diversity, self-retrieval, and what was not computed and why"""

    @property
    def quarantined(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.quarantined]

    def to_json(self) -> dict[str, Any]:
        run = {
            name: getattr(self.run, name)
            for name in ("id", "recipe_name", "dataset", "data", "state", "scores", "report")
        }
        problems = [asdict(problem) for problem in self.problems]
        return {"run": run, "worked": list(self.worked), "problems": problems, "figures": self.figures}


def run_recipe(recipe: Recipe, workspace: Workspace, force: Sequence[str] = (), until: str | None = None) -> Outcome:
    """Plan and run. If there is nothing to do, nothing is started, Prefect included."""
    fetch_weights(recipe.features.values())
    plan = plan_pipeline(recipe, workspace, force, until)
    if not plan.to_do:
        for step in plan.steps:
            _say(step, "cached", step.done.ref.count if step.done else 0)
        return outcome_of(plan, _record(plan), ())
    from flows.orchestrator import started

    console.print("[dim]starting Prefect (a few seconds; the first time it makes its database)[/]")
    with started():
        return run_plan(plan, force, until)


def run_plan(plan: Plan, force: Sequence[str] = (), until: str | None = None) -> Outcome:
    """Run a plan as a flow, or as a part of the flow that calls this, and keep a record of it. Prefect must be started."""
    from flows.orchestrator import wait_for_history
    from flows.prefect_flow import pipeline_flow

    recipe, workspace, run = plan.recipe, plan.workspace, _record(plan)
    save_run(workspace, run)
    title = f"{run.title}: {len(plan.to_do)} of {len(plan.steps)} stages"
    flow = pipeline_flow.with_options(flow_run_name=title)
    try:
        state = flow(recipe.model_dump(mode="json"), str(workspace.root), list(force), until, return_state=True)
        flow_run_id = state.state_details.flow_run_id
        if flow_run_id and not wait_for_history(flow_run_id):
            console.print(
                "[yellow]Prefect's history of this run may be incomplete; the results are not touched by that[/]"
            )
        worked = state.result(raise_on_failure=True)
    except BaseException:
        save_run(workspace, replace(run, state="failed", finished_at=_now()))
        raise
    return outcome_of(plan, run, tuple(worked))


def look_up(plan: Plan) -> Outcome:
    """What a plan with nothing to do came to. A run that is on record already is not recorded again."""
    known = (run for run in load_runs(plan.workspace) if run.recipe_name == plan.recipe.name and run.state == "done")
    run = next((run for run in known if run.stages == plan.keys), None)
    return outcome_of(plan, run or _record(plan), (), save=run is None)


def problems_so_far(recipe: Recipe, workspace: Workspace) -> list[Problem]:
    """What the stages that are done set aside: often the reason why a later one failed."""
    done = [step.job.ref for step in plan_pipeline(recipe, workspace).steps if step.done]
    return gather_problems(workspace, done)


def carry_out(plan: Plan) -> list[str]:
    """Run every stage of a plan in order, inside a flow; the labels of those that did work."""
    return [step.label for step in plan.steps if carry_out_step(step)]


def carry_out_step(step: Step) -> bool:
    """Run one stage inside a flow and say so; True if it did work."""
    from tasks.prefect_task import run_stage

    began = time.monotonic()
    sentence = f"{step.label}: {step.why}" if step.to_do else f"{step.label}: cached"
    ref, did = run_stage(step.job, sentence, force=step.state == "forced")
    _say(step, f"{time.monotonic() - began:.1f} s" if did else "cached", ref.count)
    if did and (extracted := _extracted(step)):
        console.print(f"  [dim]{extracted}[/]", highlight=False)
    return did


def _extracted(step: Step) -> str:
    """How many rows an extraction really had to make."""
    done = step.job.done()
    figures = done.summary.get("extracted") if done else None
    if done is None or figures is None:
        return ""
    made = ", ".join(f"{count} of '{name}'" for name, count in figures.items()) or "none"
    return f"rows extracted: {made}; already there: {done.ref.count - sum(figures.values())}"


def plan_again(recipe: dict[str, Any], workspace: str, force: Sequence[str], until: str | None) -> Plan:
    """The plan from plain values: what a flow gets as its parameters."""
    checked = check_recipe(recipe, "given to the flow")
    fetch_weights(checked.features.values())
    return plan_pipeline(checked, Workspace.open(workspace), force, until)


def _say(step: Step, note: str, count: int) -> None:
    done = "[dim]=[/]" if note == "cached" else "[green]✓[/]"
    why = f"[dim]{escape(step.why)}[/]" if step.to_do and note != "cached" else ""
    console.print(
        f"{done} {escape(f'{step.label:<24}')} {count:>7} items  {note:>8}  {why}", highlight=False, soft_wrap=True
    )


def _record(plan: Plan) -> RunRecord:
    extraction = plan.step("extract_features")
    stores = tuple(source.store for source in extraction.job.memo.values()) if extraction else ()
    recipe = plan.recipe
    values = recipe.model_dump(mode="json")
    return RunRecord(new_run_id(), recipe.name, recipe.dataset.name, str(plan.data), values, plan.keys, stores, _now())


def outcome_of(plan: Plan, run: RunRecord, worked: tuple[str, ...], save: bool = True) -> Outcome:
    """What the results of a plan, all of which are there, say."""
    problems = gather_problems(plan.workspace, [step.job.ref for step in plan.steps])
    evaluation, report = plan.step("evaluate"), plan.step("report")
    found = read_scores(plan.workspace.root / evaluation.job.ref.uri) if evaluation else {}
    scores, figures = found.get("corpus", {}), {name: found[name] for name in _FIGURES if name in found}
    page = str(plan.workspace.root / report.job.ref.uri / "report.html") if report else ""
    quarantined = sum(problem.quarantined for problem in problems)
    done = replace(run, state="done", finished_at=_now(), scores=scores, report=page, quarantined=quarantined)
    if save:
        save_run(plan.workspace, done)
    return Outcome(done, problems, worked, figures)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
