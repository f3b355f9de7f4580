"""Running a plan as a Prefect flow, telling people what happens, and keeping a record of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from flows.pipeline import plan_pipeline
from flows.plan import Plan, Step
from flows.recipe import Recipe, recipe_text
from storage.errors import StorageError
from storage.records import Problem
from storage.results import read_scores
from storage.runs import RunRecord, load_runs, new_run_id, save_run
from storage.workspace import Workspace
from tasks.extraction.pretrained import fetch_weights
from tasks.framework.progress import console
from tasks.framework.quarantine import gather_problems

if TYPE_CHECKING:  # Prefect reads its settings when it is imported, which is after they were made
    from prefect import Flow

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
        return finish(_outcome(plan, new_record(plan), ()), workspace)
    from flows.orchestration.flows import pipeline_flow

    values = _parameters(plan, force, until)
    outcome: Outcome = run_with_prefect(pipeline_flow, title_of(plan), values, len(plan.steps))
    return outcome


def run_inside(plan: Plan, until: str) -> Outcome:
    """Run a plan as a flow of its own inside the flow that calls this."""
    from flows.orchestration.flows import pipeline_flow

    outcome: Outcome = _run_flow(pipeline_flow, title_of(plan), _parameters(plan, (), until), len(plan.steps))
    return outcome


def _parameters(plan: Plan, force: Sequence[str], until: str | None) -> dict[str, Any]:
    parameters = {"force": list(force), "until": until} if until else {"force": list(force)}
    return {"recipe": recipe_text(plan.recipe), "workspace": str(plan.workspace.root), **parameters}


def run_with_prefect(flow: Flow[..., Any], title: str, parameters: dict[str, Any], task_runs: int) -> Any:
    """Run a flow here and now, on a server of its own if none is named, and wait until its history is whole."""
    from flows.orchestration.embedded_server import started

    console.print("[dim]starting Prefect (a few seconds; the first time it makes its database)[/]")
    with started():
        return _run_flow(flow, title, parameters, task_runs)


def _run_flow(flow: Flow[..., Any], title: str, parameters: dict[str, Any], task_runs: int) -> Any:
    from prefect import tags
    from prefect.settings import PREFECT_HOME

    from flows.orchestration.crash_recovery import TAG, noted_runs
    from flows.orchestration.embedded_server import wait_for_history
    from tasks.framework.prefect_task import BEGUN

    name = title.replace("{", "{{").replace("}", "}}")  # Prefect fills parameters into the names of runs
    with noted_runs(Path(PREFECT_HOME.value())) as note, tags(TAG):
        before = BEGUN.count
        state: Any = flow.with_options(flow_run_name=name, on_running=[note])(**parameters, return_state=True)
        flow_run_id = state.state_details.flow_run_id
        recorded = task_runs if state.is_completed() else min(task_runs, BEGUN.count - before)
        if flow_run_id and not wait_for_history(flow_run_id, recorded):
            told = "Prefect's history of this run may be incomplete; the results are not touched by that"
            console.print(f"[yellow]{told}[/]")
    return state.result(raise_on_failure=True)


def look_up(plan: Plan) -> Outcome:
    """What a plan with nothing to do came to. A run that is on record already is not recorded again."""
    known = (run for run in load_runs(plan.workspace) if run.recipe_name == plan.recipe.name and run.state == "done")
    run = next((run for run in known if run.stages == plan.keys), None)
    outcome = _outcome(plan, run or new_record(plan), ())
    return outcome if run else finish(outcome, plan.workspace)


def title_of(plan: Plan, verb: str = "Run") -> str:
    """The name of a run, as a sentence."""
    about = f"{verb} {plan.recipe.name} on {plan.recipe.dataset.name}"
    if not plan.to_do:
        return f"{about}: everything is there"
    return f"{about}: {len(plan.to_do)} of {len(plan.steps)} stages, from {plan.to_do[0].label} on"


def problems_so_far(recipe: Recipe, workspace: Workspace) -> list[Problem]:
    """What the stages that are done set aside: often the reason why a later one failed."""
    done = [step.job.ref for step in plan_pipeline(recipe, workspace).steps if step.done]
    return gather_problems(workspace, done)


def run_plan(plan: Plan, title: str, tell: Callable[[], None] | None = None) -> Outcome:
    """Carry a plan out inside a flow, under a title, with a record of the run. `tell` is called when all is made and the
    run is not yet noted as done: who is killed between the two tells again."""
    from prefect import tags

    from flows.orchestration.artifacts import name_run, show_outcome

    labels = {f"recipe:{plan.recipe.name}", f"dataset:{plan.recipe.dataset.name}"}
    name_run(title, labels)
    run = new_record(plan)
    save_run(plan.workspace, run)
    try:
        with tags(*labels):
            outcome = _outcome(plan, run, tuple(carry_out(plan)))
            show_outcome(outcome, _last_scored(plan))
            if tell:
                tell()
    except BaseException as error:
        try:
            save_run(plan.workspace, replace(run, state="failed", finished_at=_now()))
        except StorageError as second:  # a full disk fails both; what the run failed by is the news
            error.add_note(f"nor can the run be noted as failed: {second}")
        raise
    return finish(outcome, plan.workspace)


def carry_out(plan: Plan) -> list[str]:
    """Run every stage of a plan in order, inside a flow; the labels of those that did work."""
    return [step.label for step in plan.steps if carry_out_step(step)]


def carry_out_step(step: Step) -> bool:
    """Run one stage inside a flow and say so, here and in Prefect's log; True if it did work."""
    from prefect.logging import get_run_logger

    from tasks.framework.prefect_task import run_stage

    began = time.monotonic()
    why = (
        "for the first time" if step.state == "missing" else step.why
    )  # a log that says "never made; 21 items" confuses
    sentence = f"{step.label}: {why}" if step.to_do else f"{step.label}: cached"
    ref, did = run_stage(step.job, sentence, force=step.state == "forced")
    took = f"{time.monotonic() - began:.1f} s"
    _say(step, took if did else "cached", ref.count)
    extracted = _extracted(step) if did else ""
    if extracted:
        console.print(f"  [dim]{extracted}[/]", highlight=False)
    told = f"{sentence}; {ref.count} items in {took}" if did else sentence
    get_run_logger().info(f"{told}; {extracted}" if extracted else told)
    return did


def _extracted(step: Step) -> str:
    """How many rows an extraction really had to make."""
    done = step.job.done()
    figures = done.summary.get("extracted") if done else None
    if done is None or figures is None:
        return ""
    made = ", ".join(f"{count} of '{name}'" for name, count in figures.items()) or "none"
    return f"rows extracted: {made}; already there: {done.ref.count - sum(figures.values())}"


def _say(step: Step, note: str, count: int) -> None:
    done = "[dim]=[/]" if note == "cached" else "[green]✓[/]"
    why = f"[dim]{escape(step.why)}[/]" if step.to_do and note != "cached" else ""
    console.print(
        f"{done} {escape(f'{step.label:<24}')} {count:>7} items  {note:>8}  {why}", highlight=False, soft_wrap=True
    )


def new_record(plan: Plan) -> RunRecord:
    extraction = plan.step("extract_features")
    stores = tuple(source.store for source in extraction.job.prepared.values()) if extraction else ()
    recipe = plan.recipe
    values = recipe.model_dump(mode="json")
    return RunRecord(new_run_id(), recipe.name, recipe.dataset.name, str(plan.data), values, plan.keys, stores, _now())


def _outcome(plan: Plan, run: RunRecord, worked: tuple[str, ...]) -> Outcome:
    """What the results of a plan, all of which are there, say."""
    problems = gather_problems(plan.workspace, [step.job.ref for step in plan.steps])
    evaluation, report = plan.step("evaluate"), plan.step("report")
    found = read_scores(plan.workspace.root / evaluation.job.ref.uri) if evaluation else {}
    scores, figures = found.get("corpus", {}), {name: found[name] for name in _FIGURES if name in found}
    page = str(plan.workspace.root / report.job.ref.uri / "report.html") if report else ""
    quarantined = sum(problem.quarantined for problem in problems)
    done = replace(run, state="done", finished_at=_now(), scores=scores, report=page, quarantined=quarantined)
    return Outcome(done, problems, worked, figures)


def finish(outcome: Outcome, workspace: Workspace) -> Outcome:
    """Note that a run is done."""
    save_run(workspace, outcome.run)
    return outcome


def _last_scored(plan: Plan) -> RunRecord | None:
    """The last run of this recipe on this data set that came as far as scores."""
    mine = (plan.recipe.name, plan.recipe.dataset.name)
    return next((r for r in load_runs(plan.workspace) if (r.recipe_name, r.dataset) == mine and r.scores), None)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
