"""The command `longtake extract`: features of a recipe, or of a folder of videos by the names of nets alone."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from flows.cli.options import (
    DEFAULT_WORKSPACE,
    QUARANTINED,
    DataOption,
    DryOption,
    JsonOption,
    KindOption,
    RetryOption,
    SetOption,
    WorkspaceOption,
    command_line,
)
from flows.cli.printing import err, print_next
from storage.errors import UsageError
from storage.workspace import Workspace

_FORMS = ("npy", "hdf5")


def extract(
    source: Annotated[str, typer.Argument(help="A recipe, or a folder of videos, which needs no captions.", metavar="SOURCE")],
    data: DataOption = None,
    nets: Annotated[
        list[str] | None,
        typer.Option("--net", help="Of a folder: a net such as resnet152, r3d_18 or vggish. Repeatable.", metavar="NAME"),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(min=1, help="Of a folder: evenly spread frames (or clips) per video; else 20.")
    ] = None,
    fps: Annotated[
        float | None,
        typer.Option(min=0.01, help="Of a folder: frames per second instead; nets of clips see 16 of them at a time."),
    ] = None,
    to: Annotated[
        tuple[str, Path] | None,
        typer.Option(help="Write files too: npy FOLDER, or hdf5 FOLDER.", metavar="FORMAT FOLDER"),
    ] = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    dry_run: DryOption = False,
    retry_quarantined: RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Extract the features of a recipe, or of a folder of videos with the nets that are named; what is there stays."""
    from flows.cli.main import run
    from flows.extraction import export_extracted, recipe_for_nets
    from flows.recipe import shipped_recipes

    if to is not None and to[0] not in _FORMS:
        raise UsageError(f"--to {to[0]}: there is no such format; say --to npy FOLDER or --to hdf5 FOLDER")
    folder, recipe = Path(source), source
    if nets or (source not in shipped_recipes() and folder.is_dir()):
        if not folder.is_dir():
            raise UsageError(f"--net is for a folder of videos, and {source} is none; a recipe names its own nets")
        if data is not None:
            raise UsageError(f"{source} is the folder of videos already; leave --data out")
        if frames is not None and fps is not None:
            raise UsageError("--frames and --fps both say how many frames to take: choose one")
        recipe = recipe_for_nets(folder, nets or [], frames, fps)
    elif to is not None:
        raise UsageError("--to is for a folder of videos; for a recipe's features use 'longtake features export'")
    quarantined, space = 0, Workspace.open(workspace)
    try:
        run(recipe, data, workspace, kind, settings, "extract_features", None, retry_quarantined, dry_run, as_json, False)
    except typer.Exit as ended:
        if ended.exit_code != QUARANTINED:
            raise
        quarantined = ended.exit_code
    if to is not None and not dry_run:
        written = export_extracted(space, recipe, "npy" if to[0] == "npy" else "hdf5", to[1])
        for name, report in written.items():
            err.print_line(escape(f"{name}: {report.summary()}"))
            for problem in report.problems:
                err.print_line(f"  {escape(problem.item)}: {escape(problem.reason)}")
            quarantined = quarantined or (QUARANTINED if report.problems else 0)
    elif not as_json and not dry_run:
        print_next((command_line(space, "features", "list"), "shows the features that are there"))
    raise typer.Exit(quarantined)
