"""Running a sweep as a Prefect flow: first what its runs share, then run by run, in this process or in several.

The results are saved after every run, so a sweep that was stopped shows what it has, and the same command goes on."""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.markup import escape

from flows.execute import SWEEP_RUN, FlowCall, RunOutcome, cached_outcome, execute, planned_flow, print_step, step_title
from flows.orchestration.crash_recovery import mark_crashed
from flows.orchestration.process_lifetime import child_environment
from flows.plan import Plan
from flows.sweep.definition import UNTIL, Cell, Sweep, count_stages, mark_impossible, preparation
from flows.sweep.table import SweepResult, failures, sweep_folder, write_results
from models.metrics.meteor import shared_meteor
from storage.files.atomic import write_text
from storage.workspace import Workspace
from tasks.framework.progress import console

_TRAINING = ("seed", "boost")
_QUARANTINED = 3  # exit code of a run that is done, but some videos are in quarantine


def run_sweep(sweep: Sweep, cells: Sequence[Cell], workspace: Workspace, jobs: int = 1) -> list[SweepResult]:
    """Run a planned sweep. If every result is there, nothing is started, Prefect included."""
    counts = count_stages(cells)
    console.print_line(escape(str(counts)))
    if not counts.to_make:
        results = [_cached(cell) for cell in cells]
        write_results(sweep, workspace, results)
        return results

    title = f"Sweep {sweep.name}: {len(cells)} runs"

    def planned_sweep(sweep: dict[str, Any], workspace: str, jobs: int) -> list[SweepResult]:
        return run_cells(jobs)

    run_cells = partial(_run_cells, sweep, list(cells), workspace, title)
    shown = asdict(sweep) | {"data": str(sweep.data), "variants": {each.name: list(each.settings) for each in sweep.variants}}
    parameters = {"sweep": shown, "workspace": str(workspace.root), "jobs": jobs}
    return execute(FlowCall(planned_sweep, "sweep", title, parameters, len(preparation(cells))))


def _run_cells(sweep: Sweep, cells: list[Cell], workspace: Workspace, title: str, jobs: int) -> list[SweepResult]:
    """Inside the flow: all runs of a sweep, in their order."""
    from prefect import tags
    from prefect.settings import PREFECT_HOME

    from flows.orchestration.artifacts import name_run, show_sweep
    from flows.orchestration.workspace_labels import label_workspace

    folder, label = sweep_folder(sweep, workspace), label_workspace(Path(PREFECT_HOME.value()), workspace.root)
    labels = {f"sweep:{sweep.name}", f"workspace:{label}"}
    name_run(title, labels)
    with tags(*labels), shared_meteor():  # Java loads once for the runs of this process
        cells, failed = _prepare(cells, folder)
        progress = _SweepProgress(sweep, workspace, cells, failed)
        for cell, result in _run_here(progress, folder) if jobs == 1 else _run_in_processes(progress, folder, jobs):
            progress.record(cell, result)
    show_sweep(sweep, progress.results, title, label)
    return progress.results


def _prepare(cells: list[Cell], folder: Path) -> tuple[list[Cell], dict[str, str]]:
    """Run the stages before the training: the runs, those that became impossible without a plan, and the URIs of the results
    that failed, with the reasons."""
    from tasks.framework.prefect_task import run_as_task

    failed: dict[str, str] = {}
    for step in preparation(cells):
        uri = step.ref.uri
        if not any(uri == other.ref.uri for cell in cells for other in cell.steps):
            continue  # only runs that became impossible need it
        try:
            started = time.monotonic()
            count, computed = run_as_task(step, step_title(step), step.state == "forced")
            print_step(step, count, computed, time.monotonic() - started)
        except Exception as error:  # whatever it is, the other variants go on
            log = folder / "logs" / f"{step.stage.name}-{step.ref.key[:8]}.log"
            failed[uri] = f"{step.label} failed: {_log_failure(error, log)}"
            cells = [mark_impossible(cell, failed) for cell in cells]
    return cells, failed


@dataclass
class _SweepProgress:
    """The results of a sweep so far, written to its folder after each run."""

    sweep: Sweep
    workspace: Workspace
    cells: Sequence[Cell]
    failed: dict[str, str]
    found: dict[str, SweepResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found |= {cell.title: _failed(cell) for cell in self.cells if cell.plan is None}
        for failure in failures(self.results):
            console.print_line(f"[red]✗[/] {escape(failure)}")
        write_results(self.sweep, self.workspace, self.results)

    @property
    def results(self) -> list[SweepResult]:
        return [self.found[cell.title] for cell in self.cells if cell.title in self.found]

    def record(self, cell: Cell, result: SweepResult) -> None:
        self.found[cell.title] = result
        count = f"{len(self.found)} of {len(self.cells)}"
        if result.state == "failed":
            # The stage that a run stopped at fails in every run that shares it: they need not try.
            stopped = next((step for step in cell.steps if step.find_completion() is None), None)
            if stopped is not None:
                why = f"{stopped.label} failed as in '{cell.title}': {result.reason}"
                self.failed.setdefault(stopped.ref.uri, why)
            line = f"[red]✗[/] {count}: {escape(cell.title)}: {escape(result.reason)}"
        else:
            line = f"[green]✓[/] {count}: {escape(cell.title)}: CIDEr {100 * result.metrics['CIDEr']:.1f}"
        write_results(self.sweep, self.workspace, self.results)
        console.print_line(line)


def _run_here(progress: _SweepProgress, folder: Path) -> Iterator[tuple[Cell, SweepResult]]:
    """One run after the other, in this process."""
    for cell in (cell for cell in progress.cells if cell.plan):
        cell = mark_impossible(cell, progress.failed)
        if _is_settled(cell):
            yield cell, _cached(cell)
            continue
        plan = _plan(cell)
        write_recipe(cell, folder)
        console.print_line(f"[bold]{escape(cell.title)}[/]")
        try:
            yield cell, _result(cell, execute(planned_flow(plan, until=UNTIL), inside_flow=True))
        except Exception as error:  # whatever it is, the other variants go on
            yield cell, _failed(cell, _log_failure(error, folder / "logs" / f"{plan.recipe.name}.log"))


def _run_in_processes(progress: _SweepProgress, folder: Path, jobs: int) -> Iterator[tuple[Cell, SweepResult]]:
    """Each run in a process of its own: torch has one random generator per process, so two trainings cannot share one."""
    waiting = [cell for cell in progress.cells if cell.plan]
    running: dict[subprocess.Popen[bytes], Cell] = {}
    environment = _environment()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = mark_impossible(waiting.pop(0), progress.failed)
                if _is_settled(cell):
                    yield cell, _cached(cell)
                else:
                    console.print_line(f"[bold]{escape(cell.title)}[/] begins")
                    running[_start(cell, folder, environment)] = cell
            for process in [process for process in running if process.poll() is not None]:
                yield (cell := running.pop(process)), _process_result(cell, process.returncode, folder)
            time.sleep(0.1)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _is_settled(cell: Cell) -> bool:
    """Whether there is nothing to run: everything is there, or the run is impossible."""
    return all(step.find_completion() for step in cell.steps)


def _cached(cell: Cell) -> SweepResult:
    return _result(cell, cached_outcome(cell.plan, True)) if cell.plan else _failed(cell)


def _plan(cell: Cell) -> Plan:
    assert cell.plan is not None
    return cell.plan


def _environment() -> dict[str, str]:
    """That of this process, with the Prefect server that it uses and the sweep's flow run, which a run becomes a part of; a
    process that gets it ends with this one."""
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run

    with get_client(sync_client=True) as client:
        return child_environment({**os.environ, "PREFECT_API_URL": str(client.api_url), SWEEP_RUN: str(flow_run.id)})


def _start(cell: Cell, folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    recipe = write_recipe(cell, folder)
    command = [sys.executable, "-P", "-m", "flows.cli", "run", str(recipe), "--until", UNTIL, "--json", f"--name={cell.title}"]
    out, log = _outputs(cell, folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as stdout, log.open("wb") as stderr:
        return subprocess.Popen(
            [*command, "--workspace", str(_plan(cell).workspace.root)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
        )


def _outputs(cell: Cell, folder: Path) -> tuple[Path, Path]:
    name = _plan(cell).recipe.name
    return folder / "logs" / f"{name}.json", folder / "logs" / f"{name}.log"


def _process_result(cell: Cell, code: int, folder: Path) -> SweepResult:
    from prefect.settings import PREFECT_HOME

    out, log = _outputs(cell, folder)
    if code in (0, _QUARANTINED):
        return _cached(cell)
    mark_crashed(Path(PREFECT_HOME.value()))  # if it was killed: else the sweep's history would wait for its end
    try:
        reason = json.loads(out.read_bytes())["error"]
    except (OSError, ValueError, KeyError, TypeError):
        reason = f"its process ended with exit code {code}"
    return _failed(cell, f"{reason} (log: {log})")


def write_recipe(cell: Cell, folder: Path) -> Path:
    """The recipe of one run as a file: 'longtake run' with it writes the report of what the sweep has trained."""
    plan, recipe = _plan(cell), _plan(cell).recipe
    values = recipe.model_dump(mode="json")
    values["dataset"]["path"] = str(plan.data)
    path = folder / "recipes" / f"{recipe.name}.yaml"
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    return path


def _result(cell: Cell, outcome: RunOutcome) -> SweepResult:
    plan, metrics = _plan(cell), dict(outcome.run.scores)
    metrics |= outcome.metrics.get("self_retrieval") or {}
    metrics |= outcome.metrics.get("diversity") or {}
    trained = [done for step in plan.steps if step.stage.name in _TRAINING and (done := step.find_completion())]
    best = trained[-1].summary.get("val_cider") if trained else None
    if best is not None and best >= 0 and plan.recipe.ensemble is None:  # an ensemble has no epoch of its own
        metrics["val CIDEr"] = best
    seconds = sum(done.seconds for done in trained)
    evaluation = plan.step(UNTIL)
    where = evaluation.ref.uri if evaluation else ""
    return SweepResult(cell.variant.name, cell.seed, "done", "", metrics, seconds, len(outcome.quarantined), where)


def _failed(cell: Cell, reason: str = "") -> SweepResult:
    return SweepResult(cell.variant.name, cell.seed, "failed", reason or cell.why_not)


def _log_failure(error: Exception, log: Path) -> str:
    """Write a failure to the log; returns it in one line."""
    write_text(log, "".join(traceback.format_exception(error)))
    return f"{error or type(error).__name__} (log: {log})"
