"""`longtake report`: the page of a run from what the run left behind, or one page that compares several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.recipe import Recipe, check_recipe
from storage.errors import UsageError
from storage.records import ArtifactRef
from storage.runs import RunRecord, load_runs
from storage.workspace import Workspace
from tasks.compare_runs import ComparedRun, ComparisonOptions, compare_runs
from tasks.framework.stage import StageRun
from tasks.report import PageOptions, report

_INPUTS = {
    "catalogue": "catalogue",
    "prepare_text": "text",
    "extract_features": "features",
    "seed": "seeded",
    "boost": "boosted",
    "find_key_frames": "key_frames",
    "find_neighbours": "neighbours",
    "train_tagger": "tagger",
    "caption": "captions",
    "evaluate": "scores",
}
"""stage -> what the report calls its result"""
_NEEDED = ("catalogue", "prepare_text", "extract_features", "seed", "caption", "evaluate")


@dataclass(frozen=True)
class BuiltReport:
    """Where a page is, the runs it shows, and whether it was made just now."""

    path: Path
    runs: list[RunRecord]
    made: bool

    def to_json(self) -> dict[str, Any]:
        runs = [{"id": run.id, "recipe_name": run.recipe_name, "dataset": run.dataset} for run in self.runs]
        return {"report": str(self.path), "made": self.made, "runs": runs}


def page_options(recipe: Recipe) -> PageOptions:
    """What the page of a recipe's run shows, and the recipe without what does not change its results."""
    left_out: Any = {"runtime": True, "dataset": {"path"}}
    return PageOptions(shown=recipe.report, recipe=recipe.model_dump(mode="json", exclude=left_out))


def build_report(workspace: Workspace, names: Sequence[str]) -> BuiltReport:
    """No name: the newest finished run. One: that run's page. Several: one page that compares them, with the first."""
    runs = find_runs(workspace, names)
    jobs = [_report_job(workspace, run) for run in runs]
    if len(runs) == 1:
        _, made = jobs[0].carry_out()
        return BuiltReport(jobs[0].context().folder / "report.html", runs, made)
    job = _comparison_job(workspace, runs, jobs)
    _, made = job.carry_out()
    return BuiltReport(job.context().folder / "report.html", runs, made)


def find_runs(workspace: Workspace, names: Sequence[str]) -> list[RunRecord]:
    """Runs by id, by the beginning of an id, or by recipe: the newest scored run of it."""
    known = [run for run in load_runs(workspace) if "evaluate" in run.stages and run.state == "done"]
    if not known:
        raise UsageError(
            f"no run in {workspace.root} has got as far as scores; 'longtake demo' or 'longtake run' makes one"
        )
    if not names:
        return known[:1]
    return [_find(known, name) for name in names]


def _find(known: Sequence[RunRecord], name: str) -> RunRecord:
    of_recipe = [run for run in known if run.recipe_name == name]
    if of_recipe:
        return of_recipe[0]
    found = [run for run in known if run.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"'{name}' is the beginning of {len(found)} runs; write more of it: {_some(found)}")
    raise UsageError(f"no scored run is called '{name}'; there are {_some(known)}; or give a recipe's name")


def _some(runs: Sequence[RunRecord]) -> str:
    shown = ", ".join(f"{run.id} ({run.recipe_name})" for run in runs[:5])
    return shown + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")


def _report_job(workspace: Workspace, run: RunRecord) -> StageRun:
    """The report of a run as its record has it: of the very results that it used, whatever the data is like by now."""
    recipe = check_recipe(run.recipe, f"of run {run.id}")
    inputs = {}
    for label, name in _input_names(run).items():
        stage, key = run.stages[label]
        if workspace.done(stage, key) is None:
            if stage in _NEEDED:
                raise UsageError(
                    f"run {run.id} ({run.title}) used {stage} {key[:12]}, which is not there any more; "
                    f"'longtake run {run.recipe_name} --data {run.data}' makes it again"
                )
            continue
        inputs[name] = ArtifactRef(stage, f"artifacts/{stage}/{key}", key)
    return report.job(workspace, Path(run.data), recipe.runtime, page_options(recipe), inputs)


def _input_names(run: RunRecord) -> dict[str, str]:
    """label -> what the report calls the stage's result, as the pipeline does: of an ensemble's stages the first has the plain
    name, the others a number; where key frames were found, the captioner that found them is the refocused one."""
    names: dict[str, str] = {}
    for label, (stage, _) in run.stages.items():
        if stage == "sample_frames":
            names[label] = f"frames_{label[len('sample_frames[') : -1]}"
        elif label == "seed" and "find_key_frames" in run.stages:
            names[label] = "refocused"
        elif name := _INPUTS.get(stage):
            count = sum(known == name or known.startswith(f"{name}_") for known in names.values())
            names[label] = f"{name}_{count + 1}" if count else name
    return names


def _comparison_job(workspace: Workspace, runs: Sequence[RunRecord], jobs: Sequence[StageRun]) -> StageRun:
    compared: list[ComparedRun] = []
    inputs: dict[str, ArtifactRef] = {}
    for n, (run, job) in enumerate(zip(runs, jobs, strict=True)):
        shown: Any = job.options
        compared.append(ComparedRun(id=run.id, made_at=run.finished_at or run.started_at, recipe=shown.recipe))
        parts = dict(job.inputs)
        if job.done():
            parts["report"] = job.ref
        inputs |= {f"run{n}_{name}": ref for name, ref in parts.items()}
    options = ComparisonOptions(runs=tuple(compared))
    return compare_runs.job(workspace, Path(runs[0].data), jobs[0].runtime, options, inputs)
