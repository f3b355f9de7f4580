"""Status tables: the plan of a recipe with each stage's state and reason, and the runs of a workspace."""

import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from flows.cli.options import command_line
from flows.cli.printing import SPLIT_DERIVED, out, print_next, print_problems, print_table, print_warnings, readable_size
from flows.pipeline import plan_pipeline
from flows.plan import Plan
from flows.recipe import Recipe, shipped_recipes
from storage.catalogue import DatasetSnapshot
from storage.features.store import FeatureStore
from storage.files.garbage_collection import lock_name
from storage.records import SPLITS
from storage.runs import RunRecord, load_runs
from storage.workspace import Workspace
from tasks.extraction.extractors import FeatureSource
from tasks.framework.quarantine import gather_problems
from tasks.framework.stage import StageRun

_COLOURS = {"done": "green", "stale": "yellow", "missing": "cyan", "forced": "magenta", "partial": "yellow"}
_STATES = {"missing": "to do", "partial": "half done"}  # words for people
_RUN_COLOURS = {"done": "green", "failed": "red"}
_LISTED = 5  # files that are named


def print_plan(plan: Plan, as_json: bool) -> None:
    """What a run would do."""
    if as_json:
        out.print_json(data=_plan_json(plan))
        return
    for line in understood(plan):
        out.print_line(escape(line))
    _print_steps(plan)
    for note in plan.notes:
        out.print_line(escape(note))
    todo = plan.to_do
    out.print(f"{len(todo)} of {len(plan.steps)} stages would run" if todo else "Nothing to do: every stage is cached.")


def understood(plan: Plan) -> list[str]:
    """What a plan found in the data folder, how long it may take, and the room for it."""
    catalogue = plan.step("catalogue")
    if catalogue is None:
        return []
    snapshot: DatasetSnapshot = catalogue.prepared
    videos, name = snapshot.dataset.videos, plan.recipe.dataset.name
    splits = Counter(video.split for video in videos)
    files = {video.source for video in videos if video.source}
    missing = sum(video.source is None for video in videos)
    of = ", ".join(f"{splits[split]:,} {split}" for split in SPLITS if splits[split])
    lines = [
        f"data set '{name}' in {plan.data}: {len(videos):,} videos ({of}), {len(snapshot.dataset.captions):,} captions",
        f"files: {len(files):,} found, {missing:,} missing",
    ]
    lines += [problem.reason for problem in snapshot.dataset.problems if problem.kind == SPLIT_DERIVED]
    for kind, what in (("no_video", "missing"), ("not_annotated", "not used, since no caption names them")):
        if items := [problem.item for problem in snapshot.dataset.problems if problem.kind == kind]:
            lines.append(
                f"{what}: {', '.join(items[:_LISTED])}" + (f" and {len(items) - _LISTED:,} more" if len(items) > _LISTED else "")
            )
    free = readable_size(shutil.disk_usage(plan.workspace.root).free)
    return [*lines, f"time: {_expected_time(plan, len(videos))}; {free} of disk are free"]


def _expected_time(plan: Plan, videos: int) -> str:
    """By what the same stages took in earlier runs of this workspace, for as many videos as there are now."""
    took: dict[str, float] = {}  # stage -> seconds per video of the data set
    wanted = {step.stage.name for step in plan.to_do}
    if not wanted:
        return "everything is there"
    for run in load_runs(plan.workspace):
        done = {stage: plan.workspace.done(stage, key) for stage, key in run.stages.values() if stage in {"catalogue", *wanted}}
        catalogued = done.get("catalogue")
        for stage, completion in done.items():
            if completion and catalogued and catalogued.ref.count:
                took.setdefault(stage, completion.seconds / catalogued.ref.count)
        if wanted <= took.keys():
            break
    if unknown := [step.label for step in plan.to_do if step.stage.name not in took]:
        return f"not known here before {unknown[0]} has run once"
    seconds = videos * sum(took[step.stage.name] for step in plan.to_do)
    return f"about {seconds / 60:.0f} min, by earlier runs" if seconds >= 90 else f"about {seconds:.0f} s, by earlier runs"


def print_status(recipe: Recipe, workspace: Workspace, as_json: bool, run_arguments: tuple[str, ...]) -> None:
    """The plan, the features' progress, the quarantine, and the last runs of a recipe. `run_arguments` run it."""
    plan = plan_pipeline(recipe, workspace)
    features = feature_progress(plan)
    problems = gather_problems(workspace, [step.ref for step in plan.steps if step.completion])
    runs = [run for run in load_runs(workspace) if run.recipe_name == recipe.name]
    if as_json:
        more = {"features": features, "problems": [_problem(p) for p in problems]}
        out.print_json(data=_plan_json(plan) | more | {"runs": [_run_json(run, workspace) for run in runs]})
        return
    _print_steps(plan)
    for row in features:
        out.print_line(f"features '{row['feature']}': {row['fresh']} of {row['wanted']} videos")
    print_problems(problems, _LISTED)
    _print_runs(runs[:5], workspace)
    todo = plan.to_do
    out.print(f"{len(todo)} of {len(plan.steps)} stages to do" if todo else "[green]Everything is done.[/]")
    if todo:
        print_next((command_line(workspace, *run_arguments), "does what is to do, and nothing else"))
    else:
        print_next(*commands_after_run(workspace, recipe.name))


def commands_after_run(workspace: Workspace, recipe: str | None = None) -> list[tuple[str, str]]:
    """What can be done with a finished run, the newest or that of a recipe: commands and what they do."""
    which = ("--run", recipe) if recipe else ()
    return [
        (command_line(workspace, "report", *which[1:]), "says where its report is"),
        (command_line(workspace, "caption", "new-videos", *which), "captions videos of your own"),
    ]


def print_runs(workspace: Workspace, as_json: bool) -> None:
    """All runs of a workspace."""
    runs = load_runs(workspace)
    if as_json:
        out.print_json(data=[_run_json(run, workspace) for run in runs])
    elif not runs:
        out.print("no runs yet")
        print_next(
            (command_line(workspace, "demo"), "tries everything on a drawn world"),
            (command_line(workspace, "run", "folder", "--data", "my-videos"), "trains on videos and captions of your own"),
        )
    else:
        _print_runs(runs[:20], workspace)
        known = next((run.recipe_name for run in runs if run.recipe_name in shipped_recipes()), "RECIPE")
        stages = (command_line(workspace, "status", known), "says of every stage whether it is done, and why not")
        print_next(stages, *(commands_after_run(workspace) if any(run.report for run in runs) else []))


def feature_progress(plan: Plan) -> list[dict[str, Any]]:
    """Of every feature, how many of the data set's videos have a fresh row."""
    catalogue, extraction = plan.step("catalogue"), plan.step("extract_features")
    if catalogue is None or extraction is None:
        return []
    keys = catalogue.prepared.record_keys
    rows = []
    for source in extraction.prepared.values():
        rows.append({"feature": source.name, "fresh": _fresh(plan.workspace, source, keys), "wanted": len(keys)})
    return rows


def _fresh(workspace: Workspace, source: FeatureSource, keys: dict[str, str]) -> int:
    path = workspace.features / source.store
    if not (path / "zarr.json").is_file():
        return 0
    view = FeatureStore.open(path).view()
    return len(view.fresh(keys)) if source.sampling else len(keys.keys() & view.lengths().keys())


def _print_steps(plan: Plan) -> None:
    table = Table("stage", "state", "items", "took", "why", box=None, padding=(0, 2, 0, 0))
    for step in plan.steps:
        state = f"[{_COLOURS[step.state]}]{_STATES.get(step.state, step.state)}[/]"
        count = f"{step.completion.ref.count:,}" if step.completion else ""
        took = f"{step.completion.seconds:.1f} s" if step.completion else ""
        table.add_row(escape(step.label), state, count, took, escape(step.reason))
    print_table(table, "why")


def _print_runs(runs: Sequence[RunRecord], workspace: Workspace) -> None:
    if not runs:
        return
    table = Table("run", "recipe", "data", "state", "CIDEr", "BLEU-4", "quarantine", box=None, padding=(0, 2, 0, 0))
    for run in runs:
        scores = [f"{100 * run.scores[name]:.1f}" if name in run.scores else "" for name in ("CIDEr", "BLEU-4")]
        state = f"[{_RUN_COLOURS.get(run.state, 'yellow')}]{escape(run_state(run, workspace))}[/]"
        quarantined = f"[yellow]{run.quarantined}[/]" if run.quarantined else "0"
        table.add_row(run.short_id, escape(run.recipe_name), escape(run.dataset), state, *scores, quarantined)
    print_table(table)
    for run in runs:
        about = [f"'{run.name}'"] if run.name else []
        about += [run.note] if run.note else []
        about += [" ".join(f"--set {setting}" for setting in run.settings)] if run.settings else []
        if about:
            out.print_line(f"[dim]{run.short_id}: {escape('; '.join(about))}[/]")
        print_warnings([f"{run.short_id}: {warning.partition('. ')[0]}" for warning in run.warnings])


def run_state(run: RunRecord, workspace: Workspace) -> str:
    """The state of a run: one that was killed is on record as running, but none of its stages is held by a process."""
    if run.state != "running" or any(workspace.locked(lock_name(*of)) for of in run.stages.values()):
        return run.state
    return "interrupted"


def _plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "recipe": plan.recipe.name,
        "data": str(plan.data),
        "understood": understood(plan),
        "stages": [_step_json(step) for step in plan.steps],
    }


def _step_json(step: StageRun) -> dict[str, Any]:
    return {
        "stage": step.label,
        "state": step.state,
        "why": step.reason,
        "key": step.ref.key,
        "items": step.completion.ref.count if step.completion else None,
        "seconds": step.completion.seconds if step.completion else None,
    }


def _run_json(run: RunRecord, workspace: Workspace) -> dict[str, Any]:
    names = "id short_id name note settings recipe_name dataset started_at finished_at scores report quarantined warnings"
    return {name: getattr(run, name) for name in names.split()} | {"state": run_state(run, workspace)}


def _problem(problem: Any) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("item", "kind", "reason", "where", "quarantined")}
