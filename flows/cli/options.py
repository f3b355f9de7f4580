"""The options that several commands share, each with its help text."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from storage.errors import UsageError
from storage.workspace import Workspace

RecipeArgument = Annotated[str, typer.Argument(help="A shipped recipe's name or a YAML file.", metavar="RECIPE")]
WorkspaceOption = Annotated[
    Path, typer.Option("--workspace", "-w", help="The project's folder; created if it is new.", envvar="LONGTAKE_WORKSPACE")
]
DataOption = Annotated[Path | None, typer.Option("--data", "-d", help="The folder of videos and captions.")]
KindOption = Annotated[
    str | None,
    typer.Option(
        help="Read the data as this kind: folder, videos, msvd, msrvtt, activitynet, vatex, coco, flickr8k, flickr30k, demo."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="Change a recipe value, as in seeding.epochs=5. Repeatable.", metavar="K=V"),
]
UntilOption = Annotated[str | None, typer.Option(help="Stop after this stage.", metavar="STAGE")]
ForceOption = Annotated[
    list[str] | None, typer.Option(help="Recompute this stage and what depends on it. Repeatable.", metavar="STAGE")
]
NameOption = Annotated[
    str, typer.Option("--name", help="What to call the run; 'caption --run' and 'report' find it by that.", metavar="NAME")
]
NoteOption = Annotated[str, typer.Option("--note", help="A remark on the run, for 'longtake status'.", metavar="TEXT")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and why; do nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
RetryOption = Annotated[bool, typer.Option("--retry-quarantined", help="Try the videos again that extraction could not read.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show Prefect's own log too.")]

DEFAULT_WORKSPACE = Path("longtake-workspace")

INTERRUPTED = 130
FAILED = 1
QUARANTINED = 3  # exit code: done, but some videos were set aside


def command_line(space: Workspace, *arguments: str) -> str:
    """A command as one types it: with the workspace, unless it is the default."""
    usual = Path(os.environ.get("LONGTAKE_WORKSPACE") or DEFAULT_WORKSPACE).expanduser().absolute()
    here = [] if space.root == usual else ["--workspace", os.path.relpath(space.root)]
    return shlex.join(["longtake", *arguments, *here])


def existing(workspace: Path) -> Workspace:
    """Open a workspace that must be there already: a command that only reads does not create one."""
    if not (workspace.expanduser() / "workspace.json").is_file():
        raise UsageError(
            f"there is no workspace at {workspace}; 'longtake demo' or 'longtake run' creates one, or pass --workspace"
        )
    return Workspace.open(workspace)
