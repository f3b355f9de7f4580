"""The commands `longtake status` and `longtake doctor`: how things stand, and what to type next."""

from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli.options import DEFAULT_WORKSPACE, DataOption, JsonOption, KindOption, SetOption, WorkspaceOption, existing
from flows.cli.printing import out, print_next, print_table
from storage.workspace import Workspace

_TRY = ("longtake demo", "tries everything on a drawn world")
_LOOK = ("longtake status", "says what is done in the workspace")


def doctor(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
    gpu_selftest: Annotated[
        bool, typer.Option("--gpu-selftest", help="Compare GPUs with the CPU and measure them, in about two minutes.")
    ] = False,
) -> None:
    """Check the set-up: what works on this machine, and what to do about what does not."""
    from flows.doctor import run_checks

    if gpu_selftest:
        _gpu_selftest(as_json)
        return
    findings = run_checks(workspace)
    if as_json:
        out.print_json(data=[{"what": f.what, "found": f.found, "fine": f.fine, "remedy": f.remedy} for f in findings])
    else:
        width = max(len(f.what) for f in findings)
        for f in findings:
            mark = "[green]✓[/]" if f.fine else "[red]✗[/]"
            found = [escape(line) for line in _lines(f.found, width)]
            remedy = [f"[yellow]{escape(line)}[/]" for line in _lines(f.remedy, width)]
            out.print_line(f"{mark}  {escape(f.what.ljust(width))}  " + f"\n{'':{width + 5}}".join([*found, *remedy]))
    broken = [f for f in findings if not f.fine]
    if broken:
        if not as_json:
            out.print_line(f"[red]{len(broken)} to fix[/], see beside ✗; then run [bold cyan]longtake doctor[/] again")
        raise typer.Exit(1)
    if not as_json:
        known = (workspace.expanduser() / "workspace.json").is_file()
        out.print("[green]All is well.[/]")
        print_next(_LOOK if known else _TRY)


def _lines(text: str, margin: int) -> list[str]:
    """Text in lines that fit the terminal beside a margin. Paths and addresses stay whole, to be copied."""
    room = max(out.width - margin - 5, 30)
    return wrap(text, room, break_long_words=False, break_on_hyphens=False)


def _gpu_selftest(as_json: bool) -> None:
    from tasks.gpu_selftest.checks import run_selftest

    report = run_selftest()
    failed = sum(check["passed"] is False for check in report["checks"])
    if as_json:
        out.print_json(data=report)
    else:
        cards = [f"{card['name']}, {card['gigabytes']:g} GiB" for card in report["machine"]["cards"]]
        out.print_line(escape(f"{'; '.join(cards) or 'no GPU'}; torch {report['machine']['torch']}"))
        table = Table("", "what", "found", box=None, show_header=False, padding=(0, 2, 0, 0))
        marks = {True: "[green]✓[/]", False: "[red]✗[/]", None: ""}
        for check in report["checks"]:
            table.add_row(marks[check["passed"]], check["what"], escape(check["found"]))
        print_table(table, "found")
        for left_out in report["left_out"]:
            out.print_line(f"[dim]left out: {escape(left_out)}[/]")
        out.print(f"[red]{failed} failed[/]" if failed else "[green]All is well.[/]")
        print_next(
            ("longtake doctor --gpu-selftest --json > selftest.json", "the same for a bug report: docs/gpu.md says where to")
        )
    if failed:
        raise typer.Exit(1)


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

    space = existing(workspace)
    if recipe is None:
        print_runs(space, as_json)
        return
    found = recipe_on_its_data(space, recipe, data, kind, settings or [])
    print_status(found, space, as_json, _run_arguments(recipe, found, settings or []))


def recipe_on_its_data(space: Workspace, name: str, data: Path | None, kind: str | None, settings: list[str]) -> Any:
    """The recipe; without --data, on the data of its last run, read as it was then."""
    from flows.demo import recipe_with_data
    from flows.recipe import load_recipe
    from storage.runs import load_runs

    if name.startswith("demo") and data is None and kind is None:
        return recipe_with_data(space, name, settings, draw=False)
    recipe = load_recipe(name, settings, data, kind)
    if recipe.dataset.path is None:
        last = next((run for run in load_runs(space) if run.recipe_name == recipe.name), None)
        if last is not None:
            was = last.recipe.get("dataset", {}).get("kind", recipe.dataset.kind)
            return load_recipe(name, settings, last.data, kind or (was if was != recipe.dataset.kind else None))
    return recipe


def _run_arguments(name: str, recipe: Any, settings: list[str]) -> tuple[str, ...]:
    """The arguments of the command that runs this recipe with these settings."""
    from flows.recipe import load_recipe

    sets = [word for setting in settings for word in ("--set", setting)]
    own = load_recipe(name).dataset
    if own.kind == "demo" == recipe.dataset.kind and recipe.dataset.path is not None and own.path is None:
        return ("demo", *([] if name == "demo" else [name]), *sets)
    kind = [] if own.kind == recipe.dataset.kind else ["--kind", recipe.dataset.kind]
    return ("run", name, "--data", str(recipe.dataset.path), *kind, *sets)
