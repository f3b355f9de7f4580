"""A Prefect server of one's own, without Postgres or Redis: deployments by prefect.yaml, events of strangers, and a worker
that is killed with its run. Nothing here has any of root's rights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml

from tests import ROOT
from tests.flows.command import SLOWLY, TINY, command, environment_of
from tests.ports import free_port
from tests.processes import descendants, is_alive, running, unprivileged, wait_for

pytestmark = pytest.mark.slow
PREFECT = [sys.executable, "-m", "prefect"]


class Site:
    """A running server, and commands against it."""

    def __init__(self, url: str, environment: dict[str, str], place: Path):
        self.environment, self.place = environment, place
        self.api = httpx.Client(base_url=url, timeout=120)

    def run(self, *arguments: object) -> str:
        done = subprocess.run(
            [*unprivileged(), *map(str, arguments)], env=self.environment, capture_output=True, text=True, timeout=900, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def found(self, what: str, **asked: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.api.post(f"/{what}/filter", json=asked).raise_for_status().json()
        return rows

    def deployment(self, name: str) -> dict[str, Any]:
        row: dict[str, Any] = self.api.get(f"/deployments/name/{name}").raise_for_status().json()
        return row


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("server")
    port = free_port()
    quiet = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    base = environment_of(place / "prefect", PYTHONPATH=os.pathsep.join(sys.path), **quiet)
    server = base | {"PREFECT_SERVER_API_PORT": str(port)}
    with running([*unprivileged(), *PREFECT, "server", "start"], place / "server.log", server):
        url = f"http://127.0.0.1:{port}/api"
        there = Site(url, base | {"PREFECT_API_URL": url}, place)

        def healthy() -> bool:
            try:
                return there.api.get("/health").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for("the server", healthy)
        yield there


def test_prefect_deploy_takes_the_file_as_it_is(site: Site) -> None:
    site.run(*PREFECT, "work-pool", "create", "longtake", "--type", "process")
    site.run(*PREFECT, "--no-prompt", "deploy", "--all")
    said = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    for wanted, flow in zip(said, ("pipeline", "refresh", "train", "evaluate", "caption"), strict=True):
        row = site.deployment(f"{flow}/demo")
        assert row["description"] == wanted["description"] and row["parameters"] == wanted["parameters"]
        assert row["work_pool_name"] == "longtake" and set(row["tags"]) == set(wanted["tags"])
        assert [s["schedule"]["cron"] for s in row["schedules"]] == [s["cron"] for s in wanted.get("schedules", [])]
        assert row["parameter_openapi_schema"]["properties"], "the dashboard has a form for it"
    names = {row["name"] for row in site.found("automations")}
    assert {"refresh demo on longtake.source.changed", "train demo on longtake.dataset.changed"} <= names


def test_what_an_event_carries_reaches_no_run(site: Site, world: Path, tmp_path: Path) -> None:
    site.run(*command("deploy", "--recipe", TINY, "--data", world, "-w", tmp_path / "w", "--crashed-after", 60))
    payload = {
        "parameters": {"workspace": "/etc", "recipe": "{{ event.payload }}", "data": "../../.."},
        "data": "/etc/passwd",
        "dataset": "{{ ''.__class__.__mro__[1].__subclasses__() }}{% for x in range(10**9) %}x{% endfor %}",
        "added": 10**300,
        "retrain": True,
    }
    labels = {"prefect.resource.id": "longtake.dataset.demo", "longtake.workspace": "/etc", "longtake.recipe": "{{ 7 * 7 }}"}
    event = {"id": str(uuid4()), "event": "longtake.source.changed", "resource": labels, "payload": payload}
    event["occurred"] = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    site.api.post("/events", json=[event]).raise_for_status()
    deployment = site.deployment("refresh/tiny")
    mine = {"deployments": {"id": {"any_": [deployment["id"]]}}}
    (run,) = wait_for("a refresh", lambda: site.found("flow_runs", **mine))
    assert run["parameters"] == deployment["parameters"]
    assert run["job_variables"] in (None, {}) and run["name"] != "49"
    site.api.delete(f"/flow_runs/{run['id']}").raise_for_status()


def test_a_run_whose_worker_and_process_were_killed_does_not_run_for_ever(site: Site, world: Path, tmp_path: Path) -> None:
    given = ("--recipe", TINY, "--data", world, "-w", tmp_path / "w", *SLOWLY, "--name", "slow")
    site.run(*command("deploy", *given, "--crashed-after", 60, "--pool", "mine"))
    site.run(*command("deploy", *given, "--crashed-after", 60, "--pool", "mine"))
    ours = [row for row in site.found("automations") if row["name"].startswith("longtake: runs that give no sign")]
    assert len(ours) == 1, "made once"
    worker = [*unprivileged(), *PREFECT, "worker", "start", "--pool", "mine", "--type", "process"]
    with running(worker, site.place / "worker.log", site.environment) as process:
        made = site.api.post(f"/deployments/{site.deployment('pipeline/slow')['id']}/create_flow_run", json={}).json()
        curves = tmp_path / "w" / "artifacts" / "seed"
        wait_for("a training", lambda: list(curves.glob("*/curves.jsonl")))
        family = descendants(process.pid)
        process.kill()
        for pid in family:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
    began = time.monotonic()

    def state() -> str:
        return str(site.api.get(f"/flow_runs/{made['id']}").json()["state_type"])

    assert state() == "RUNNING"
    wait_for("the end of a run that gives no sign of life", lambda: state() == "CRASHED", 300)
    print(f"crashed {time.monotonic() - began:.0f} s after the kill")
    message = site.api.get(f"/flow_runs/{made['id']}").json()["state"]["message"]
    assert re.search(r"no sign of life for 60 s", message)
