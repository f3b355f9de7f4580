"""The command `longtake`. Each command only parses, calls and prints; heavy imports wait until they are needed."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.cli.caption import caption, save_captions
from flows.cli.examples import add_examples
from flows.cli.export import export
from flows.cli.extract import extract
from flows.cli.features import features_app
from flows.cli.frames import frames
from flows.cli.options import (
    DEFAULT_WORKSPACE,
    INTERRUPTED,
    QUARANTINED,
    DataOption,
    DryOption,
    ForceOption,
    JsonOption,
    KindOption,
    NameOption,
    NoteOption,
    RecipeArgument,
    RetryOption,
    SetOption,
    UntilOption,
    VerboseOption,
    WorkspaceOption,
    command_line,
    existing,
)
from flows.cli.plain_help import show_plainly
from flows.cli.printing import err, out, print_next, print_outcome, print_problems, readable_size
from flows.cli.production import dashboard, deploy, refresh
from flows.cli.recipes import recipe_app, recipes
from flows.cli.report import report
from flows.cli.score import score
from flows.cli.serve import serve
from flows.cli.status import doctor, status
from flows.cli.sweep import sweep, sweeps
from flows.cli.weights import weights_app
from flows.orchestration.process_lifetime import end_with_starter, treat_sigterm_as_interrupt
from storage.errors import LongtakeError, UsageError, explain_os_error
from storage.text.caption_writers import SUBTITLES, Format
from storage.workspace import Workspace

app = typer.Typer(
    name="longtake",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

# The groups that help shows commands in, in the order of their first commands.
_RUN, _OWN, _TRY, _TEAM, _HOUSE = "Run", "Captions", "Recipes and sweeps", "In production", "Housekeeping"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"longtake {version('longtake')}")
        raise typer.Exit()


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", metavar="", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """From raw video to trained, evaluated captions, in one uninterrupted take."""


_TRAINED = "(trained)"  # the last stage of training that a recipe has


@app.command(rich_help_panel=_RUN)
def demo(
    recipe: Annotated[str, typer.Argument(help="The recipe demo, or a variant such as demo-glrg.")] = "demo",
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    settings: SetOption = None,
    until: UntilOption = None,
    force: ForceOption = None,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Draw the demo world, run everything on it, print the scores, write the report."""
    from flows.demo import check_demo

    check_demo(recipe, settings or [], draw=not dry_run)
    run(recipe, None, workspace, None, settings, until, force, False, dry_run, as_json, verbose)


@app.command(rich_help_panel=_RUN)
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe, a YAML file, or a folder of videos and captions.", metavar="RECIPE")],
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
    backbone: Annotated[
        str | None, typer.Option(help="See by this net instead of the recipe's only one: resnet152, r3d_18 ...", metavar="NAME")
    ] = None,
    name: NameOption = "",
    note: NoteOption = "",
) -> None:
    """Run the whole pipeline of a recipe; what is already computed is not computed again."""
    from flows.demo import recipe_with_data
    from flows.extraction import backbone_settings
    from flows.orchestration.embedded_server import configure
    from flows.pipeline import plan_pipeline, trained_stage
    from flows.recipe import shipped_recipes
    from flows.status import print_plan

    if recipe not in shipped_recipes() and "\n" not in recipe and Path(recipe).is_dir():
        if data is not None:
            raise UsageError(f"{recipe} is the data folder already; leave --data out, or name a recipe first")
        recipe, data = "folder", Path(recipe)
    settings = [*(backbone_settings(recipe, backbone) if backbone else []), *(settings or [])]
    settings = [*(settings or []), *(["runtime.retry_quarantined=true"] if retry_quarantined else [])]
    space = Workspace.open(workspace)
    loaded = recipe_with_data(space, recipe, settings, data, kind, draw=not dry_run)
    until = trained_stage(loaded) if until == _TRAINED else until
    if dry_run:
        print_plan(plan_pipeline(loaded, space, force or [], until), as_json)
        return
    configure(verbose=verbose)
    from flows.execute import cached_outcome, execute, planned_flow
    from tasks.extraction.pretrained import fetch_weights

    try:
        fetch_weights(loaded.wanted_nets)
        plan = plan_pipeline(loaded, space, force or [], until)
        plan.settings, plan.name, plan.note = settings, name, note
        for remark in plan.notes:
            err.print_line(f"[dim]{escape(remark)}[/]")
        outcome = execute(planned_flow(plan, force or [], until)) if plan.to_do else cached_outcome(plan)
    except LongtakeError:
        _print_problems_so_far(loaded, space)
        raise
    except KeyboardInterrupt:
        err.print("interrupted; what is finished is kept, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        out.print_json(data=outcome.to_json())
    else:
        print_outcome(outcome)
        if outcome.run.report:
            print_next((command_line(space, "caption", "new-videos"), "captions other videos with this run"))
    if outcome.quarantined:
        raise typer.Exit(QUARANTINED)


def _print_problems_so_far(recipe: Any, space: Workspace) -> None:
    """What the stages that are done set aside: often the reason why a later one failed."""
    from flows.pipeline import plan_pipeline
    from tasks.framework.quarantine import gather_problems

    done = [step.ref for step in plan_pipeline(recipe, space).steps if step.completion]
    print_problems(gather_problems(space, done))


app.command(rich_help_panel=_RUN)(extract)


@app.command(rich_help_panel=_RUN)
def train(
    recipe: RecipeArgument,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    nproc: Annotated[int | None, typer.Option(min=1, help="Processes that train together, a GPU each.")] = None,
    dry_run: DryOption = False,
    retry_quarantined: RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe up to its trained captioner."""
    settings = [*(settings or []), *([f"runtime.nproc={nproc}"] if nproc else [])]
    run(recipe, data, workspace, kind, settings, _TRAINED, None, retry_quarantined, dry_run, as_json, False)


@app.command(rich_help_panel=_RUN)
def evaluate(
    recipe: RecipeArgument,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="Of --output; coco: as COCO's server wants it.")] = "coco",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the captions of the split to this file too.", metavar="PATH")
    ] = None,
    dry_run: DryOption = False,
    retry_quarantined: RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe up to its scores."""
    if format in SUBTITLES:
        raise UsageError(f"{format} is for the parts of a video; choose coco, jsonl, csv or text")
    quarantined = 0
    try:
        run(recipe, data, workspace, kind, settings, "evaluate", None, retry_quarantined, dry_run, as_json, False)
    except typer.Exit as ended:
        if ended.exit_code != QUARANTINED:
            raise
        quarantined = ended.exit_code
    if output is not None and not dry_run:
        from flows.caption import evaluated_captions

        save_captions(output, evaluated_captions(Workspace.open(workspace), recipe, settings or [], data, kind), format)
    raise typer.Exit(quarantined)


app.command(rich_help_panel=_RUN)(status)
app.command(rich_help_panel=_RUN)(report)
app.command(rich_help_panel=_RUN)(frames)
app.command(rich_help_panel=_OWN)(score)
app.command(rich_help_panel=_OWN)(caption)
app.command(rich_help_panel=_OWN)(serve)
app.command(rich_help_panel=_OWN)(export)
app.command(rich_help_panel=_TRY)(recipes)
app.add_typer(recipe_app, name="recipe", rich_help_panel=_TRY)
app.command(rich_help_panel=_TRY)(sweep)
app.command(rich_help_panel=_TRY)(sweeps)
app.command(rich_help_panel=_TEAM)(refresh)
app.command(rich_help_panel=_TEAM)(deploy)
app.command(rich_help_panel=_TEAM)(dashboard)
app.add_typer(features_app, name="features", rich_help_panel=_HOUSE)
app.add_typer(weights_app, name="weights", rich_help_panel=_HOUSE)
app.command(rich_help_panel=_HOUSE)(doctor)


@app.command(rich_help_panel=_HOUSE)
def gc(
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    keep: Annotated[int, typer.Option(min=0, help="Runs to keep of every recipe and data set.")] = 1,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove results, features and feature rows that no kept run refers to."""
    from storage.files.garbage_collection import collect, find_garbage
    from tasks.extraction.dead_rows import find_dead_rows

    space = existing(workspace)
    garbage, dead = find_garbage(space, keep), find_dead_rows(space, keep)
    if not dry_run:
        collect(space, garbage)
        for rows in dead:
            rows.drop()
    total = sum(item.nbytes for item in garbage)
    if as_json:
        items = [{"path": str(g.path), "reason": g.reason, "bytes": g.nbytes} for g in garbage]
        out.print_json(data={"removed": not dry_run, "bytes": total, "items": items, "dead_rows": sum(d.count for d in dead)})
        return
    for item in garbage:
        out.print_line(f"{readable_size(item.nbytes):>9}  {item.path.relative_to(space.root)}  [dim]{item.reason}[/]")
    for rows in dead:
        path = rows.store.path.relative_to(space.root)
        out.print_line(f"{rows.count:>4} rows  {path}  [dim]of videos changed or removed since[/]")
    verb = "would be freed" if dry_run else "freed"
    out.print(f"{readable_size(total)} {verb}, {len(garbage)} items" if garbage or dead else "nothing to collect")


add_examples(app)
show_plainly(app)


def main() -> None:
    """Run the command; failures that we can explain are printed without a traceback."""
    treat_sigterm_as_interrupt()
    end_with_starter()
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
    err.print_line(f"[red]error:[/] {escape(message)}")
    sys.exit(code)
