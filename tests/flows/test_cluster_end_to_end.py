"""The command on a Dask cluster, in processes of its own: a worker killed midway, and the whole command killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from storage.features.store import FeatureStore
from tests.flows.command import TINY, command, environment_of
from tests.tasks.process_family import MARK, family, kill_a_busy_worker, wait_for

ON_DASK = ("--set", "runtime.runner=dask", "--set", "runtime.workers=2", "--set", "runtime.shard=4")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(prefect_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment_of(tmp_path_factory.mktemp("prefect"), prefect_home, **{MARK: uuid4().hex})


def start(environment: dict[str, str], world: Path, workspace: Path, *more: str) -> subprocess.Popen[str]:
    arguments = command("extract", TINY, "--data", world, "-w", workspace, *more)
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    _, told = process.communicate(timeout=400)
    assert process.returncode == 0, told
    assert "Traceback" not in told
    return told


def stores(workspace: Path) -> list[FeatureStore]:
    return [FeatureStore.open(path.parent) for path in workspace.glob("features/*/*/zarr.json")]


def digests(workspace: Path) -> dict[str, str]:
    assert all(store.verify() == [] for store in stores(workspace))
    return {store.path.name: store.view().digest() for store in stores(workspace)}


def rows(workspace: Path) -> int:
    return sum(len(store.view()) for store in stores(workspace))


@pytest.fixture(scope="module")
def undisturbed(environment: dict[str, str], world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of a run in one process."""
    workspace = tmp_path_factory.mktemp("local") / "w"
    finish(start(environment, world, workspace))
    assert rows(workspace) == 18
    return digests(workspace)


def test_a_worker_killed_midway_changes_nothing(
    environment: dict[str, str], world: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    workspace = tmp_path / "w"
    process = start(environment, world, workspace, *ON_DASK)
    wait_for(lambda: rows(workspace), 300)
    kill_a_busy_worker(environment[MARK])
    assert rows(workspace) < 18, "the kill came midway"
    told = finish(process)
    assert "rows extracted: 18 of 'scene'" in told
    assert digests(workspace) == undisturbed
    wait_for(lambda: not family(environment[MARK]))
    with sqlite3.connect(Path(environment["PREFECT_HOME"]) / "prefect.db") as database:
        shards = database.execute("select state_type from task_run where name like 'shard %'").fetchall()
    assert shards == [("COMPLETED",)] * 5, "each shard is one task run, the one that was lost too"


def test_the_whole_command_killed_leaves_no_worker_and_the_next_one_goes_on(
    environment: dict[str, str], world: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    workspace = tmp_path / "w"
    process = start(environment, world, workspace, *ON_DASK)
    wait_for(lambda: rows(workspace), 300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # Prefect's own server lives on; the next command ends it.
    wait_for(lambda: not [member for member in family(environment[MARK]) if not member.is_server])
    before, at = rows(workspace), time.time_ns()
    finish(start(environment, world, workspace, *ON_DASK))
    assert digests(workspace) == undisturbed
    made = [stamp for store in stores(workspace) for stamp in store.view().table()["written"].to_pylist()]
    assert sum(stamp < at for stamp in made) == before, "rows that were there are kept as they were"
    wait_for(lambda: not family(environment[MARK]))
