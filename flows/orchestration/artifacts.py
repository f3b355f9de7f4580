"""What a run shows in Prefect's dashboard: a name that reads as a sentence, tags, and artifacts for people: the
leaderboard, scores beside those of the last run, the quarantine, the way to the report. To be called inside a flow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from flows.orchestration.leaderboard import leaderboard, plain_markdown
from flows.orchestration.report_server import report_link, reports_are_served
from flows.orchestration.workspace_labels import artifact_key
from flows.sweep.table import MAIN_METRIC, SweepResult, sweep_markdown, variant_rows
from storage.files.sanitising import visible
from storage.records import Problem
from storage.runs import load_runs
from storage.workspace import Workspace

if TYPE_CHECKING:
    from flows.execute import RunOutcome
    from flows.sweep.definition import Sweep

_MOST = 200  # rows of a table: more than anybody reads, and a page that still opens


def name_run(title: str, labels: Collection[str] = ()) -> None:
    """Give the running flow its name, once it is known what there is to do, and its tags; without `labels` they stay."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run = context.flow_run
    with get_client(sync_client=True) as client:
        client.update_flow_run(run.id, name=title, tags={*run.tags, *labels} if labels else None)


def show_outcome(outcome: RunOutcome, workspace: Workspace, label: str) -> None:
    """One artifact each, under keys of workspace, recipe and data set, so that the dashboard keeps their history. What a part
    of a sweep shows besides the leaderboard has no key: it is on the page of its run alone, and not among all artifacts."""
    run = outcome.run
    others = [each for each in load_runs(workspace) if each.dataset == run.dataset and each.id != run.id]
    last = next((each for each in others if each.recipe_name == run.recipe_name and each.scores), None)
    where = f"**{plain_markdown(run.title)}** (`{label}`)"
    key = None if _is_part() else artifact_key(f"{label}-{run.recipe_name}-{run.dataset}")
    if "CIDEr" in run.scores:
        served = reports_are_served()
        create_markdown_artifact(
            key=artifact_key(f"leaderboard-{label}-{run.dataset}"),
            markdown=leaderboard([run, *others], run, lambda each: report_link(each, label) if served else ""),
            description=f"Runs on **{plain_markdown(run.dataset)}** in `{workspace.root}`, each a link to its report",
        )
        if run.report:
            text = f"Report of {plain_markdown(run.title)}"
            opened = f"[{text}]({report_link(run, label)})" if served else f"{text}: `{run.report}`"
            command = f"`longtake report {run.short_id} --workspace {workspace.root}`"
            create_markdown_artifact(
                key=key and f"report-{key}",
                markdown=f"{opened}\n\n{command} builds it again if it is gone.",
                description=f"Curves, captions and frames of {where}: `{run.report}`",
            )
    if run.scores:
        create_table_artifact(
            key=key and f"scores-{key}",
            table=score_rows(run.scores, last.scores if last else {}),
            description=f"Scores of {where}" + (f" beside those of {last.finished_at}" if last else ""),
        )
    if outcome.quarantined:
        create_table_artifact(
            key=key and f"quarantine-{key}",
            table=quarantine_rows(outcome.quarantined),
            description=f"What of **{plain_markdown(run.dataset)}** could not be used ({len(outcome.quarantined)}), and why. "
            "Repair or replace the files; the next run takes them in.",
        )


def show_sweep(sweep: Sweep, results: Sequence[SweepResult], title: str, label: str) -> None:
    """The table of a sweep as an artifact, and its best variant in the name of its run."""
    create_markdown_artifact(
        key=artifact_key(f"sweep-{label}-{sweep.name}"),
        markdown=sweep_markdown(sweep, results),
        description=f"Sweep **{plain_markdown(sweep.name)}** (`{label}`): variants, each over its seeds",
    )
    if best := next((row for row in variant_rows(sweep, results) if row.best), None):
        name_run(f"{title}; best: {best.variant}, CIDEr {100 * best.metrics[MAIN_METRIC].mean:.1f}")


def _is_part() -> bool:
    """Whether the running flow is part of another one, a sweep."""
    context = FlowRunContext.get()
    return bool(context and context.flow_run and context.flow_run.parent_task_run_id)


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
