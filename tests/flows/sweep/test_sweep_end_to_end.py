"""A sweep as a user runs it, in a process of its own, with Prefect for real: what it makes, what it lists, that it goes on."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.flows.command import command
from tests.flows.toy_place import TOY, Place


def sweep_command(place: Place, *arguments: object) -> list[str]:
    return command("sweep", TOY, "--data", place.data, "-w", place.workspace.root, *arguments)


def trained(place: Place) -> dict[str, bytes]:
    """What finished trainings made, by their place."""
    done = place.workspace.root.glob("artifacts/seed/*/done.json")
    return {str(path.parent.name): (path.parent / "captioner.safetensors").read_bytes() for path in done}


def test_a_sweep_makes_what_is_missing_and_lists_what_fails(environment: dict[str, str], place: Place) -> None:
    """Variant one with seed 0 is what the place has already; a learning rate of 1e30 ends in numbers that are none."""
    asked = sweep_command(place, "--grid", "seeding.learning_rate=0.0005,1e30", "--seeds", 2, "--json")
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1, done.stderr
    good, bad = json.loads(done.stdout)["variants"]
    assert good["figures"]["CIDEr"]["n"] == 2 and good["best"] and not bad["figures"] and bad["failed"] == 2
    assert len(trained(place)) == 2, "one training was there, one was made, two failed"
    assert "so 17 to compute; 8 are there already: 9 to do" in done.stderr
    assert "✗ 4 of 4: learning_rate=1e30, seed 1" in done.stderr and "Traceback" not in done.stderr
    folder = next((place.workspace.root / "sweeps").iterdir())
    written = json.loads((folder / "sweep.json").read_text())
    assert written == json.loads(done.stdout)
    reasons = [result["reason"] for result in written["results"] if result["state"] == "failed"]
    assert len(reasons) == 2 and all("not finite" in reason or "loss" in reason for reason in reasons)
    assert all("Traceback" in log.read_text() for log in (folder / "logs").glob("*.log"))
    with sqlite3.connect(Path(environment["PREFECT_HOME"]) / "prefect.db") as database:
        whole = database.execute("select name from flow").fetchall()
        parts = database.execute("select count(*) from flow_run where parent_task_run_id is not null").fetchone()
        names = [name for (name,) in database.execute("select name from flow_run where parent_task_run_id is not null")]
    assert ("sweep",) in whole and parts[0] == 3, "one run was there; three were parts of the sweep's flow"
    assert {name.partition(":")[0] for name in names} == {
        "learning_rate=0.0005, seed 1",
        "learning_rate=1e30, seed 0",
        "learning_rate=1e30, seed 1",
    }

    recipe = next((folder / "recipes").glob("*.s1.yaml"))
    planned = command("run", str(recipe), "-w", str(place.workspace.root), "--dry-run", "--json")
    stages = json.loads(subprocess.run(planned, env=environment, capture_output=True, text=True, timeout=900).stdout)["stages"]
    assert [stage["stage"] for stage in stages if stage["state"] != "done"] == ["report"], "its recipe makes the report"


@pytest.mark.slow
def test_two_at_a_time_give_the_same_bits_and_a_stopped_sweep_goes_on(
    environment: dict[str, str], place: Place, tmp_path: Path
) -> None:
    asked = sweep_command(
        place, "--grid", "seeding.learning_rate=0.001,0.002", "--seeds", 2, "--set", "seeding.epochs=3", "--json"
    )
    with subprocess.Popen([*asked, "--jobs", "2"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 200
        while not list(place.workspace.root.glob("sweeps/*/logs/*.log")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=100) == 130
    assert len(trained(place)) < 5
    done = subprocess.run([*asked, "--jobs", "2"], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(Path(environment["PREFECT_HOME"]) / "prefect.db") as database:
        parts = database.execute(
            "select tags from flow_run where parent_task_run_id is not null and name like 'learning_rate=0.002,%'"
        )
        assert all("sweep:toy" in json.loads(tags) for (tags,) in parts.fetchall()), (
            "processes of their own are parts of the sweep too"
        )
    side_by_side = trained(place)
    assert len(side_by_side) == 5
    scores = json.loads(done.stdout)["results"]
    for key in side_by_side:
        marker = place.workspace.root / "artifacts" / "seed" / key / "done.json"
        if json.loads(marker.read_text())["ingredients"]["options"]["seeding"]["epochs"] == 3:
            marker.unlink()
            (marker.parent / "captioner.safetensors").unlink()
    again = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=900)
    assert again.returncode == 0 and trained(place) == side_by_side
    assert [row["figures"] for row in json.loads(again.stdout)["results"]] == [row["figures"] for row in scores]
