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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.orchestration.crash_recovery import mark_crashed, noted_runs
from flows.orchestration.process_lifetime import child_environment, ends_with_us
from tests.flows.test_end_to_end import TINY, command, environment, longtake

__all__ = ["environment"]  # the fixture of that module
pytestmark = pytest.mark.xdist_group("longtake-command")
SLOWLY = ("--set", "seeding.epochs=2000", "--set", "seeding.patience=2000")


def wait_for(what: str, ready: Callable[[], Any], patience: float = 900.0) -> Any:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if found := ready():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {patience:.0f} s")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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
        note = Path(environment["PREFECT_HOME"]) / "longtake-servers" / f"{process.pid}.json"
        server = int(json.loads(note.read_bytes())["server"])
        assert lives(server)
        yield process, server
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_command_takes_its_server_along_and_the_next_one_notes_the_crash(world: Path, tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    mine = {**clean, "PREFECT_HOME": str(home), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    with training(mine, world, tmp_path / "w") as (process, server):
        process.kill()
        process.wait()
        wait_for("the end of the killed command's server", lambda: not lives(server), 120)
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
        wait_for("the end of the server", lambda: not lives(server), 120)

    longtake(mine, "run", TINY, "--data", world, "-w", tmp_path / "w", "--until", "catalogue", "--force", "catalogue")
    assert states(home, "flow_run") == {"CRASHED": 2, "COMPLETED": 1}
    assert not {"RUNNING", "PENDING"} & states(home, "task_run").keys()
    assert not list((home / "longtake-runs").iterdir()) and not list((home / "longtake-servers").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGTERM])
def test_the_runs_of_a_sweep_end_with_it(
    environment: dict[str, str], world: Path, tmp_path: Path, signalled: signal.Signals
) -> None:
    arguments = command(
        "sweep",
        TINY,
        "--grid",
        "captioner.hidden=16,24",
        "--seeds",
        1,
        "--data",
        world,
        "-w",
        tmp_path / "w",
        "--jobs",
        2,
    )
    process = subprocess.Popen([*arguments, *SLOWLY], env=environment, stderr=subprocess.DEVNULL)
    children = wait_for("two trainings", lambda: two_runs(process.pid))
    process.send_signal(signalled)
    process.wait(timeout=900)
    wait_for("the end of the runs", lambda: not any(map(lives, children)), 120)


def two_runs(parent: int) -> list[int]:
    """The runs of a sweep once both are there."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    found = [int(line.split()[0]) for line in listed.splitlines() if "flows.cli run" in line]
    return found if len(found) == 2 else []


def test_what_hangs_on_a_lifeline_ends_with_its_holder_and_not_before() -> None:
    holder = (
        "import subprocess, sys, time\n"
        "from flows.orchestration.process_lifetime import ends_with_us\n"
        "held = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "with ends_with_us(held.pid):\n"
        "    print(held.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    held = int(process.stdout.readline())
    assert lives(held)
    process.kill()
    process.wait()
    wait_for("the end of what it held", lambda: not lives(held), 30)

    other = subprocess.Popen(["sleep", "600"])
    with ends_with_us(other.pid):
        pass
    time.sleep(1.5)
    assert other.poll() is None, "a block that ended well ends nobody"
    other.kill()
    other.wait()


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
    assert lives(held)
    process.kill()
    process.wait()
    wait_for("the end of the child", lambda: not lives(held), 30)
    assert child_environment({"A": "b"}) == {"A": "b", "LONGTAKE_PARENT": str(os.getpid())}


class _Run:
    id = "0b7f3ad2-5f1e-4c3c-9d5e-0c9c5a8f2a11"


def test_a_run_is_noted_while_its_process_carries_it_out(tmp_path: Path) -> None:
    with noted_runs(tmp_path) as note:
        note(None, _Run, None)
        (path,) = (tmp_path / "longtake-runs").iterdir()
        assert json.loads(path.read_bytes())["owner"] == os.getpid()
        assert mark_crashed(tmp_path) == [], "who lives is not buried, and no server is asked"
    assert not path.exists()
