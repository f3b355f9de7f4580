"""Captioning as a Prefect flow. It takes plain values, so that a deployment can be started from the dashboard."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.caption import Captioner
from flows.cli.caption_lines import lines_of, shown_problems
from storage.media.shots import ShotOptions
from storage.text.caption_writers import as_row
from tasks.framework.lost_console import outlive_console
from tasks.framework.prefect_task import run_stage
from tasks.framework.stage import StageRun
from tasks.inference.user_files import WindowOptions


@flow(name="caption", description="Captions for videos and images, by a run that is trained.")
def caption_flow(
    files: list[str],
    workspace: str,
    run: str | None = None,
    n_best: int = 1,
    windows: float | None = None,
    shots: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Caption files, folders and patterns as the worker sees them; returns captions and problems.

    Args:
        files: Paths of files and folders, and patterns.
        workspace: The project's folder.
        run: A run's id or its recipe's name; the newest finished run without it.
        n_best: Captions a clip, best first.
        windows: Cut videos into windows of so many seconds.
        shots: Cut videos at their shot changes.
    """
    outlive_console()
    cut = WindowOptions(seconds=windows) if windows else ShotOptions() if shots else None
    found = Captioner.open(workspace, run, carry=_carry).caption(files, cut, n_best)
    problems = [{"file": p.item, "kind": p.kind, "reason": p.reason} for p in shown_problems(found.problems)]
    return {"captions": [as_row(line) for line in lines_of(found, n_best)], "problems": problems}


def _carry(job: StageRun) -> bool:
    return run_stage(job, job.label, force=False)[1]
