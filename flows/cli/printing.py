"""What the commands print: results on standard output, everything about the way there on standard error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from storage.records import Problem
from storage.results import FEW
from tasks.framework.progress import PlainConsole

if TYPE_CHECKING:  # importing it would load torch before the first line of help
    from flows.execute import RunOutcome

SPLIT_DERIVED = "split_derived"  # no problem: what was done with videos that have no split
_PROSE_WIDTH = 16
out = PlainConsole()
err = PlainConsole(stderr=True)


def print_outcome(outcome: RunOutcome) -> None:
    run = outcome.run
    if not outcome.computed:
        out.print("Nothing to do: every stage is cached.")
    print_problems(outcome.problems)
    if run.scores:
        shown = {name: f"{100 * value:.1f}" for name, value in run.scores.items()}
        shown.pop("CIDEr-D", None)  # one number under both names
        table = Table(*shown, title=f"{run.title}: scores", title_justify="left")
        table.add_row(*shown.values())
        print_table(table)
        _print_metrics(outcome.metrics)
    print_warnings(run.warnings)
    if run.report:
        out.print_line(f"Report: {run.report}")


def print_table(table: Table, *prose: str) -> None:
    """Print a table whose cells can be copied: columns of `prose` are wrapped between words, the others not at all. Where a
    terminal is too narrow for that, the lines are longer than it, and its own to wrap."""
    for column in table.columns:
        column.no_wrap = column.header not in prose
        column.min_width = None if column.no_wrap else _PROSE_WIDTH
    needed = Measurement.get(out, out.options.update(width=10_000), table).minimum
    options = out.options.update(width=max(needed, out.width))
    for line in out.render_lines(table, options, pad=False):
        text = Text.assemble(*((part.text, part.style or "") for part in line))
        text.rstrip()  # else what only fills a long line would wrap as an empty one
        out.print(text, highlight=False, soft_wrap=True)


def print_warnings(warnings: Sequence[str]) -> None:
    """What is suspicious about captions."""
    for warning in warnings:
        err.print_line(f"[yellow]warning:[/] {escape(warning)}")


def print_next(*commands: tuple[str, str]) -> None:
    """What to type now: commands, each with what it does."""
    width = max(len(command) for command, _ in commands)
    for n, (command, what) in enumerate(commands):
        label = "Next:" if n == 0 else "     "
        line = f"{label} [bold cyan]{escape(command.ljust(width))}[/]  [dim]{escape(what)}[/]"
        out.print_line(line)


def _print_metrics(metrics: dict[str, Any]) -> None:
    """What evaluation says beside the scores, in a line or two."""
    videos = metrics.get("videos", 0)
    shares = {name: value for name, value in (metrics.get("self_retrieval") or {}).items() if int(name[2:]) < videos}
    parts = [f"{name} {100 * v:.1f} %" if name == "Copied" else f"{name} {v:,.4g}" for name, v in metrics["diversity"].items()]
    parts += [f"self-retrieval {name} {100 * value:.1f} %" for name, value in shares.items()]
    out.print_line(", ".join(parts))
    if videos < FEW:
        scored = "video was" if videos == 1 else "videos were"
        out.print_line(f"[yellow]Only {videos} {scored} scored[/]: such scores vary a lot from one set to the next.")
    for name, why in metrics["not_computed"].items():
        out.print_line(f"[dim]{name} not computed: {escape(why)}[/]")


def print_problems(problems: list[Problem], most: int = 20) -> None:
    """The quarantined one by one, the merely reported by kind."""
    quarantined = [p for p in problems if p.quarantined]
    if quarantined:
        err.print(f"[yellow]{len(quarantined)} in quarantine; the rest went on:[/]")
    for problem in quarantined[:most]:
        err.print_line(f"  {escape(problem.item)}: {escape(problem.reason)} [dim]({problem.kind})[/]")
    if len(quarantined) > most:
        err.print_line(f"  ... and {len(quarantined) - most} more; the report and 'longtake status RECIPE --json' list all")
    others: dict[str, int] = {}
    for problem in problems:
        if problem.kind == SPLIT_DERIVED:
            err.print_line(f"[dim]{escape(problem.reason)}[/]")
        elif not problem.quarantined:
            others[problem.kind] = others.get(problem.kind, 0) + 1
    for kind, count in sorted(others.items()):
        example = next(p for p in problems if p.kind == kind and not p.quarantined)
        err.print_line(f"[dim]noticed: {count} x {kind}, such as {escape(example.item)}: {escape(example.reason)}[/]")


def readable_size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
