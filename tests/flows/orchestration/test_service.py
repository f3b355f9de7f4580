"""The set-up of docker-compose.yml without containers: Postgres, Redis, Prefect's server and services, a worker, deployments,
and a data set that changes. The server's settings are read from the compose file itself.

Needs Debian's postgresql and redis-server, and `pip install '.[service]'`."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
import yaml

from storage.workspace import read_done
from tests.flows.orchestration.compose_settings import LOGIN, server_settings
from tests.ports import free_port
from tests.processes import PATIENCE, running, wait_for

pytestmark = pytest.mark.service
RECIPE = {
    "name": "service",
    "dataset": {"kind": "folder", "name": "clips"},
    "sampling": {"frames": {"kind": "uniform", "frames": 4}},
    "features": {"look": {"kind": "backbone", "net": "timm:test_resnet", "weights": "random"}},
    "text": {"min_count": 1, "max_words": 12},
    "neighbours": {"feature": "look", "k": 2},
    "captioner": {"kind": "sa_lstm", "features": ["look"], "embedding": 8, "hidden": 8, "attention": 8},
    "seeding": {"epochs": 2, "batch_size": 4, "captions_per_video": 4},
    "decoding": {"width": 2, "max_length": 8},
    "evaluation": {"meteor": False},
    "report": {"frames": 2},
    "runtime": {"decoders": 1, "threads": 1, "device": "cpu"},
}


@contextmanager
def postgres(log: Path) -> Iterator[int]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    binaries, port = found[-1].parent, free_port()
    with TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        data, who = Path(folder) / "data", {}
        if os.getuid() == 0:  # Postgres refuses to run as root
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            who = {"user": user.pw_uid, "group": user.pw_gid}
        make = [binaries / "initdb", "-D", data, "-U", "prefect", "--auth=trust"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd="/", **who)
        command = [binaries / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", folder]
        with running(command, log, cwd="/", **who):
            ask = [binaries / "psql", "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "-d", "postgres", "-c"]
            wait_for("Postgres", lambda: subprocess.run([*ask, "select 1"], capture_output=True).returncode == 0, 120)
            subprocess.run([*ask, "create database prefect"], check=True, capture_output=True)
            yield port


@contextmanager
def redis(place: Path) -> Iterator[int]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs Redis: apt-get install redis-server")
    port = free_port()
    command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with running(command, place):
        wait_for("Redis", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 60)
        yield port


class Site:
    """A running server, and commands against it."""

    def __init__(self, url: str, environment: dict[str, str], logs: Path):
        self.environment, self.logs = environment, logs
        self.api = httpx.Client(base_url=url, auth=tuple(LOGIN.split(":")), timeout=60)  # type: ignore[arg-type]

    def longtake(self, *arguments: object) -> str:
        command = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def runs(self, flow: str) -> list[dict[str, Any]]:
        asked = {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found: list[dict[str, Any]] = self.api.post("/flow_runs/filter", json=asked).json()
        return found

    def finished(self, flow: str, n: int) -> dict[str, Any]:
        """The n-th run of a flow, once it has ended."""

        def ended() -> Any:
            found = self.runs(flow)
            final = len(found) > n and found[n]["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
            return found[n] if final else None

        run = wait_for(f"run {n + 1} of {flow}", ended)
        assert run["state_type"] == "COMPLETED", run["state"]["message"]
        print(f"{flow}: '{run['name']}' took {run['total_run_time']:.0f} s", flush=True)
        return run

    def tasks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.post("/task_runs/filter", json={}).json()
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        asked = {"filter": {"event": {"name": [name]}, "order": "ASC"}}
        found: list[dict[str, Any]] = self.api.post("/events/filter", json=asked).json()["events"]
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("site")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    base = {**clean, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    prefect = [sys.executable, "-m", "prefect"]
    began = time.monotonic()
    with ExitStack() as stack:
        ports = stack.enter_context(postgres(place / "postgres.log")), stack.enter_context(redis(place / "redis.log"))
        port = free_port()
        server = {**base, **server_settings(*ports), "PREFECT_HOME": str(place / "server")}
        server |= {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(port)}
        subprocess.run([*prefect, "server", "database", "upgrade", "--yes"], env=server, check=True, capture_output=True)
        stack.enter_context(running([*prefect, "server", "start", "--no-services"], place / "server.log", server))
        stack.enter_context(running([*prefect, "server", "services", "start"], place / "services.log", server))
        url = f"http://127.0.0.1:{port}/api"
        client = {**base, "PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": LOGIN, "PREFECT_HOME": str(place / "client")}
        there = Site(url, client, place)

        def healthy() -> bool:
            try:
                return there.api.get("/health").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for("the server", healthy)
        print(f"server on Postgres and Redis: {time.monotonic() - began:.0f} s", flush=True)
        worker = [*prefect, "worker", "start", "--pool", "longtake", "--type", "process"]
        stack.enter_context(running(worker, place / "worker.log", client))
        yield there


def test_a_changing_data_set_is_refreshed_and_trained_on_by_events(site: Site, world: Path, tmp_path: Path) -> None:
    data, workspace, recipe = tmp_path / "data", tmp_path / "w", tmp_path / "service.yaml"
    shutil.copytree(world, data, ignore=shutil.ignore_patterns("world.json", "truth.jsonl"))
    recipe.write_text(yaml.safe_dump(RECIPE))
    given = ("--recipe", recipe, "--data", data, "-w", workspace, "--retrain-after", 5, "--cron", "0 3 * * *")
    assert "refresh/service" in site.longtake("deploy", *given)
    by_the_clock = wait_for("a run planned by the clock", lambda: [r for r in site.runs("refresh") if r["auto_scheduled"]])
    assert by_the_clock[0]["expected_start_time"][11:16] == "03:00"
    refused = httpx.get(f"{site.api.base_url}deployments/name/pipeline/service", timeout=60)
    assert refused.status_code == 401, "without the login nothing is told"

    deployment = site.api.get("/deployments/name/pipeline/service").json()["id"]
    site.api.post(f"/deployments/{deployment}/create_flow_run", json={}).raise_for_status()
    assert site.finished("pipeline", 0)["name"].startswith("Run service on clips: ")
    artifacts = {found["key"] for found in site.api.post("/artifacts/filter", json={}).json()}
    assert {"scores-w-service-clips", "report-w-service-clips", "leaderboard-w-clips"} <= artifacts

    watcher = [sys.executable, "-m", "flows.cli", "refresh", recipe, "--data", data, "-w", workspace]
    with running([*watcher, "--watch", 2, "--announce"], site.logs / "watcher.log", site.environment):
        assert site.finished("refresh", 0)["name"] == "Refresh clips: nothing changed"
        assert site.events("longtake.dataset.changed") == []
        change(data)
        began = time.monotonic()
        run = site.finished("refresh", 1)
        print(f"from the change to the end of the refresh: {time.monotonic() - began:.0f} s", flush=True)
    assert run["name"] == "Refresh clips: 3 videos added, 1 video removed, 1 video changed"
    (event,) = site.events("longtake.dataset.changed")
    told = event["payload"]
    assert (told["added"], told["changed"], told["removed"], told["retrain"]) == (3, 1, 1, True)
    assert (workspace / "artifacts" / "catalogue" / told["key"] / "done.json").is_file()
    newest = max((workspace / "artifacts" / "extract_features").iterdir(), key=lambda folder: folder.stat().st_mtime)
    done = read_done(newest)
    assert done is not None and done.summary["extracted"] == {"look": 4}, "exactly the new and the changed"
    assert done.ref.count == 18 + 3 - 1, "and the removed one is dropped"

    assert site.finished("train", 0)["name"].startswith("Train service on clips: ")
    print(f"from the change to the end of the training: {time.monotonic() - began:.0f} s", flush=True)
    wait_for("a whole history", lambda: {task["state_type"] for task in site.tasks()} == {"COMPLETED"}, 120)
    assert len(site.tasks()) == 9 + 5 + 6, "a pipeline, a refresh with work to do, a training"
    assert LOGIN.split(":")[1] not in "".join(log.read_text(errors="replace") for log in site.logs.glob("*.log"))


def change(data: Path) -> None:
    """3 new clips for training, 1 replaced, 1 gone."""
    clips = sorted((data / "videos").glob("train-*.mp4"))
    rows = (data / "captions.jsonl").read_text().splitlines()
    gone = clips[1]
    kept = [row for row in rows if json.loads(row)["video"] != gone.stem]
    for n in range(3):
        (data / "videos" / f"new-{n}.mp4").write_bytes(clips[n].read_bytes() + bytes(n + 1))
        kept.append(json.dumps({"video": f"new-{n}", "caption": "a red ball moves left", "split": "train"}))
    clips[0].write_bytes(clips[2].read_bytes() + b"replaced")
    gone.unlink()
    (data / "captions.jsonl").write_text("\n".join(kept) + "\n")


HOLDER = """
import sys, time
from pathlib import Path
from prefect import flow
from storage.options import Options
from storage.workspace import Workspace
from tasks.framework.prefect_task import run_as_task
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageResult, stage

@stage(version=1, device=True)
def hold(context, options):
    print("has it", flush=True)
    time.sleep(float(sys.argv[2]))
    return StageResult(1)

@flow
def holding():
    job = hold.bind(Workspace.open(sys.argv[1]), Path("."), Runtime(concurrency_limit="one-slot"), Options(), {})
    run_as_task(job, "hold", False)

holding()
"""


def test_a_killed_holder_of_a_slot_and_a_lock_is_in_nobodys_way_for_long(site: Site, tmp_path: Path) -> None:
    site.api.post("/v2/concurrency_limits/", json={"name": "one-slot", "limit": 1}).raise_for_status()
    command = [sys.executable, "-c", HOLDER, tmp_path / "w"]
    with running([*command, 600], site.logs / "first.log", site.environment) as first:
        wait_for("the first holder", lambda: "has it" in (site.logs / "first.log").read_text())
        first.kill()
    with running([*command, 0], site.logs / "second.log", site.environment) as second:
        began = time.monotonic()
        wait_for("the second holder", lambda: "has it" in (site.logs / "second.log").read_text(), 240)
        print(f"slot of a killed holder: free after {time.monotonic() - began:.0f} s", flush=True)
        assert second.wait(timeout=120) == 0
