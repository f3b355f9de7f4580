"""`longtake report`: the page of a run from what the run left behind, or one page that compares several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.find_run import find_run, newest_run
from flows.recipe import Recipe, recorded_recipe
from storage.errors import UsageError
from storage.records import ArtifactRef
from storage.runs import RunRecord, load_runs
from storage.workspace import Workspace
from tasks.compare_runs import ComparedRun, ComparisonOptions, compare_runs
from tasks.framework.stage import Input, StageRun, refs_in
from tasks.report import SEVERAL, PageOptions, report

_OPTIONAL = ("frame_plans", "tagger", "words_net", "neighbours", "refocused", "boosted")
"""what a report can do without, should it be gone"""


@dataclass(frozen=True)
class BuiltReport:
    """Where a page is, the runs it shows, and whether it was built just now."""

    path: Path
    runs: list[RunRecord]
    computed: bool

    def to_json(self) -> dict[str, Any]:
        runs = [{"id": run.id, "recipe_name": run.recipe_name, "dataset": run.dataset} for run in self.runs]
        return {"report": str(self.path), "made": self.computed, "runs": runs}


def page_options(recipe: Recipe) -> PageOptions:
    """What the page of a recipe's run shows, and the recipe without what does not change its results."""
    left_out: Any = {"runtime": True, "dataset": {"path"}}
    return PageOptions(shown=recipe.report, recipe=recipe.model_dump(mode="json", exclude=left_out))


def build_report(workspace: Workspace, names: Sequence[str]) -> BuiltReport:
    """No name: the newest finished run. One: that run's page. Several: one page that compares them, with the first."""
    runs = choose_runs(workspace, names)
    pages = [_report_of(workspace, run) for run in runs]
    page = pages[0] if len(runs) == 1 else _comparison_of(workspace, runs, pages)
    _, computed = page.execute()
    return BuiltReport(page.folder / "report.html", runs, computed)


def choose_runs(workspace: Workspace, names: Sequence[str]) -> list[RunRecord]:
    """Runs by id, by the beginning of an id, or by recipe: the newest scored run of it."""
    known = [run for run in load_runs(workspace) if "evaluate" in run.stages and run.state == "done"]
    if not known:
        raise UsageError(f"no run in {workspace.root} has scores yet; 'longtake demo' or 'longtake run' gets as far")
    return [find_run(known, name, "scored") for name in names] or [newest_run(workspace, known)]


def _report_of(workspace: Workspace, run: RunRecord) -> StageRun:
    """The report of a run as its record has it: of the very results that it used, whatever the data is like by now."""
    recipe = recorded_recipe(run)
    inputs: dict[str, Input] = {}
    for name, found in run.results.items():
        if gone := next((each for each in found if workspace.done(*each) is None), None):
            if name in _OPTIONAL:
                continue
            stage, key = gone
            raise UsageError(
                f"run {run.id} ({run.title}) used {stage} {key[:12]}, which is not there any more; "
                f"'longtake run {run.recipe_name} --data {run.data}' recomputes it"
            )
        refs = tuple(ArtifactRef(stage, f"artifacts/{stage}/{key}", key) for stage, key in found)
        inputs[name] = refs if name in SEVERAL else refs[0]
    return report.bind(workspace, Path(run.data), recipe.runtime, page_options(recipe), inputs)


def _comparison_of(workspace: Workspace, runs: Sequence[RunRecord], pages: Sequence[StageRun]) -> StageRun:
    compared = []
    for run, page in zip(runs, pages, strict=True):
        shown: Any = page.options
        compared.append(ComparedRun(id=run.id, made_at=run.finished_at or run.started_at, recipe=shown.recipe))
    inputs: dict[str, Input] = {
        name: tuple(next(iter(refs_in(page.inputs.get(name, ()))), None) for page in pages)
        for name in ("text", "features", "seeded", "boosted", "captions", "scores")
    }
    inputs["reports"] = tuple(page.ref if page.find_completion() else None for page in pages)
    options = ComparisonOptions(runs=tuple(compared))
    return compare_runs.bind(workspace, Path(runs[0].data), pages[0].runtime, options, inputs)
