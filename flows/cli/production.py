"""`longtake refresh`, `deploy` and `dashboard`: a data set that changes, on a Prefect server."""

import os
import time
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
from rich.markup import escape

from flows.cli.options import (
    DEFAULT_WORKSPACE,
    INTERRUPTED,
    QUARANTINED,
    DataOption,
    JsonOption,
    KindOption,
    RecipeArgument,
    SetOption,
    VerboseOption,
    WorkspaceOption,
)
from flows.cli.printing import err, out, print_problems
from storage.errors import LongtakeError, UsageError
from storage.workspace import Workspace

RetrainOption = Annotated[
    int, typer.Option(min=1, help="Videos that must have come, changed or gone since the last training for a new one.")
]


def refresh(
    recipe: RecipeArgument,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    retrain_after: RetrainOption = 1,
    watch: Annotated[float, typer.Option(min=0, help="Scan again every so many seconds, until stopped.")] = 0.0,
    announce: Annotated[
        bool, typer.Option("--announce", help="With --watch: only send the event; the deployed refresh does the work.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Take in what changed in a data folder: extract the new and changed videos, drop the removed, and say so."""
    from flows.orchestration.embedded_server import configure

    if announce and not watch:
        raise UsageError("--announce goes with --watch SECONDS")
    space = Workspace.open(workspace)
    configure(verbose=verbose)
    from flows.demo import recipe_with_data
    from flows.refresh import refresh_recipe
    from flows.refresh import watch as scans

    loaded = recipe_with_data(space, recipe, settings or [], data, kind)
    if not watch:
        refreshed = refresh_recipe(loaded, space, retrain_after)
        _print_refreshed(refreshed, as_json)
        if refreshed.outcome and refreshed.outcome.quarantined:
            raise typer.Exit(QUARANTINED)
        return
    if loaded.dataset.path is None:
        raise UsageError(f"recipe '{loaded.name}' does not say where its data is; pass the data folder with --data")
    root = Path(loaded.dataset.path).expanduser().absolute()
    err.print_line(f"watching {root} every {watch:g} s; Ctrl-C ends it")
    try:
        for _ in scans(root, watch):
            try:
                if announce:
                    _announce(loaded, space, root)
                else:
                    _print_refreshed(refresh_recipe(loaded, space, retrain_after), as_json)
            except LongtakeError as error:  # a data set that is wrong for a while must not end the watch
                err.print_line(f"[red]error:[/] {escape(str(error))}")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _announce(recipe: Any, space: Workspace, root: Path) -> None:
    from flows.for_data.dataset_name import with_dataset_name
    from flows.orchestration.embedded_server import prefect_api
    from flows.orchestration.events import SOURCE_CHANGED, resource, send

    recipe = with_dataset_name(recipe, space)
    with prefect_api():
        about = resource(recipe.dataset.name, recipe.name, str(space.root))
        send(SOURCE_CHANGED, about, {"dataset": recipe.dataset.name, "data": str(root)})
    err.print_line(f"{time.strftime('%H:%M:%S')} sent {SOURCE_CHANGED} for '{recipe.dataset.name}'")


def _print_refreshed(refreshed: Any, as_json: bool) -> None:
    if as_json:
        worked = list(refreshed.outcome.computed) if refreshed.outcome else []
        out.print_json(data={**refreshed.payload(), "worked": worked})
        return
    changes = refreshed.changes
    out.print_line(f"{changes}.", markup=False)
    if refreshed.outcome:
        print_problems(refreshed.outcome.problems)
    if changes.data_changed:
        enough = "enough for a new training" if refreshed.retrain else "not enough for a new training yet"
        out.print_line(f"Since the last training: {changes.since_training}; {enough}.", markup=False)


def deploy(
    recipe: Annotated[str | None, typer.Option(help="A shipped recipe's name or a YAML file.", metavar="RECIPE")] = None,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the deployments; the recipe's if not given.")] = None,
    pool: Annotated[str, typer.Option(help="Work pool; created if it is new.")] = "longtake",
    pool_type: Annotated[str, typer.Option(help="Type of a new pool: process, docker or kubernetes.")] = "process",
    cron: Annotated[str, typer.Option(help="When to refresh by the clock, as in '0 3 * * *'.")] = "",
    timezone: Annotated[str, typer.Option(help="Time zone of --cron.")] = "UTC",
    retrain_after: RetrainOption = 1,
    crashed_after: Annotated[
        int, typer.Option(min=60, help="Seconds without a sign of life after which a run is set to Crashed.")
    ] = 300,
    gpu_slots: Annotated[int, typer.Option(min=0, help="How many stages may use GPUs at once; 0: no limit.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Register pipeline, refresh, train, evaluate and caption with a Prefect server, so that it can start them."""
    from flows.orchestration.embedded_server import SLOTS, configure, prefect_api

    space = Workspace.open(workspace)
    configure()
    from prefect.schedules import Cron
    from pydantic import ValidationError

    from flows.for_data.dataset_name import with_dataset_name
    from flows.recipe import load_recipe

    try:
        if cron:
            Cron(cron, timezone=str(ZoneInfo(timezone)))
    except (ValidationError, ValueError, ZoneInfoNotFoundError) as error:
        raise UsageError(
            f"--cron {cron!r} in the time zone {timezone!r} is not understood; write it like --cron '0 3 * * *' "
            "--timezone Europe/Berlin"
        ) from error
    settings = [*(settings or []), *([f"runtime.concurrency_limit={SLOTS}"] if gpu_slots else [])]
    values: dict[str, Any] = {"workspace": str(space.root), "settings": settings, "kind": kind, "retrain_after": retrain_after}
    names = ("", "")
    if recipe is not None:
        loaded = with_dataset_name(load_recipe(recipe, settings, data, kind), space)
        names = (loaded.name, loaded.dataset.name)
        # A worker runs somewhere else: paths must hold there too.
        values["recipe"] = str(Path(recipe).absolute()) if Path(recipe).suffix in (".yaml", ".yml") else recipe
        values["data"] = str(Path(data).expanduser().absolute()) if data else None
    with prefect_api():
        from flows.orchestration.crash_recovery import ensure_automation
        from flows.orchestration.deployments import DeploymentTarget, ensure_slots
        from flows.orchestration.deployments import deploy as register

        if gpu_slots:
            ensure_slots(SLOTS, gpu_slots)
        ensure_automation(crashed_after)
        done = register(DeploymentTarget(name or names[0] or "longtake", values, *names), pool, pool_type, cron, timezone)
    if as_json:
        out.print_json(data={"deployments": done, "pool": pool})
        return
    out.print_line(f"registered in the work pool '{pool}': {', '.join(done)}")
    for line in _next_steps(done, pool, names[1]):
        out.print_line(line, markup=False)


def _next_steps(done: list[str], pool: str, dataset: str) -> list[str]:
    lines = []
    if not os.environ.get("PREFECT_API_URL"):
        lines.append("  longtake dashboard                                the server that these were registered with")
    lines += [
        f"  prefect worker start --pool {pool:<22} executes runs; as many as you like, on any machine",
        f"  prefect deployment run '{done[0]}'" + " " * max(1, 26 - len(done[0])) + "starts one now; so does the dashboard",
    ]
    if dataset:
        event = f"  prefect event emit longtake.source.changed --resource-id longtake.dataset.{dataset}"
        lines += [event, " " * 52 + "announces that files came or went: starts refresh"]
    return lines


def dashboard(port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 4200) -> None:
    """Start Prefect's server and dashboard here, on the history of all runs so far, until Ctrl-C."""
    from flows.orchestration.embedded_server import configure

    configure()
    from prefect.settings import PREFECT_HOME

    from flows.orchestration.dashboard import dashboard as served

    err.print("[dim]starting Prefect's server[/]")
    with served(Path(PREFECT_HOME.value()), port) as url:
        out.print_line(f"dashboard at {url}")
        out.print_line("Scores, leaderboards and reports are on its page Artifacts.")
        out.print_line("Runs that you start now appear there; a worker needs:")
        out.print_line(f"  export PREFECT_API_URL={url}/api")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            err.print("ended; the history is kept")
