"""The command `longtake caption`: captions for your own videos, from a run that is trained or a file that it was exported to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from flows.cli.options import (
    DEFAULT_WORKSPACE,
    FAILED,
    INTERRUPTED,
    QUARANTINED,
    JsonOption,
    RetryOption,
    WorkspaceOption,
    existing,
)
from flows.cli.printing import err, out, print_warnings
from storage.datasets.user_files import gather_files
from storage.errors import UsageError, wrap_os_errors
from storage.files.atomic import write_text
from storage.records import Problem
from storage.results import FEW
from storage.runs import RunRecord
from storage.text.caption_writers import RENDERERS, SUBTITLES, CaptionLine, Format, as_row

if TYPE_CHECKING:  # importing it would load torch before the first line of help
    from tasks.inference.user_files import Captioned

RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        "-r",
        help="A run's id, name or recipe; else the newest finished run, sweeps left out.",
        metavar="RUN",
    ),
]


def caption(
    videos: Annotated[
        list[str], typer.Argument(help="Files, folders, or patterns such as 'clips/**/*.mp4'.", metavar="VIDEO...")
    ],
    run: RunOption = None,
    captioner_file: Annotated[
        Path | None, typer.Option("--captioner", help="A file that 'longtake export' wrote, in place of a run.", metavar="FILE")
    ] = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    format: Annotated[Format, typer.Option("--format", "-f", help="What is written.")] = "text",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file; for srt and vtt of several videos a folder.", metavar="PATH")
    ] = None,
    n_best: Annotated[int, typer.Option("--n-best", min=1, max=50, help="Captions per clip, best first.")] = 1,
    windows: Annotated[
        float | None, typer.Option(min=0.1, help="Cut videos into windows of so many seconds.", metavar="SECONDS")
    ] = None,
    shots: Annotated[
        bool, typer.Option("--shots", help="Cut videos at their shot changes; srt and vtt do so by themselves.")
    ] = False,
    retry_quarantined: RetryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Caption your own videos and images with a trained run; what it needs is extracted once and kept."""
    if windows is not None and shots:
        raise UsageError("--windows and --shots are two ways to cut a video; choose one")
    if format in SUBTITLES and n_best > 1:
        raise UsageError(f"a {format} file has one caption at a time; leave --n-best out, or choose jsonl or csv")
    if format == "coco" and (n_best > 1 or shots or windows is not None):
        raise UsageError("COCO's results have one caption per file; leave --n-best, --windows and --shots out")
    if as_json and (format != "text" or output is not None):
        raise UsageError("--json prints everything on standard output; leave --format and --output out")
    if captioner_file is None:
        existing(workspace)
    elif run is not None:
        raise UsageError("--run and --captioner both name a captioner; choose one")
    elif not captioner_file.is_file():
        raise UsageError(f"there is no file {captioner_file}; give one that 'longtake export' wrote")
    _check_output(videos, format, output)

    from flows.caption import VideoCaptioner
    from flows.cli.caption_lines import lines_of, shown_problems
    from storage.media.shots import ShotOptions
    from tasks.inference.user_files import WindowOptions

    cut = WindowOptions(seconds=windows) if windows else ShotOptions() if shots or format in SUBTITLES else None
    captioner = VideoCaptioner.open(workspace, str(captioner_file) if captioner_file else run, retry_quarantined)
    err.print_line(f"[dim]{escape(_introduction(captioner.run, run, captioner_file))}[/]")
    print_warnings(captioner.run.warnings)
    try:
        found = captioner.caption(videos, cut, n_best)
    except KeyboardInterrupt:
        err.print("interrupted; what is extracted is kept, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    lines, problems = lines_of(found, n_best), shown_problems([*found.problems, *_silent(found)])
    if as_json:
        out.print_json(data=_document(captioner.run, lines, problems, found.extracted))
    else:
        _write(lines, format, output)
        _print_rest(captioner.run.title, lines, problems, found.extracted)
    if problems:
        raise typer.Exit(QUARANTINED if any(line.caption for line in lines) else FAILED)


def _introduction(run: RunRecord, wanted: str | None, file: Path | None) -> str:
    """Which captioner speaks, and why this one."""
    scored = f", CIDEr {100 * run.scores['CIDEr']:.1f}" if "CIDEr" in run.scores else ""
    scored += f" of {run.scored} videos" if scored and 0 < run.scored < FEW else ""
    why = f"from {file}" if file else f"asked for as '{wanted}'" if wanted else "the newest finished run; --run takes another"
    return f"captioner: {run.title}, run {run.short_id} of {run.finished_at or run.started_at}{scored} ({why})"


def _silent(found: Captioned) -> list[Problem]:
    """Captions without a word."""
    reason = "the captioner found no words for it; 'longtake status' and its report say more of the captioner"
    return [Problem(str(clip.path), "no_words", reason, quarantined=True) for clip in found.clips if not clip.caption.caption]


def _document(run: Any, lines: Sequence[CaptionLine], problems: Sequence[Problem], extracted: int) -> dict[str, Any]:
    rows = [{"file": problem.item, "kind": problem.kind, "reason": problem.reason} for problem in problems]
    used = {"id": run.id, "recipe": run.recipe_name, "dataset": run.dataset}
    return {"run": used, "captions": [as_row(line) for line in lines], "problems": rows, "extracted": extracted}


def _check_output(videos: Sequence[str], format: Format, output: Path | None) -> None:
    """Check before hours of work that the output can be written."""
    if output is not None and output.is_dir() and format not in SUBTITLES:
        raise UsageError(f"{output} is a folder; name the file, such as {output / 'captions'}.{format}")
    if format in SUBTITLES and not _is_folder(output):
        count = len(gather_files(videos)[0])
        if count > 1:
            raise UsageError(f"{count} videos make {count} {format} files; give a folder with --output")


def _is_folder(output: Path | None) -> bool:
    """Where subtitles of several videos go: a folder, or a name without an ending."""
    return output is not None and (output.is_dir() or not output.suffix)


def _write(lines: Sequence[CaptionLine], format: Format, output: Path | None) -> None:
    if output is not None and format in SUBTITLES and _is_folder(output):
        clips: dict[str, list[CaptionLine]] = {}
        for line in lines:
            clips.setdefault(line.file, []).append(line)
        for file, name in _names(list(clips), format).items():
            save_captions(output / name, clips[file], format)
    elif output is not None:
        save_captions(output, lines, format)
    else:
        typer.echo(RENDERERS[format](lines), nl=False)


def _names(files: Sequence[str], format: Format) -> dict[str, str]:
    """file -> the name of its subtitles: what players look for beside a video. Videos of one stem get a number."""
    names: dict[str, str] = {}
    for file in files:
        stem = Path(file).stem
        name, n = f"{stem}.{format}", 2
        while name in names.values():
            name, n = f"{stem}-{n}.{format}", n + 1
        names[file] = name
    return names


def save_captions(path: Path, lines: Sequence[CaptionLine], format: Format) -> None:
    with wrap_os_errors(path):
        write_text(path, RENDERERS[format](lines))
    err.print_line(f"wrote {escape(str(path))}")


def _print_rest(title: str, lines: Sequence[CaptionLine], problems: Sequence[Problem], extracted: int) -> None:
    rows = f"rows of features extracted: {extracted}" if extracted else "nothing had to be extracted"
    count = f"{len(lines)} caption{'' if len(lines) == 1 else 's'}"
    err.print_line(f"[dim]{count} by {escape(title)}; {rows}[/]")
    if problems:
        rest = "the rest went on" if any(line.caption for line in lines) else "nothing was captioned"
        err.print(f"[yellow]{len(problems)} could not be captioned; {rest}:[/]")
    for problem in problems:
        err.print_line(f"  {escape(problem.item)}: {escape(problem.reason)} [dim]({problem.kind})[/]")
