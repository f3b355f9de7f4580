"""The command `longtake`. Each command only parses, calls and prints; heavy imports wait until they are needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from storage.errors import LongtakeError, UsageError, explain_os_error
from storage.records import Problem
from storage.workspace import Workspace

app = typer.Typer(
    name="longtake",
    help="From raw video to trained, evaluated captions, in one uninterrupted take.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
features_app = typer.Typer(help="Feature stores: import your own, list, verify.", no_args_is_help=True)
app.add_typer(features_app, name="features")

out = Console()
err = Console(stderr=True)

QUARANTINED = 3  # exit code: done, but some videos were set aside

RecipeArgument = Annotated[str, typer.Argument(help="A shipped recipe's name or a YAML file.", metavar="RECIPE")]
WorkspaceOption = Annotated[
    Path,
    typer.Option("--workspace", "-w", help="The project's folder; made if it is new.", envvar="LONGTAKE_WORKSPACE"),
]
DataOption = Annotated[Path | None, typer.Option("--data", "-d", help="The folder of videos and captions.")]
KindOption = Annotated[
    str | None,
    typer.Option(help="Read the data folder as this kind: folder, msvd, msrvtt, activitynet, coco, demo."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Change a recipe value, as in seeding.epochs=5. Repeatable.", metavar="K=V"),
]
UntilOption = Annotated[str | None, typer.Option(help="Stop after this stage.", metavar="STAGE")]
ForceOption = Annotated[
    list[str] | None, typer.Option(help="Make this stage and what depends on it again. Repeatable.", metavar="STAGE")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and why; do nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
RetryOption = Annotated[
    bool, typer.Option("--retry-quarantined", help="Try the videos again that extraction could not read.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show Prefect's own log too.")]

DEFAULT_WORKSPACE = Path("longtake-workspace")


@app.command()
def demo(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    settings: SetOption = None,
    until: UntilOption = None,
    force: ForceOption = None,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Draw the demo world, run everything on it, print the scores, write the report."""
    from flows.demo import demo_recipe

    space = Workspace.open(workspace)
    recipe = demo_recipe(space, settings or [], draw=not dry_run)
    _go(recipe, space, force or [], until, dry_run, as_json, verbose)


@app.command()
def run(
    recipe: RecipeArgument,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    until: UntilOption = None,
    force: ForceOption = None,
    retry_quarantined: RetryOption = False,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the whole pipeline of a recipe; what is already done is not done again."""
    from flows.recipe import load_recipe

    settings = [*(settings or []), *(["runtime.retry_quarantined=true"] if retry_quarantined else [])]
    loaded = load_recipe(recipe, settings, data, kind)
    _go(loaded, Workspace.open(workspace), force or [], until, dry_run, as_json, verbose)


@app.command()
def extract(
    recipe: RecipeArgument,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    retry_quarantined: RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe up to its features."""
    run(recipe, data, workspace, kind, settings, "extract_features", None, retry_quarantined, False, as_json, False)


@app.command()
def train(
    recipe: RecipeArgument,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe up to its trained captioner."""
    run(recipe, data, workspace, kind, settings, "seed", None, False, False, as_json, False)


@app.command()
def evaluate(
    recipe: RecipeArgument,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe up to its scores."""
    run(recipe, data, workspace, kind, settings, "evaluate", None, False, False, as_json, False)


@app.command()
def doctor(workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """Check the set-up: what works on this machine, and what to do about what does not."""
    from flows.doctor import examine

    findings = examine(workspace)
    if as_json:
        out.print_json(data=[{"what": f.what, "found": f.found, "fine": f.fine, "remedy": f.remedy} for f in findings])
    else:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for f in findings:
            mark = "[green]✓[/]" if f.fine else "[red]✗[/]"
            table.add_row(mark, f.what, escape(f.found) + (f"\n[yellow]{escape(f.remedy)}[/]" if f.remedy else ""))
        out.print(table)
    if not all(f.fine for f in findings):
        raise typer.Exit(1)


@app.command()
def status(
    recipe: Annotated[str | None, typer.Argument(help="A recipe; without one, all runs are listed.")] = None,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say of every stage whether it is done, stale (and why) or missing; list runs, scores and the quarantine."""
    from flows.status import print_runs, print_status

    space = _existing(workspace)
    if recipe is None:
        print_runs(space, out, as_json)
        return
    print_status(_recipe_for_status(space, recipe, data, kind, settings or []), space, out, as_json)


@app.command()
def gc(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    keep: Annotated[int, typer.Option(min=0, help="Runs to keep of every recipe and data set.")] = 1,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove results, features and feature rows that no kept run refers to."""
    from storage.garbage import collect, find_garbage
    from tasks.upkeep import find_dead_rows

    space = _existing(workspace)
    garbage, dead = find_garbage(space, keep), find_dead_rows(space, keep)
    if not dry_run:
        collect(space, garbage)
        for rows in dead:
            rows.drop()
    total = sum(item.nbytes for item in garbage)
    if as_json:
        items = [{"path": str(g.path), "reason": g.reason, "bytes": g.nbytes} for g in garbage]
        out.print_json(
            data={"removed": not dry_run, "bytes": total, "items": items, "dead_rows": sum(d.count for d in dead)}
        )
        return
    for item in garbage:
        out.print(
            f"{_size(item.nbytes):>9}  {item.path.relative_to(space.root)}  [dim]{item.reason}[/]", highlight=False
        )
    for rows in dead:
        place = rows.store.path.relative_to(space.root)
        out.print(f"{rows.count:>4} rows  {place}  [dim]of videos changed or removed since[/]", highlight=False)
    verb = "would be freed" if dry_run else "freed"
    out.print(f"{_size(total)} {verb}, {len(garbage)} items" if garbage or dead else "nothing to collect")


@app.command()
def recipes(as_json: JsonOption = False) -> None:
    """List the shipped recipes."""
    from flows.recipe import load_recipe, shipped_recipes

    loaded = [load_recipe(name) for name in shipped_recipes()]
    if as_json:
        out.print_json(data=[{"name": r.name, "about": r.about.strip()} for r in loaded])
        return
    table = Table("recipe", "what it does", box=None, padding=(0, 2, 0, 0))
    for recipe in loaded:
        table.add_row(f"[bold]{recipe.name}[/]", " ".join(recipe.about.split()))
    out.print(table)


@features_app.command("import")
def import_(
    name: Annotated[str, typer.Argument(help="What to call the features; a recipe names them as 'store'.")],
    path: Annotated[Path, typer.Argument(help="A folder of <id>.npy, one .npy with --ids, .npz or HDF5 keyed by id.")],
    ids: Annotated[
        Path | None, typer.Option(help="For one .npy: a text file with an id a line, or a JSON list.")
    ] = None,
    data: DataOption = None,
    kind: KindOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
) -> None:
    """Bring your own features. With --data, ids that the data set does not have are left out and missing ones listed."""
    from flows.features import import_into

    report = import_into(Workspace.open(workspace), name, path, ids, data, kind)
    if as_json:
        counts = {"imported": report.imported, "already": report.already, "unknown": list(report.unknown)}
        problems = [{"item": p.item, "kind": p.kind, "reason": p.reason} for p in report.problems]
        out.print_json(data={"name": report.name, **counts, "missing": list(report.missing), "problems": problems})
    else:
        out.print(escape(report.summary()), highlight=False)
        _print_problems(list(report.problems))
    if report.problems:
        raise typer.Exit(QUARANTINED)


@features_app.command("list")
def list_features(workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """List every feature store: rows, size, what made it."""
    from flows.features import describe_stores

    rows = describe_stores(_existing(workspace))
    if as_json:
        out.print_json(data=rows)
        return
    table = Table("store", "videos", "shape of a row", "size", "made by", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(row["store"], f"{row['videos']:,}", str(row["shape"]), _size(row["bytes"]), escape(row["words"]))
    out.print(
        table if rows else "no features yet; 'longtake run' extracts them, 'longtake features import' brings yours"
    )


@features_app.command("verify")
def verify_features(workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """Check every row of every feature store against its checksum."""
    from flows.features import verify_stores

    problems = verify_stores(_existing(workspace))
    if as_json:
        out.print_json(data=[{"item": p.item, "kind": p.kind, "reason": p.reason, "where": p.where} for p in problems])
    else:
        _print_problems(problems)
        out.print("every row is as it was written" if not problems else f"{len(problems)} problems")
    if problems:
        raise typer.Exit(1)


def _go(
    recipe: Any, space: Workspace, force: list[str], until: str | None, dry_run: bool, as_json: bool, verbose: bool
) -> None:
    """Run or plan a recipe, print what came of it, leave with the right exit code."""
    from flows.orchestrator import configure
    from flows.pipeline import plan_pipeline
    from flows.status import print_plan

    if dry_run:
        print_plan(plan_pipeline(recipe, space, force, until), out, as_json)
        return
    configure(space, verbose)
    from flows.run import run_recipe

    outcome = run_recipe(recipe, space, force, until)
    if as_json:
        out.print_json(data=outcome.to_json())
    else:
        _print_outcome(outcome)
    if outcome.quarantined:
        raise typer.Exit(QUARANTINED)


def _print_outcome(outcome: Any) -> None:
    run = outcome.run
    if not outcome.worked:
        out.print("Nothing to do: every stage is cached.")
    _print_problems(outcome.problems)
    if run.scores:
        table = Table(*run.scores, title=f"{run.title}: scores", title_justify="left")
        table.add_row(*(f"{100 * value:.1f}" for value in run.scores.values()))
        out.print(table)
    if run.report:
        out.print(f"Report: {run.report}", highlight=False, soft_wrap=True)


def _print_problems(problems: list[Problem], most: int = 20) -> None:
    """The quarantined one by one, the merely reported by kind."""
    quarantined = [p for p in problems if p.quarantined]
    if quarantined:
        err.print(f"[yellow]{len(quarantined)} in quarantine; the rest went on:[/]")
    for problem in quarantined[:most]:
        err.print(
            f"  {escape(problem.item)}: {escape(problem.reason)} [dim]({problem.kind})[/]",
            highlight=False,
            soft_wrap=True,
        )
    if len(quarantined) > most:
        err.print(f"  ... and {len(quarantined) - most} more; the report and 'longtake status RECIPE --json' list all")
    others: dict[str, int] = {}
    for problem in problems:
        if not problem.quarantined:
            others[problem.kind] = others.get(problem.kind, 0) + 1
    for kind, count in sorted(others.items()):
        example = next(p for p in problems if p.kind == kind and not p.quarantined)
        err.print(
            f"[dim]noticed: {count} x {kind}, such as {escape(example.item)}: {escape(example.reason)}[/]",
            highlight=False,
            soft_wrap=True,
        )


def _existing(workspace: Path) -> Workspace:
    """A workspace that must be there already: looking at one should not make it."""
    if not (workspace.expanduser() / "workspace.json").is_file():
        raise UsageError(
            f"there is no workspace at {workspace}; 'longtake demo' or 'longtake run' makes one, or pass --workspace"
        )
    return Workspace.open(workspace)


def _recipe_for_status(space: Workspace, name: str, data: Path | None, kind: str | None, settings: list[str]) -> Any:
    """The recipe; without --data, on the data of its last run, read as it was then."""
    from flows.demo import demo_recipe
    from flows.recipe import load_recipe
    from storage.runs import load_runs

    if name == "demo" and data is None and kind is None:
        return demo_recipe(space, settings, draw=False)
    recipe = load_recipe(name, settings, data, kind)
    if recipe.dataset.path is None:
        last = next((run for run in load_runs(space) if run.recipe_name == recipe.name), None)
        if last is not None:
            was = last.recipe.get("dataset", {}).get("kind", recipe.dataset.kind)
            return load_recipe(name, settings, last.data, kind or (was if was != recipe.dataset.kind else None))
    return recipe


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def main() -> None:
    """Run the command; failures that we can explain are printed without a traceback."""
    try:
        app()
    except UsageError as error:
        _fail(str(error), 2)
    except LongtakeError as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(str(explain_os_error(error, Path.cwd())), 1)


def _fail(message: str, code: int) -> None:
    if "--json" in sys.argv:
        print(json.dumps({"error": message}))
    err.print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
