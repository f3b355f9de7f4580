"""Running a sweep as a Prefect flow: what its runs share first, then run by run, in this process or in several.

Every finished run is written down at once, so a sweep that was stopped shows what it has, and the same command goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.markup import escape

from flows.execute import FlowCall, RunOutcome, cached_outcome, execute, planned_flow, step_title, tell_of_step
from flows.orchestration.process_lifetime import child_environment
from flows.sweep.definition import UNTIL, Cell, Sweep, cells_without, preparation, sharing
from flows.sweep.table import Result, failures, sweep_folder, write_results
from storage.files.atomic import write_text
from storage.workspace import Workspace
from tasks.framework.progress import console
from tasks.framework.stage import StageRun

_TRAINING = ("seed", "boost")
_SET_ASIDE = 3  # exit code of a run that went well but for some videos


def run_sweep(sweep: Sweep, cells: Sequence[Cell], workspace: Workspace, jobs: int = 1) -> list[Result]:
    """Run a planned sweep. If every result is there, nothing is started, Prefect included."""
    console.print(escape(sharing(cells).sentence()), highlight=False, soft_wrap=True)
    if not sharing(cells).to_make:
        results = [
            _failed(cell) if cell.plan is None else _result(cell, cached_outcome(cell.plan, True)) for cell in cells
        ]
        write_results(sweep, workspace, results)
        return results

    def planned_sweep(sweep: dict[str, Any], workspace: str, jobs: int) -> list[Result]:
        return _run_cells(asked, list(cells), place, jobs)

    asked, place = sweep, workspace
    parameters = {"sweep": asdict(sweep) | {"data": str(sweep.data)}, "workspace": str(workspace.root), "jobs": jobs}
    title = f"Sweep {sweep.name}: {len(cells)} runs"
    return execute(FlowCall(planned_sweep, "sweep", title, parameters, len(preparation(cells))))


def _run_cells(sweep: Sweep, cells: list[Cell], workspace: Workspace, jobs: int) -> list[Result]:
    """Inside the flow: all of a sweep, in the order of its runs."""
    folder = sweep_folder(sweep, workspace)
    cells, failed = _prepare(cells, folder)
    book = _Book(sweep, workspace, cells, failed)
    runs = _one_by_one(book, folder) if jobs == 1 else _side_by_side(book, folder, jobs)
    for cell, result in runs:
        book.enter(cell, result)
    return book.results


def _prepare(cells: list[Cell], folder: Path) -> tuple[list[Cell], dict[str, str]]:
    """Run what comes before the training; the runs that are still possible, and the URIs of results that failed."""
    from tasks.framework.prefect_task import run_as_task

    failed: dict[str, str] = {}
    for step in preparation(cells):
        place = step.ref.uri
        if not any(place == s.ref.uri for cell in cells for s in _steps(cell)):
            continue  # only runs need it that cannot be any more
        try:
            started = time.monotonic()
            count, computed = run_as_task(step, step_title(step), step.state == "forced")
            tell_of_step(step, count, computed, time.monotonic() - started)
        except Exception as error:  # whatever it is, the other variants go on
            log = folder / "logs" / f"{step.stage.name}-{step.ref.key[:8]}.log"
            failed[place] = _told(f"{step.label} failed", error, log)
            cells = cells_without(cells, failed)
    return cells, failed


@dataclass
class _Book:
    """What is known of a sweep's runs so far, written down after each."""

    sweep: Sweep
    workspace: Workspace
    cells: Sequence[Cell]
    failed: dict[str, str]
    found: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        impossible = {cell.title: _failed(cell) for cell in self.cells if cell.plan is None}
        self.found |= impossible
        for told in failures(list(impossible.values())):
            console.print(f"[red]✗[/] {escape(told)}", highlight=False, soft_wrap=True)
        write_results(self.sweep, self.workspace, self.results)

    @property
    def results(self) -> list[Result]:
        return [self.found[cell.title] for cell in self.cells if cell.title in self.found]

    def still_possible(self, cell: Cell) -> Cell:
        return cells_without([cell], self.failed)[0]

    def enter(self, cell: Cell, result: Result) -> None:
        self.found[cell.title] = result
        if result.state == "failed":
            _remember_failure(cell, result, self.failed)
        write_results(self.sweep, self.workspace, self.results)
        place = f"{len(self.found)} of {len(self.cells)}"
        if result.state == "failed":
            said = f"[red]✗[/] {place}: {escape(cell.title)}: {escape(result.reason)}"
        else:
            said = f"[green]✓[/] {place}: {escape(cell.title)}: CIDEr {100 * result.figures['CIDEr']:.1f}"
        console.print(said, highlight=False, soft_wrap=True)


def _remember_failure(cell: Cell, result: Result, failed: dict[str, str]) -> None:
    """The stage that a run stopped at fails in every run that shares it: they need not try."""
    stopped = next((step for step in _steps(cell) if step.find_completion() is None), None)
    if stopped is not None:
        failed.setdefault(stopped.ref.uri, f"{stopped.label} failed as in '{cell.title}': {result.reason}")


def _steps(cell: Cell) -> list[StageRun]:
    return cell.plan.steps if cell.plan else []


def _one_by_one(book: _Book, folder: Path) -> Iterator[tuple[Cell, Result]]:
    for planned in book.cells:
        if planned.plan is None:
            continue
        cell = book.still_possible(planned)
        if cell.plan is None:
            yield cell, _failed(cell)
            continue
        write_recipe(cell, folder)
        console.print(f"[bold]{escape(cell.title)}[/]", highlight=False, soft_wrap=True)
        try:
            there = all(step.find_completion() for step in cell.plan.steps)
            call = planned_flow(cell.plan, until=UNTIL)
            yield cell, _result(cell, cached_outcome(cell.plan, True) if there else execute(call, inside_flow=True))
        except Exception as error:  # whatever it is, the other variants go on
            log = folder / "logs" / f"{cell.plan.recipe.name}.log"
            yield cell, _failed(cell, _told("", error, log))


def _side_by_side(book: _Book, folder: Path, jobs: int) -> Iterator[tuple[Cell, Result]]:
    """Each run in a process of its own: torch has one random generator a process, so two trainings cannot share one."""
    waiting = [cell for cell in book.cells if cell.plan]
    running: dict[subprocess.Popen[bytes], Cell] = {}
    environment = _environment()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = book.still_possible(waiting.pop(0))
                if cell.plan is None:
                    yield cell, _failed(cell)
                elif all(step.find_completion() for step in cell.plan.steps):
                    yield cell, _result(cell, cached_outcome(cell.plan, True))
                else:
                    console.print(f"[bold]{escape(cell.title)}[/] begins", highlight=False, soft_wrap=True)
                    running[_start(cell, folder, environment)] = cell
            for process in [process for process in running if process.poll() is not None]:
                yield (cell := running.pop(process)), _of_process(cell, process.returncode, folder)
            time.sleep(0.1)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _environment() -> dict[str, str]:
    """That of this process, with the address of the Prefect server that it uses; whoever gets it ends with this process."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return child_environment({**os.environ, "PREFECT_API_URL": str(client.api_url)})


def _start(cell: Cell, folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    recipe = write_recipe(cell, folder)
    assert cell.plan is not None
    command = [sys.executable, "-m", "flows.cli", "run", str(recipe), "--until", UNTIL, "--json"]
    out, log = _outputs(cell, folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as said, log.open("wb") as told:
        return subprocess.Popen(
            [*command, "--workspace", str(cell.plan.workspace.root)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=told,
            env=environment,
        )


def _outputs(cell: Cell, folder: Path) -> tuple[Path, Path]:
    assert cell.plan is not None
    name = cell.plan.recipe.name
    return folder / "logs" / f"{name}.json", folder / "logs" / f"{name}.log"


def _of_process(cell: Cell, code: int, folder: Path) -> Result:
    out, log = _outputs(cell, folder)
    if code in (0, _SET_ASIDE) and cell.plan:
        return _result(cell, cached_outcome(cell.plan, True))
    try:
        reason = json.loads(out.read_bytes())["error"]
    except (OSError, ValueError, KeyError, TypeError):
        reason = f"its process ended with exit code {code}"
    return _failed(cell, f"{reason} (log: {log})")


def write_recipe(cell: Cell, folder: Path) -> Path:
    """The recipe of one run as a file: 'longtake run' with it makes the report of what the sweep has trained."""
    assert cell.plan is not None
    recipe = cell.plan.recipe
    values = recipe.model_dump(mode="json")
    values["dataset"]["path"] = str(cell.plan.data)
    path = folder / "recipes" / f"{recipe.name}.yaml"
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    return path


def _result(cell: Cell, outcome: RunOutcome) -> Result:
    plan = cell.plan
    assert plan is not None
    figures = dict(outcome.run.scores)
    figures |= outcome.metrics.get("self_retrieval") or {}
    figures |= outcome.metrics.get("diversity") or {}
    trained = [done for step in plan.steps if step.stage.name in _TRAINING and (done := step.find_completion())]
    best = trained[-1].summary.get("val_cider") if trained else None
    if best is not None and best >= 0 and plan.recipe.ensemble is None:  # an ensemble has no epoch of its own
        figures["val CIDEr"] = best
    seconds = sum(done.seconds for done in trained)
    evaluation = plan.step(UNTIL)
    where = evaluation.ref.uri if evaluation else ""
    return Result(cell.variant.name, cell.seed, "done", "", figures, seconds, len(outcome.quarantined), where)


def _failed(cell: Cell, reason: str = "") -> Result:
    return Result(cell.variant.name, cell.seed, "failed", reason or cell.why_not)


def _told(what: str, error: Exception, log: Path) -> str:
    """A failure in a line; all of it in the log."""
    write_text(log, "".join(traceback.format_exception(error)))
    return f"{what}{': ' if what else ''}{error or type(error).__name__} (log: {log})"
