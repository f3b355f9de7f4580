"""The command `longtake report`."""

from typing import Annotated

import typer
from rich.markup import escape

from flows.cli.options import DEFAULT_WORKSPACE, JsonOption, WorkspaceOption, existing
from flows.cli.printing import out

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Runs by id (or its beginning) or by recipe: its newest run. Several are compared with the first.",
        metavar="RUN",
    ),
]


def report(runs: RunsArgument = None, workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """Build the report of the newest run, or of RUN; with several, one page that compares them. Prints where it is."""
    from flows.report import build_report

    built = build_report(existing(workspace), runs or [])
    if as_json:
        out.print_json(data=built.to_json())
        return
    titles = " against ".join(f"{run.title} ({run.id})" for run in built.runs)
    out.print_line(escape(f"{titles}{'' if built.computed else ': there already'}"))
    out.print_line(f"Report: {escape(str(built.path))}")
