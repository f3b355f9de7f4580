"""Runs whose process was killed: Prefect would show them as running for ever.

A run that a command executes is noted in Prefect's folder; the next command finds the notes of processes that are gone and
sets their runs to Crashed. For deployments a Prefect server does the same by an automation, after some time without a
heartbeat."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from storage.files.atomic import write_json

TAG = "longtake"
"""what the runs of commands and deployments are tagged with"""
AUTOMATION = "longtake: runs that give no sign of life have crashed"
HEARTBEAT = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
"""how often a run gives a sign of life, in seconds; Prefect allows no less"""
_NOTES = "longtake-runs"
_MESSAGE = "Its process was killed. What it had finished is kept: the same command goes on."


@contextmanager
def noted_runs(home: Path) -> Iterator[Callable[..., None]]:
    """A hook for `on_running` that notes which flow run this process executes, for as long as the block lasts."""
    notes: list[Path] = []

    def note(_flow: Any, run: Any, _state: Any) -> None:
        notes.append(home / _NOTES / f"{run.id}.json")
        write_json(notes[-1], {"owner": os.getpid(), "started": _start_time(os.getpid())})

    try:
        yield note
    finally:
        for path in notes:
            path.unlink(missing_ok=True)


def mark_crashed(home: Path) -> list[UUID]:
    """Set the runs of processes that are gone to Crashed, with their tasks; returns those."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    dead = [path for path in (home / _NOTES).glob("*.json") if not _is_running(path)]
    marked = []
    if dead:
        with get_client(sync_client=True) as client:
            for path in dead:
                run_id = UUID(path.stem)
                try:
                    run = client.read_flow_run(run_id)
                except ObjectNotFound:  # of another server: its own commands or automation mark it
                    continue
                for task in _unfinished_tasks(client, run_id):
                    client.set_task_run_state(task, Crashed(message=_MESSAGE), force=True)
                if run.state is None or not run.state.is_final():
                    client.set_flow_run_state(run_id, Crashed(message=_MESSAGE), force=True)
                    marked.append(run_id)
                path.unlink(missing_ok=True)
    return marked


def _unfinished_tasks(client: Any, run_id: UUID) -> list[UUID]:
    unfinished = ["RUNNING", "PENDING", "SCHEDULED", "PAUSED", "CANCELLING"]
    asked = {"flow_runs": {"id": {"any_": [str(run_id)]}}, "task_runs": {"state": {"type": {"any_": unfinished}}}}
    return [UUID(row["id"]) for row in client.request("POST", "/task_runs/filter", json=asked).json()]


def _is_running(note: Path) -> bool:
    try:
        known = json.loads(note.read_bytes())
    except FileNotFoundError:  # its process has just ended well
        return True
    return bool(known["started"]) and _start_time(known["owner"]) == known["started"]


def _start_time(pid: int) -> str:
    """When a process began, in the kernel's ticks since boot: with its number, no other process ever has both. Empty: it is
    gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def ensure_automation(seconds: float) -> None:
    """Let the server set a run of ours to Crashed that has sent no heartbeat for so long and has not ended."""
    from prefect.automations import Automation
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import StateType
    from prefect.events import EventTrigger, Posture
    from prefect.events.actions import ChangeFlowRunState

    ends = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed")}
    message = f"It gave no sign of life for {seconds:.0f} s: its process or machine is gone. What it had finished is kept."
    wanted = Automation(
        name=AUTOMATION,
        description="Made by 'longtake deploy'. Its deployments and commands give a sign of life every 30 seconds.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ends},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=message)],
    )
    asked = {"automations": {"name": {"any_": [AUTOMATION]}}}
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/automations/filter", json=asked).json()
    if found:
        wanted.id = UUID(found[0]["id"])
        wanted.update()
    else:
        wanted.create()
