"""The commands `longtake features ...`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from flows.cli.options import DEFAULT_WORKSPACE, QUARANTINED, DataOption, JsonOption, KindOption, WorkspaceOption, existing
from flows.cli.printing import err, out, print_problems, print_table, readable_size
from storage.records import Problem
from storage.workspace import Workspace

features_app = typer.Typer(
    help="Feature stores: import your own, list, show, verify, export, push and pull.", no_args_is_help=True
)


class Precision(StrEnum):
    """How numbers are kept."""

    float16 = "float16"
    float32 = "float32"


class Form(StrEnum):
    """What other tools read."""

    npy = "npy"
    hdf5 = "hdf5"


NameArgument = Annotated[
    str, typer.Argument(help="A store as 'features list' names it; its last part will do if only one has it.")
]


@features_app.command("import")
def import_(
    name: Annotated[str, typer.Argument(help="What to call the features; a recipe names them as 'store'.")],
    path: Annotated[Path, typer.Argument(help="A folder of <id>.npy, one .npy with --ids, .npz or HDF5 keyed by id.")],
    ids: Annotated[
        Path | None, typer.Option(help="For one .npy or --dataset: a text file with one id per line, or a JSON list.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Of HDF5: the one array whose rows belong to --ids.")] = None,
    columns: Annotated[str | None, typer.Option(help="Of one array: these columns only, such as 0:300.")] = None,
    data: DataOption = None,
    kind: KindOption = None,
    dtype: Annotated[
        Precision | None, typer.Option(help="Precision of the store; else that of the store or the export, else float16.")
    ] = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
) -> None:
    """Bring your own features. With --data, ids that the data set does not have are left out and missing ones listed."""
    from flows.features import import_into
    from storage.features.import_sources import MatrixPart

    part = MatrixPart.parse(dataset, columns)
    report = import_into(Workspace.open(workspace), name, path, ids, data, kind, dtype.value if dtype else None, part)
    if as_json:
        counts = {"imported": report.imported, "already": report.already, "unknown": list(report.unknown)}
        problems = _as_rows(report.problems)
        out.print_json(data={"name": report.name, **counts, "missing": list(report.missing), "problems": problems})
    else:
        out.print_line(escape(report.summary()))
        print_problems(list(report.problems))
    if report.problems:
        raise typer.Exit(QUARANTINED)


@features_app.command("list")
def list_features(workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """List every feature store: videos, size, how it was computed. 'features show NAME' says more of one."""
    from flows.features import describe_stores

    rows = describe_stores(existing(workspace))
    if as_json:
        out.print_json(data=rows)
        return
    table = Table("store", "videos", "per video", "size", "made by", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        shape = f"{row['shape']} {row['dtype']}".replace("'", "")
        made_by = escape(row["words"]) + (f"; {row['damaged']:,} from damaged videos" if row["damaged"] else "")
        size = readable_size(row["bytes"])
        table.add_row(escape(row["store"]), f"{row['videos']:,}", escape(shape), size, made_by)
    if rows:
        print_table(table, "made by")
    else:
        out.print_line("no features yet; 'longtake run' extracts them, 'longtake features import' brings yours")


@features_app.command("show")
def show_features(name: NameArgument, workspace: WorkspaceOption = DEFAULT_WORKSPACE, as_json: JsonOption = False) -> None:
    """Everything about one feature store: counts, sizes, and its provenance (extractor, weights, sampling, versions)."""
    from flows.features import describe_store, find_store

    row = describe_store(*find_store(existing(workspace), name))
    if as_json:
        out.print_json(data=row)
        return
    row["bytes"] = readable_size(row["bytes"])
    _print_nested(row)


@features_app.command("classes")
def show_classes(
    name: NameArgument,
    videos: Annotated[list[str] | None, typer.Argument(help="Ids of videos; without any, all.")] = None,
    top: Annotated[int, typer.Option(help="How many classes of each video.", min=1)] = 5,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
) -> None:
    """The likeliest classes of videos, by name, from a feature with 'output: classes', such as Kinetics' actions of i3d."""
    from flows.features import find_store, top_classes

    full, store = find_store(existing(workspace), name)
    rows = top_classes(store, full, videos or [], top)
    if as_json:
        out.print_json(data=rows)
        return
    for row in rows:
        shown = ", ".join(f"{each['class']} {each['probability']:.0%}" for each in row["classes"])
        out.print(f"[bold]{escape(row['video'])}[/]  {escape(shown)}", highlight=False, soft_wrap=True)


@features_app.command("verify")
def verify_features(
    name: Annotated[str | None, typer.Argument(help="One store, as 'features list' names it; all if left out.")] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Take bad rows out, so that the next run recomputes just them.")] = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
) -> None:
    """Check every row of one feature store, or of all, against its checksum; list what is wrong and what to do."""
    from flows.features import verify_stores

    found, left = verify_stores(existing(workspace), name, drop)
    problems = [(store, problem) for store, its in found.items() for problem in its]
    if as_json:
        out.print_json(data=[{"store": store, **row} for store, its in found.items() for row in _as_rows(its)])
    else:
        for store, problem in problems:
            out.print_line(escape(f"{store}: {problem.item}: {problem.reason}"))
        settled = f"; bad rows were taken out, {_count(left, 'problem')} left" if drop else ""
        out.print("every row is as it was written" if not problems else _count(len(problems), "problem") + settled)
    if left:
        raise typer.Exit(1)


@features_app.command("export")
def export_features(
    name: NameArgument,
    to: Annotated[Form, typer.Option(help="npy: a folder with one <id>.npy per video; hdf5: one file keyed by id.")],
    path: Annotated[Path | None, typer.Option("--out", help="The folder or file; else the store's name in this folder.")] = None,
    ids: Annotated[Path | None, typer.Option(help="Only these videos: a text file with one id per line, or a JSON list.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there with other values.")] = False,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
) -> None:
    """Write a store's rows for other tools, as they are stored; 'features import' takes them back."""
    from flows.features import export_store

    report = export_store(existing(workspace), name, to.value, path, ids, overwrite)
    if as_json:
        counts = {"path": str(report.path), "written": report.written, "already": report.already}
        out.print_json(data={**counts, "problems": _as_rows(report.problems)})
    else:
        out.print_line(escape(report.summary()))
        for problem in report.problems:
            err.print_line(f"  {escape(problem.item)}: {escape(problem.reason)}")
    if report.problems:
        raise typer.Exit(QUARANTINED)


@features_app.command("push")
def push_features(
    name: NameArgument,
    to: Annotated[str, typer.Option(help="s3://bucket/prefix (AWS_* variables say how), or file:///folder.")],
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
) -> None:
    """Send what S3-like storage lacks of a feature store. Safe to repeat, and for several machines at once."""
    from flows.features import push_store

    _print_transfer(*push_store(existing(workspace), name, to), "sent", as_json)


@features_app.command("pull")
def pull_features(
    name: NameArgument,
    source: Annotated[str, typer.Option("--from", help="s3://bucket/prefix (AWS_* variables say how), or file:///folder.")],
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    as_json: JsonOption = False,
) -> None:
    """Fetch what is missing here of a feature store on S3-like storage."""
    from flows.features import pull_store

    _print_transfer(*pull_store(Workspace.open(workspace), name, source), "fetched", as_json)


def _print_transfer(name: str, done: Any, verb: str, as_json: bool) -> None:
    if as_json:
        counts = {"segments": done.segments, "bytes": done.nbytes, "removed": done.removed}
        out.print_json(data={"store": name, **counts})
        return
    copied = f"{_count(done.segments, 'segment')} {verb}, {readable_size(done.nbytes)}"
    tidied = f"; {_count(done.removed, 'segment')} removed whose rows newer ones hold" if done.removed else ""
    copied = copied if done.segments else "nothing to do"
    out.print_line(escape(f"{name}: {copied}{tidied}"))


def _print_nested(values: dict[str, Any], indent: int = 0) -> None:
    """Names and values, one per line, dictionaries indented below their name."""
    for name, value in values.items():
        label = f"{'  ' * indent}{name.replace('_', ' ')}"
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = {str(n): item for n, item in enumerate(value, 1)}
        if isinstance(value, dict):
            out.print_line(escape(label))
            _print_nested(value, indent + 1)
        elif value not in ([], None):
            shown = f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
            out.print_line(escape(f"{label:24}{shown}"))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _as_rows(problems: tuple[Problem, ...] | list[Problem]) -> list[dict[str, str]]:
    return [{"item": p.item, "kind": p.kind, "reason": p.reason, "where": p.where} for p in problems]
