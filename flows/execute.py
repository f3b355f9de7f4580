"""Executing a plan: as a Prefect flow, with every step printed on the console and the whole run kept on record."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from rich.markup import escape

from flows.plan import Plan, runs_like
from storage.errors import StorageError
from storage.records import Problem
from storage.results import read_scores
from storage.runs import RunRecord, new_run_id, save_run
from tasks.evaluation.caption_warnings import run_warnings
from tasks.framework.progress import console
from tasks.framework.quarantine import gather_problems
from tasks.framework.stage import StageRun, refs_in

_METRICS = ("videos", "diversity", "self_retrieval", "not_computed")
_T = TypeVar("_T")
SWEEP_RUN = "LONGTAKE_SWEEP_RUN"
"""names the flow run of the sweep that a process is a part of"""


@dataclass(frozen=True)
class RunOutcome:
    """What a run came to: its record, the problems with the data, and the stages that were computed."""

    run: RunRecord
    problems: list[Problem] = field(default_factory=list)
    computed: tuple[str, ...] = ()
    metrics: dict[str, Any] = field(default_factory=dict)
    """what evaluation says beside the scores: diversity, self-retrieval, and what was not computed and why"""

    @property
    def quarantined(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.quarantined]

    def to_json(self) -> dict[str, Any]:
        names = ("id", "name", "recipe_name", "dataset", "data", "state", "scores", "report", "warnings")
        run = {name: getattr(self.run, name) for name in names}
        problems = [asdict(problem) for problem in self.problems]
        return {"run": run, "worked": list(self.computed), "problems": problems, "figures": self.metrics}


@dataclass(frozen=True)
class FlowCall(Generic[_T]):
    """A function to be run as a Prefect flow: the flow's name, the run's title, the parameters that the dashboard shows
    and the function is called with, and how many task runs its history must hold (0: it is not known)."""

    function: Callable[..., _T]
    name: str
    title: str
    parameters: dict[str, Any]
    task_runs: int = 0


def execute(call: FlowCall[_T], inside_flow: bool = False) -> _T:
    """Run a flow here and now and wait until its history is whole: on a server of its own if none is named, or inside the
    flow that calls this."""
    from prefect import flow, tags
    from prefect.flow_engine import run_flow
    from prefect.settings import PREFECT_HOME

    from flows.orchestration.crash_recovery import TAG, noted_runs
    from flows.orchestration.embedded_server import prefect_api, wait_for_history
    from tasks.framework.prefect_task import BEGUN

    if not inside_flow:
        console.print("[dim]starting Prefect (a few seconds; the first time it makes its database)[/]")
    name = call.title.replace("{", "{{").replace("}", "}}")  # Prefect fills parameters into the names of runs
    with nullcontext() if inside_flow else prefect_api(), noted_runs(Path(PREFECT_HOME.value())) as note, tags(TAG):
        before = BEGUN.count
        prefect_flow = flow(name=call.name, flow_run_name=name, on_running=[note], validate_parameters=False)(call.function)
        state: Any = run_flow(prefect_flow, _part_of_sweep(call, prefect_flow), call.parameters, return_type="state")
        flow_run_id = state.state_details.flow_run_id
        recorded = call.task_runs if state.is_completed() else min(call.task_runs, BEGUN.count - before)
        if flow_run_id and not wait_for_history(flow_run_id, recorded):
            console.print("[yellow]Prefect's history of this run may be incomplete; the results are not affected[/]")
    return state.result(raise_on_failure=True)


def _part_of_sweep(call: FlowCall[Any], prefect_flow: Any) -> Any:
    """The flow run of a process that a sweep started, made as Prefect makes that of a flow inside a flow: with a task run of the
    sweep's that stands for it. Nothing for other processes."""
    from prefect import Task
    from prefect.client.orchestration import get_client
    from prefect.states import Pending

    sweep = os.environ.get(SWEEP_RUN)
    if not sweep:
        return None
    with get_client(sync_client=True) as client:
        whole = client.read_flow_run(UUID(sweep))
        stand_in = client.create_task_run(Task(prefect_flow.fn, name=call.name), whole.id, str(uuid4()), state=Pending())
        return client.create_flow_run(
            prefect_flow, parameters=call.parameters, parent_task_run_id=stand_in.id, tags={*whole.tags}, state=Pending()
        )


def planned_flow(plan: Plan, force: Sequence[str] = (), until: str | None = None) -> FlowCall[RunOutcome]:
    """The flow that runs a plan as it is: nothing is planned again."""

    def pipeline(run: dict[str, Any], until: str | None, force: list[str]) -> Any:
        return final_state(run_plan(plan, title_of(plan)))

    parameters = {"run": shown_parameters(plan), "until": until, "force": list(force)}
    return FlowCall(pipeline, "pipeline", title_of(plan), parameters, len(plan.steps))


def shown_parameters(plan: Plan) -> dict[str, Any]:
    """What the dashboard says a run is about, in the words of a deployment's form; the whole recipe is in its record."""
    recipe, data = plan.recipe, str(plan.data)
    shown: dict[str, Any] = {"recipe": recipe.name, "dataset": recipe.dataset.name, "data": data, "kind": recipe.dataset.kind}
    shown |= {"workspace": str(plan.workspace.root), "settings": list(plan.settings)}
    return shown | {name: value for name, value in (("name", plan.name), ("note", plan.note)) if value}


def final_state(outcome: RunOutcome) -> Any:
    """The state that a flow ends in: completed, with the score and what is suspicious as the message that the dashboard shows."""
    from prefect.states import Completed

    message = "; ".join(filter(None, (_score_of(outcome), *(f"warning: {warning}" for warning in outcome.run.warnings))))
    return Completed(message=message or None, data=outcome)


def _score_of(outcome: RunOutcome) -> str:
    scores = outcome.run.scores
    return f"CIDEr {100 * scores['CIDEr']:.1f}" if "CIDEr" in scores else ""


def title_of(plan: Plan, verb: str = "Run") -> str:
    """The name of a run, as a sentence."""
    about = f"{f'{plan.name}: ' if plan.name else ''}{verb} {plan.recipe.name} on {plan.recipe.dataset.name}"
    if not plan.to_do:
        return f"{about}: everything is there"
    return f"{about}: {len(plan.to_do)} of {len(plan.steps)} stages, from {plan.to_do[0].label} on"


def run_plan(plan: Plan, title: str, announce: Callable[[], None] | None = None) -> RunOutcome:
    """Run every step of a plan in order inside a flow, with a record of the run. `announce` is called when everything is
    computed and the run is not yet recorded as done: a run killed between the two announces again."""
    from prefect import tags
    from prefect.settings import PREFECT_HOME

    from flows.orchestration.artifacts import name_run, show_outcome
    from flows.orchestration.workspace_labels import label_workspace
    from tasks.framework.prefect_task import run_as_task

    label = label_workspace(Path(PREFECT_HOME.value()), plan.workspace.root)
    labels = {f"recipe:{plan.recipe.name}", f"dataset:{plan.recipe.dataset.name}", f"workspace:{label}"}
    name_run(title, labels)
    run, computed = new_record(plan), []
    save_run(plan.workspace, run)
    try:
        with tags(*labels):
            for step in plan.steps:
                started = time.monotonic()
                count, did = run_as_task(step, step_title(step), step.state == "forced")
                print_step(step, count, did, time.monotonic() - started)
                computed += [step.label] if did else []
            outcome = _outcome(plan, run, tuple(computed))
            show_outcome(outcome, plan.workspace, label)
            name_run("; ".join(filter(None, (title, _score_of(outcome)))))
            if announce:
                announce()
    except BaseException as error:
        try:
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            save_run(plan.workspace, replace(run, state=state, finished_at=_now()))
        except StorageError as second:  # a full disk fails both; what the run failed by matters more
            error.add_note(f"nor can the run be noted as failed: {second}")
        raise
    save_run(plan.workspace, outcome.run)
    return outcome


def step_title(step: StageRun) -> str:
    """What Prefect calls the task run of a step."""
    why = "for the first time" if step.state == "missing" else step.reason
    return f"{step.label}: {why}" if step.to_do else f"{step.label}: cached"


def print_step(step: StageRun, count: int, computed: bool, seconds: float) -> None:
    """Say what a step came to, here and in Prefect's log."""
    from prefect.logging import get_run_logger

    _print_line(step, f"{seconds:.1f} s" if computed else "cached", count)
    title, extracted = step_title(step), _extracted(step) if computed else ""
    if extracted:
        console.print_line(f"  [dim]{extracted}[/]")
    if computed:
        title = "; ".join(filter(None, (title, f"{count} items in {seconds:.1f} s", extracted)))
    get_run_logger().info(title)


def _extracted(step: StageRun) -> str:
    """How many rows an extraction really had to compute."""
    done = step.find_completion()
    rows = done.summary.get("extracted") if done else None
    if done is None or rows is None:
        return ""
    new = ", ".join(f"{count} of '{name}'" for name, count in rows.items()) or "none"
    return f"rows extracted: {new}; already there: {done.ref.count - sum(rows.values())}"


def _print_line(step: StageRun, note: str, count: int) -> None:
    mark = "[dim]=[/]" if note == "cached" else "[green]✓[/]"
    why = f"[dim]{escape(step.reason)}[/]" if step.to_do and note != "cached" and step.state != "missing" else ""
    line = f"{mark} {escape(f'{step.label:<24}')} {count:>7} items  {note:>8}  {why}"
    console.print_line(line)


def cached_outcome(plan: Plan, quiet: bool = False) -> RunOutcome:
    """What a plan with nothing to do came to; Prefect is not started. It is printed step by step and recorded as a run, or
    `quiet`: not printed, and not recorded again if it is on record."""
    known = (run for run in runs_like(plan.workspace, plan.recipe) if run.state == "done" and run.stages == plan.keys)
    run = next(known, None) if quiet else None
    for step in () if quiet else plan.steps:
        _print_line(step, "cached", step.completion.ref.count if step.completion else 0)
    outcome = _outcome(plan, run or new_record(plan), ())
    if run is None:
        save_run(plan.workspace, outcome.run)
    return outcome


def new_record(plan: Plan) -> RunRecord:
    extraction = plan.step("extract_features")
    stores = tuple(source.store for source in extraction.prepared.values()) if extraction else ()
    recipe = plan.recipe
    return RunRecord(
        id=new_run_id(),
        recipe_name=recipe.name,
        dataset=recipe.dataset.name,
        data=str(plan.data),
        recipe=recipe.model_dump(mode="json"),
        stages=plan.keys,
        stores=stores,
        started_at=_now(),
        settings=tuple(plan.settings),
        name=plan.name,
        note=plan.note,
        results={name: [(ref.kind, ref.key) for ref in refs_in(value)] for name, value in plan.results.items()},
    )


def _outcome(plan: Plan, run: RunRecord, computed: tuple[str, ...]) -> RunOutcome:
    """What the results of a plan, all of which are there, say."""
    problems = gather_problems(plan.workspace, [step.ref for step in plan.steps])
    evaluation, report = plan.step("evaluate"), plan.step("report")
    found = read_scores(evaluation.folder) if evaluation else {}
    scores, metrics = found.get("corpus", {}), {name: found[name] for name in _METRICS if name in found}
    page = str(report.folder / "report.html") if report else ""
    quarantined = sum(problem.quarantined for problem in problems)
    ended = replace(run, state="done", finished_at=_now(), scores=scores, scored=found.get("videos", 0), report=page)
    ended = replace(ended, quarantined=quarantined)
    return RunOutcome(replace(ended, warnings=_warnings(plan)), problems, computed, metrics)


def _warnings(plan: Plan) -> tuple[str, ...]:
    """What is suspicious about the captions of a plan that is done."""
    if plan.step("caption") is None:
        return ()
    captions, text, captioner = (refs_in(plan.results[name])[0] for name in ("captions", "text", "captioners"))
    folders = (plan.workspace.root / ref.uri for ref in (captions, text, captioner))
    return tuple(run_warnings(plan.recipe.model_dump(mode="json"), *folders))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
