"""Progress of long work: a bar in a terminal, plain lines elsewhere, and one Prefect artifact a stage where Prefect runs."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tasks.framework.console import PlainConsole

_LINE_EVERY = 10.0  # seconds between plain lines
_ARTIFACT_EVERY = 5.0  # an update costs the server up to 50 ms

console = PlainConsole(stderr=True)


class Meter:
    """Counts work done; everything else is display."""

    def __init__(self, label: str, total: int, unit: str, bar: Progress | None, artifact: UUID | None, done: int = 0):
        self.label, self.total, self.unit = label, total, unit
        self.count = self._first = done
        self._bar, self._artifact = bar, artifact
        self._bar_id: TaskID | None = None
        if bar is not None:
            self._bar_id = bar.add_task(escape(label), total=total, completed=done, figures="")
        self._started = self._last_line = self._last_artifact = time.monotonic()

    def advance(self, n: int = 1, figures: str = "") -> None:
        """`figures` is a short text such as 'loss 2.31' shown behind the bar."""
        self.to(self.count + n, figures)

    def to(self, count: int, figures: str = "") -> None:
        self.count, now = count, time.monotonic()
        if self._bar is not None and self._bar_id is not None:
            self._bar.update(self._bar_id, completed=count, figures=escape(figures))
        elif now - self._last_line >= _LINE_EVERY:
            self._last_line = now
            console.print(f"  {self.label}: {self._text(now)} {figures}".rstrip(), highlight=False, markup=False)
        if self._artifact and now - self._last_artifact >= _ARTIFACT_EVERY:
            self._last_artifact = now
            self._update_artifact(f"{self._text(now)} {figures}")

    def _text(self, now: float) -> str:
        rate = (self.count - self._first) / max(now - self._started, 1e-6)  # what was done before took no time now
        left = (self.total - self.count) / rate if rate else 0
        return f"{self.count} of {self.total} {self.unit}, {rate:.1f}/s, {left:.0f} s left"

    def _update_artifact(self, text: str) -> None:
        from prefect.artifacts import update_progress_artifact

        if self._artifact:
            share = 100.0 * self.count / max(self.total, 1)
            update_progress_artifact(artifact_id=self._artifact, progress=share, description=f"{self.label}: {text}")

    def close(self) -> None:
        if self._artifact:
            seconds = time.monotonic() - self._started
            self._update_artifact(f"{self.count} of {self.total} {self.unit} in {seconds:.0f} s")


@contextmanager
def meter(label: str, total: int, unit: str, done: int = 0) -> Iterator[Meter]:
    """Show the progress of `total` units of work, of which some were done before."""
    with meters({label: total}, unit, {label: done}) as shown:
        yield shown[label]


@contextmanager
def meters(
    totals: dict[str, int], unit: str, done: Mapping[str, int] = MappingProxyType({})
) -> Iterator[dict[str, Meter]]:
    """Show the progress of several works that go on together, by label; `done` tells what of them was done before."""

    def show(bar: Progress | None) -> dict[str, Meter]:
        return {
            label: Meter(label, total, unit, bar, artifacts[label], done.get(label, 0))
            for label, total in totals.items()
        }

    artifacts = {label: _start_artifact(label) for label in totals}
    if console.is_terminal and sys.stderr.isatty():
        columns = (
            TextColumn("  [bold]{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn(unit),
            _Rate(),
            TimeRemainingColumn(compact=True),
            TextColumn("[dim]{task.fields[figures]}"),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            shown = show(bar)
            yield shown
    else:
        shown = show(None)
        yield shown
    for each in shown.values():
        each.close()


class _Rate(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "", style="dim")


class CurveArtifact:
    """The curve of a training as a table in Prefect, if this code runs inside a Prefect task: one artifact that grows."""

    def __init__(self, label: str):
        self.label, self._wanted = label, _inside_a_task()
        self._artifact: UUID | None = None
        self._last = -math.inf

    def show(self, curve: list[dict[str, Any]], final: bool = False) -> None:
        """The points so far. Called after every epoch; short epochs are shown together, the final one always."""
        now = time.monotonic()
        if not (self._wanted and curve) or (now - self._last < _ARTIFACT_EVERY and not final):
            return
        self._last = now
        from prefect.artifacts import create_table_artifact
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import ArtifactUpdate

        columns = list(dict.fromkeys(name for point in curve for name in point))
        rows = [{name: _readable(point.get(name, "")) for name in columns} for point in curve]
        if self._artifact is None:
            told = f"The course of **{self.label}**: one row an epoch, the newest at the end"
            self._artifact = cast(
                UUID, create_table_artifact(table=rows, key=_key(f"{self.label} curve"), description=told)
            )
        else:
            with get_client(sync_client=True) as client:
                client.update_artifact(artifact_id=self._artifact, artifact=ArtifactUpdate(data=json.dumps(rows)))


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(each)}" for name, each in value.items())
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _inside_a_task() -> bool:
    if "prefect" not in sys.modules:
        return False
    from prefect.context import TaskRunContext

    return TaskRunContext.get() is not None


def _key(label: str) -> str:
    """A name as Prefect wants it."""
    return "".join(c if c.isalnum() else "-" for c in label.lower()).strip("-")


def _start_artifact(label: str) -> UUID | None:
    """One progress artifact in Prefect, if this code runs inside a Prefect task."""
    if not _inside_a_task():
        return None
    from prefect.artifacts import create_progress_artifact

    return cast(UUID, create_progress_artifact(progress=0.0, key=_key(label), description=label))
