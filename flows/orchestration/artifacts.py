"""What a run shows in Prefect's dashboard: a name that reads as a sentence, tags, and artifacts for people: scores beside
those of the last run, the quarantine, the way to the report. To be called inside a flow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from storage.files.sanitising import visible
from storage.records import Problem
from storage.runs import RunRecord

if TYPE_CHECKING:
    from flows.execute import RunOutcome

_MOST = 200  # rows of a table: more than anybody reads, and a page that still opens


def name_run(title: str, labels: Iterable[str]) -> None:
    """Give the running flow its name, once it is known what there is to do, and its tags."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run = context.flow_run
    with get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name=title, tags={*run.tags, *labels})


def show_outcome(outcome: RunOutcome, last: RunRecord | None) -> None:
    """One artifact each, under keys of recipe and data set, so that the dashboard keeps their history."""
    run = outcome.run
    key = _key(f"{run.recipe_name}-{run.dataset}")
    if run.scores:
        create_table_artifact(
            key=f"scores-{key}",
            table=score_rows(run.scores, last.scores if last else {}),
            description=f"Scores of **{run.title}**" + (f" beside those of {last.finished_at}" if last else ""),
        )
    if run.report:
        create_link_artifact(
            key=f"report-{key}",
            link=Path(run.report).as_uri(),
            link_text=f"Report of {run.title}",
            description=f"Curves, captions and frames of **{run.title}**, on the machine of the workspace: `{run.report}`",
        )
    if outcome.quarantined:
        create_table_artifact(
            key=f"quarantine-{key}",
            table=quarantine_rows(outcome.quarantined),
            description=f"What of **{run.dataset}** could not be used ({len(outcome.quarantined)}), and why. Repair or "
            "replace the files; the next run takes them in.",
        )


def score_rows(scores: dict[str, float], last: dict[str, float]) -> list[dict[str, Any]]:
    """Scores in points of 100, as papers print them; beside those of the last run, if there was one."""
    rows = []
    for name, value in scores.items():
        row = {"score": name, "this run": f"{100 * value:.1f}"}
        if last:
            before = last.get(name)
            row["last run"] = "" if before is None else f"{100 * before:.1f}"
            row["change"] = "" if before is None else f"{round(100 * (value - before), 1) + 0.0:+.1f}"  # never -0.0
        rows.append(row)
    return rows


def quarantine_rows(problems: list[Problem]) -> list[dict[str, str]]:
    rows = [{"item": _cell(p.item), "reason": _cell(p.reason), "kind": p.kind, "file": _cell(p.where)} for p in problems[:_MOST]]
    if len(problems) > _MOST:
        rest = {"item": f"... and {len(problems) - _MOST} more", "reason": "'longtake status RECIPE --json' lists all"}
        rows.append({**rest, "kind": "", "file": ""})
    return rows


def _cell(text: str) -> str:
    """Untrusted text as one line of plain text: no controls, and nothing that Markdown takes for a link."""
    return " ".join(visible(text).split()).replace("](", "] (")


def _key(text: str) -> str:
    """Prefect's keys of artifacts: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
