"""The command `longtake export`: a trained captioner as one file, for another machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from flows.cli.options import DEFAULT_WORKSPACE, JsonOption, WorkspaceOption, existing
from flows.cli.printing import out, print_next
from storage.errors import UsageError


def export(
    run: Annotated[str, typer.Argument(help="A run's id or its recipe's name.", metavar="RUN")],
    file: Annotated[Path, typer.Argument(help="The file to write, such as dogs.captioner.", metavar="FILE")],
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    float16: Annotated[bool, typer.Option("--float16", help="Half the size; now and then another word.")] = False,
    note: Annotated[str, typer.Option(help="What people should know of it: its data, its limits, its terms of use.")] = "",
    frames: Annotated[
        int | None,
        typer.Option(
            min=1, help="Frames to take of a video, evenly; else as in training. For what was trained on photos: 4, say."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's captioner as one file: weights, vocabulary, recipe, scores, and which pretrained nets it needs."""
    space = existing(workspace)
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name the file, such as {file / run}.captioner")
    from flows.caption import VideoCaptioner

    captioner = VideoCaptioner.open(space.root, run)
    captioner.export(file, note, float16, frames)
    size = file.stat().st_size
    if as_json:
        out.print_json(data={"file": str(file), "bytes": size, "run": captioner.run.id, "scores": captioner.run.scores})
        return
    out.print_line(f"wrote {escape(str(file))}: {escape(captioner.run.title)}, {size / 1e6:.1f} MB")
    print_next((f"longtake caption VIDEO --captioner {file}", "on any machine with Longtake"))
