"""Progress of long work: a bar in a terminal, plain lines elsewhere, and a Prefect artifact where Prefect runs."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast
from uuid import UUID

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from storage.files.sanitising import visible

_LINE_EVERY = 10.0  # seconds between plain lines
_ARTIFACT_EVERY = 5.0  # an update costs the server up to 50 ms


class PlainConsole(Console):
    """A console for untrusted text: a file's name cannot move the cursor or clear the screen. Markup is still up to the caller
    (`rich.markup.escape`)."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def print_line(self, text: str, markup: bool = True) -> None:
        """Print one line as it is: numbers are not coloured, and a long line is the terminal's to wrap."""
        self.print(text, markup=markup, highlight=False, soft_wrap=True)


console = PlainConsole(stderr=True)


class ProgressBar:
    """Counts the units of work that are done and displays them: on `display` in a terminal, else as lines."""

    def __init__(self, label: str, total: int, unit: str, display: Progress | None, artifact: UUID | None, done: int = 0):
        self.label, self.total, self.unit, self._display, self._artifact = label, total, unit, display, artifact
        self.count = self._done_before = done
        self._row = display.add_task(escape(label), total=total, completed=done, postfix="") if display else None
        self._started = self._last_line = self._last_artifact = time.monotonic()

    def advance(self, n: int = 1, postfix: str = "") -> None:
        """`postfix` is a short text such as 'loss 2.31' behind the bar."""
        self.update_to(self.count + n, postfix)

    def update_to(self, count: int, postfix: str = "") -> None:
        self.count, now = count, time.monotonic()
        if self._display is not None and self._row is not None:
            self._display.update(self._row, completed=count, postfix=escape(postfix))
        elif now - self._last_line >= _LINE_EVERY:
            self._last_line = now
            console.print_line(f"  {self.label}: {self._text(now)} {postfix}".rstrip(), markup=False)
        if self._artifact and now - self._last_artifact >= _ARTIFACT_EVERY:
            self._last_artifact = now
            self._update_artifact(f"{self._text(now)} {postfix}")

    def _text(self, now: float) -> str:
        rate = (self.count - self._done_before) / max(now - self._started, 1e-6)
        left = (self.total - self.count) / rate if rate else 0
        return f"{self.count} of {self.total} {self.unit}, {rate:.1f}/s, {left:.0f} s left"

    def _update_artifact(self, text: str) -> None:
        from prefect.artifacts import update_progress_artifact

        if self._artifact:
            percent = 100.0 * self.count / max(self.total, 1)
            update_progress_artifact(artifact_id=self._artifact, progress=percent, description=f"{self.label}: {text}")

    def close(self) -> None:
        """What is finished leaves Prefect's pages: its task run says how long it took. The bar of a stage that failed stays."""
        if self._artifact:
            from prefect.client.orchestration import get_client

            with get_client(sync_client=True) as client:
                client.delete_artifact(self._artifact)


@contextmanager
def progress_bar(label: str, total: int, unit: str, done: int = 0) -> Iterator[ProgressBar]:
    """Display the progress of `total` units of work, `done` of which an earlier run finished."""
    with progress_bars({label: total}, unit, done) as bars:
        yield bars[label]


@contextmanager
def progress_bars(totals: dict[str, int], unit: str, done: int = 0) -> Iterator[dict[str, ProgressBar]]:
    """Display the progress of several pieces of work at once: label -> total."""
    artifacts = {label: _start_artifact(label) for label in totals}
    columns = (
        TextColumn("  [bold]{task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn(unit),
        _UnitsPerSecond(),
        TimeRemainingColumn(compact=True),
        TextColumn("[dim]{task.fields[postfix]}"),
    )
    in_terminal = console.is_terminal and sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True) if in_terminal else nullcontext() as display:
        bars = {name: ProgressBar(name, n, unit, display, artifacts[name], done) for name, n in totals.items()}
        yield bars
    for bar in bars.values():
        bar.close()


@contextmanager
def progress_on_demand(label: str, unit: str, size: int = 1) -> Iterator[Callable[[int, int], None]]:
    """A callback (done, total) for work that reports its own progress. The bar appears at the first call, so work that turns
    out to be empty shows none; `size` of what is counted make one unit."""
    with ExitStack() as stack:
        bar: ProgressBar | None = None

        def update(done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                bar = stack.enter_context(progress_bar(label, -(-total // size), unit))
            bar.update_to(-(-done // size))

        yield update


class _UnitsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "", style="dim")


class CurveArtifact:
    """A training's curve as one growing table in Prefect, if this code runs inside a Prefect task."""

    def __init__(self, label: str):
        self.label, self._wanted, self._last = label, _in_prefect_task(), -math.inf
        self._artifact: UUID | None = None

    def show(self, curve: list[dict[str, Any]], final: bool = False) -> None:
        """Publish the points so far. Short epochs are published together, the final one always."""
        now = time.monotonic()
        if not (self._wanted and curve) or (now - self._last < _ARTIFACT_EVERY and not final):
            return
        self._last = now
        from prefect.artifacts import create_table_artifact
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import ArtifactUpdate

        columns = list(dict.fromkeys(name for point in curve for name in point))
        rows = [{name: _rounded(point.get(name, "")) for name in columns} for point in curve]
        if self._artifact is None:
            description = f"The curve of **{self.label}**: one row per epoch, the newest at the end"
            self._artifact = cast(UUID, create_table_artifact(table=rows, description=description))
        else:
            with get_client(sync_client=True) as client:
                client.update_artifact(artifact_id=self._artifact, artifact=ArtifactUpdate(data=json.dumps(rows)))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_rounded(each)}" for name, each in value.items())
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _in_prefect_task() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import TaskRunContext

    return TaskRunContext.get() is not None


def _start_artifact(label: str) -> UUID | None:
    """A progress artifact in Prefect, if this code runs inside a Prefect task. Like curves it has no key: it is on the page of
    its run, and does not bury the scores among all artifacts."""
    if not _in_prefect_task():
        return None
    from prefect.artifacts import create_progress_artifact

    return cast(UUID, create_progress_artifact(progress=0.0, description=label))
