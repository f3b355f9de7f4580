"""The commands `longtake features ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli_options import (
    DEFAULT_WORKSPACE,
    QUARANTINED,
    DataOption,
    JsonOption,
    KindOption,
    WorkspaceOption,
    existing,
)
from flows.printing import out, print_problems, readable_size
from storage.workspace import Workspace

features_app = typer.Typer(help="Feature stores: import your own, list, verify.", no_args_is_help=True)


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
        print_problems(list(report.problems))
    if report.problems:
        raise typer.Exit(QUARANTINED)


@features_app.command("list")
def list_features(workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """List every feature store: rows, size, what made it."""
    from flows.features import describe_stores

    rows = describe_stores(existing(workspace))
    if as_json:
        out.print_json(data=rows)
        return
    table = Table("store", "videos", "shape of a row", "size", "made by", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(
            row["store"], f"{row['videos']:,}", str(row["shape"]), readable_size(row["bytes"]), escape(row["words"])
        )
    out.print(
        table if rows else "no features yet; 'longtake run' extracts them, 'longtake features import' brings yours"
    )


@features_app.command("verify")
def verify_features(workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """Check every row of every feature store against its checksum."""
    from flows.features import verify_stores

    problems = verify_stores(existing(workspace))
    if as_json:
        out.print_json(data=[{"item": p.item, "kind": p.kind, "reason": p.reason, "where": p.where} for p in problems])
    else:
        print_problems(problems)
        out.print("every row is as it was written" if not problems else f"{len(problems)} problems")
    if problems:
        raise typer.Exit(1)
