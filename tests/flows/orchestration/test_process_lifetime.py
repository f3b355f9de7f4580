"""Commands that are told to end, or killed: what they started ends too, and Prefect's history tells what became of them."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.orchestration.crash_recovery import mark_crashed, noted_runs
from flows.orchestration.process_lifetime import child_environment
from tests import ROOT
from tests.flows.command import SLOWLY, TINY, command, environment_of, run_longtake
from tests.processes import children, is_alive, wait_for


def states(home: Path, table: str) -> Counter[str]:
    with sqlite3.connect(home / "prefect.db") as database:
        return Counter(row[0] for row in database.execute(f"select state_type from {table}"))


@contextmanager
def training(environment: dict[str, str], world: Path, workspace: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run in the midst of its training, and its embedded server."""
    arguments = command("run", TINY, "--data", world, "-w", workspace, *SLOWLY)
    process = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        curves = workspace / "artifacts" / "seed"
        wait_for("a training", lambda: list(curves.glob("*/curves.jsonl")) or process.poll() is not None)
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        (server,) = children(process.pid, "flows.orchestration.server_process")
        yield process, server
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_command_takes_its_server_along_and_the_next_one_notes_the_crash(world: Path, tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    mine = environment_of(home)

    with training(mine, world, tmp_path / "w") as (process, server):
        process.kill()
        process.wait()
        wait_for("the end of the killed command's server", lambda: not is_alive(server), 120)
    assert states(home, "flow_run") == {"RUNNING": 1}, "nobody was left to say what happened"
    assert "RUNNING" in states(home, "task_run")

    with training(mine, world, tmp_path / "w2") as (process, server):
        assert states(home, "flow_run") == {"CRASHED": 1, "RUNNING": 1}
        process.terminate()
        began = time.monotonic()
        _, said = process.communicate(timeout=900)
        print(f"ended {time.monotonic() - began:.1f} s after SIGTERM")
        assert process.returncode == 130 and "the same command goes on" in said and "Traceback" not in said
        assert "an earlier run was killed" in said
        wait_for("the end of the server", lambda: not is_alive(server), 120)

    run_longtake(mine, "run", TINY, "--data", world, "-w", tmp_path / "w", "--until", "catalogue", "--force", "catalogue")
    assert states(home, "flow_run") == {"CRASHED": 2, "COMPLETED": 1}
    assert not {"RUNNING", "PENDING"} & states(home, "task_run").keys()
    assert not list((home / "longtake-runs").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
def test_the_runs_of_a_sweep_end_with_it(
    environment: dict[str, str], world: Path, tmp_path: Path, signalled: signal.Signals
) -> None:
    arguments = command(
        "sweep", TINY, "--grid", "captioner.hidden=16,24", "--seeds", 1, "--data", world, "-w", tmp_path / "w", "--jobs", 2
    )
    process = subprocess.Popen([*arguments, *SLOWLY], env=environment, stderr=subprocess.DEVNULL)
    runs = wait_for("two trainings", lambda: two(children(process.pid, "flows.cli run")))
    process.send_signal(signalled)
    process.wait(timeout=900)
    wait_for("the end of the runs", lambda: not any(map(is_alive, runs)), 120)


def two(found: list[int]) -> list[int]:
    return found if len(found) == 2 else []


def test_a_child_looks_for_its_parent_and_ends_without_it() -> None:
    child = "import time; from flows.orchestration.process_lifetime import end_with_starter as e;"
    child += "e(); print('up', flush=True); time.sleep(600)"
    parent = (
        "import os, subprocess, sys, time\n"
        "from flows.orchestration.process_lifetime import child_environment\n"
        f"held = subprocess.Popen([sys.executable, '-c', {child!r}], env=child_environment(os.environ), stdout=subprocess.PIPE)\n"
        "held.stdout.readline(); print(held.pid, flush=True); time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    held = int(process.stdout.readline())
    assert is_alive(held)
    process.kill()
    process.wait()
    wait_for("the end of the child", lambda: not is_alive(held), 30)
    expected = {"A": "b", "LONGTAKE_PARENT": str(os.getpid()), "PYTHONPATH": str(ROOT)}
    assert child_environment({"A": "b"}) == expected


class _Run:
    id = "0b7f3ad2-5f1e-4c3c-9d5e-0c9c5a8f2a11"


def test_a_run_is_noted_while_its_process_carries_it_out(tmp_path: Path) -> None:
    with noted_runs(tmp_path) as note:
        note(None, _Run, None)
        (path,) = (tmp_path / "longtake-runs").iterdir()
        assert json.loads(path.read_bytes())["owner"] == os.getpid()
        assert mark_crashed(tmp_path) == [], "a living process has not crashed, and no server is asked"
    assert not path.exists()
