"""The history of runs without a server of one's own: whole after many runs in a row."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.flows.command import TINY, command, environment_of

RUNS = 20
STAGES = 9


@pytest.mark.slow
def test_twenty_runs_in_a_row_leave_every_task_run_in_a_final_state(world: Path, tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    environment = environment_of(home)
    for n in range(RUNS):
        arguments = command("run", TINY, "--data", world, "-w", tmp_path / "w")
        began = time.monotonic()
        done = subprocess.run(
            [*arguments, "--set", f"decoding.max_length={5 + n}"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0 and "may be incomplete" not in done.stderr, done.stderr
        print(f"run {n + 1}: {time.monotonic() - began:.0f} s", flush=True)
    with sqlite3.connect(home / "prefect.db") as database:
        runs = database.execute("select state_type, count(*) from flow_run group by 1").fetchall()
        tasks = database.execute("select state_type, count(*) from task_run group by 1").fetchall()
        fewest = database.execute("select min(n) from (select count(*) n from task_run group by flow_run_id)").fetchone()
    print("flow runs", runs, "task runs", tasks)
    assert runs == [("COMPLETED", RUNS)] and tasks == [("COMPLETED", RUNS * STAGES)] and fewest == (STAGES,)
