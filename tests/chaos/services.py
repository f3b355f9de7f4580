"""The parts of a site as processes that may be killed: Postgres, Redis, Prefect's server and services, a worker, an S3 store.

Whatever died is started again, as systemd or `restart: unless-stopped` would."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.network import Network
from tests.flows.orchestration.compose_settings import LOGIN, server_settings
from tests.ports import free_port
from tests.tasks.process_family import MARK

PREFECT = [sys.executable, "-m", "prefect"]


class Service:
    """One process that is wanted to run. `after_start` makes it ready for use; until it returns, it counts as starting."""

    def __init__(self, name: str, command: list[Any], log: Path, environment: dict[str, str], **more: Any):
        self.name, self._log, self._environment, self._more = name, log, environment, more
        self._command = list(map(str, command))
        self.process: subprocess.Popen[bytes] | None = None
        self.down_until = 0.0
        """an outage: nobody starts it again before this moment"""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ensure(self) -> None:
        """Start it if it is dead and its outage is over."""
        if self.alive or time.monotonic() < self.down_until:
            return
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,  # as a daemon; Ctrl-C is for this process alone
                **self._more,
            )
        self.down_until = time.monotonic() + 2  # what dies at once, such as Postgres before its old children do

    def kill(self, outage: float) -> int:
        assert self.process is not None
        self.down_until = time.monotonic() + outage
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return self.process.pid

    def stop(self) -> None:
        if self.process is None or not self.alive:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Store(Service):
    """moto's S3 server. It keeps objects in memory, so it notes every request and hears them again when it restarts: what
    it acknowledged is there, as on a real store. The network to it is down until then."""

    def __init__(self, place: Path, environment: dict[str, str]):
        port = free_port()
        self._recording, self._local, self._ready = place / "store.requests", f"http://127.0.0.1:{port}", False
        self._recording.touch()
        noted = {"MOTO_ENABLE_RECORDING": "1", "MOTO_RECORDER_FILEPATH": str(self._recording)}
        command = [sys.executable, "-m", "tests.chaos.object_store", "-H", "127.0.0.1", "-p", port]
        super().__init__("store", command, place / "store.log", environment | noted)
        self.network = Network(port)
        self.network.down()

    def ensure(self) -> None:
        if not self.alive and time.monotonic() >= self.down_until:
            self._ready = False
            self.network.down()
            whole, _, _ = self._recording.read_bytes().rpartition(b"\n")  # the last one may be cut off by the kill
            self._recording.write_bytes(whole + b"\n" if whole else b"")
        super().ensure()
        if self.alive and not self._ready and self._answers():
            httpx.post(f"{self._local}/moto-api/recorder/replay-recording", timeout=120).raise_for_status()
            self._ready = True
            self.network.up()

    @property
    def ready(self) -> bool:
        return self.alive and self._ready

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._local}/moto-api/", timeout=1).status_code < 500
        except httpx.HTTPError:
            return False

    def forget(self, prefix: str) -> None:
        """Requests about a prefix need not be heard again: nobody will ask for it."""
        kept = [line for line in self._recording.read_bytes().splitlines(True) if prefix.encode() not in line]
        self._recording.write_bytes(b"".join(kept))


class Site:
    """Everything that runs, and how to ask it."""

    def __init__(self, place: Path, mark: str, more: dict[str, str]):
        self.place, self.mark = place, mark
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "AWS_"))}
        paths = os.pathsep.join(path for path in sys.path if path)
        base = {**keep, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1", MARK: mark}
        self.store = Store(place, base)
        ports = {name: free_port() for name in ("postgres", "redis", "server")}
        server = {**base, **server_settings(ports["postgres"], ports["redis"]), "PREFECT_HOME": str(place / "server")}
        server |= {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(ports["server"])}
        self.address = f"http://127.0.0.1:{ports['server']}/api"
        self.bucket = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.store.network.port}",
            "AWS_ACCESS_KEY_ID": "longtake",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        login = {"PREFECT_API_URL": self.address, "PREFECT_API_AUTH_STRING": LOGIN}
        self.client = {**base, **login, **self.bucket, "PREFECT_HOME": str(place / "client")}
        self.api = httpx.Client(base_url=self.address, auth=tuple(LOGIN.split(":")), timeout=15)  # type: ignore[arg-type]
        self._server_environment = server
        redis = ["redis-server", "--port", ports["redis"], "--bind", "127.0.0.1", "--appendonly", "yes"]
        worker = {**self.client, "PREFECT_WORKER_QUERY_SECONDS": "3", **more}
        self.postgres, self._ask_postgres = _postgres(place, ports["postgres"], base)
        self.redis = Service("redis", redis, place / "redis.log", base, cwd=place)
        self.server = self._prefect("server", ["server", "start", "--no-services"], server)
        self.background = self._prefect("services", ["server", "services", "start"], server)
        self.worker = self._prefect("worker", ["worker", "start", "--pool", "longtake", "--type", "process"], worker)
        self.services = [self.postgres, self.redis, self.store, self.server, self.background, self.worker]

    def _prefect(self, name: str, command: list[str], environment: dict[str, str]) -> Service:
        return Service(name, [*PREFECT, *command], self.place / f"{name}.log", environment, cwd=self.place)

    def start(self) -> None:
        """Bring everything up, in its order, for the first time."""
        for service in (self.postgres, self.redis, self.store):
            service.ensure()
        wait_until("Postgres", lambda: subprocess.run([*self._ask_postgres, "select 1"], capture_output=True).returncode == 0)
        subprocess.run([*self._ask_postgres, "create database prefect"], check=True, capture_output=True)
        upgrade = [*PREFECT, "server", "database", "upgrade", "--yes"]
        subprocess.run(upgrade, env=self._server_environment, check=True, capture_output=True)
        self.server.ensure()
        self.background.ensure()
        wait_until("Prefect's server", self.healthy)
        wait_until("the object store", lambda: self.store.ensure() or self.store.ready)
        httpx.put(f"{self.bucket['AWS_ENDPOINT_URL']}/bucket").raise_for_status()

    def healthy(self) -> bool:
        try:
            return self.api.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def supervise(self) -> None:
        for service in self.services:
            service.ensure()

    def stop(self) -> None:
        for service in reversed(self.services):
            service.stop()


def wait_until(what: str, ready: Callable[[], Any], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.5)


def _postgres(place: Path, port: int, environment: dict[str, str]) -> tuple[Service, list[str]]:
    """The service on a new database cluster, and a command that asks it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found or shutil.which("redis-server") is None:
        sys.exit("chaos needs Postgres and Redis: apt-get install postgresql redis-server")
    binaries, home, who = found[-1].parent, place / "postgres", {}
    home.mkdir()
    if os.getuid() == 0:  # Postgres refuses to run as root
        user = pwd.getpwnam("postgres")
        os.chown(home, user.pw_uid, user.pw_gid)
        who = {"user": user.pw_uid, "group": user.pw_gid}
    data = home / "data"
    make = [binaries / "initdb", "--no-sync", "-D", data, "-U", "prefect", "--auth=trust"]
    subprocess.run(list(map(str, make)), check=True, stdout=subprocess.DEVNULL, cwd="/", **who)
    command = [binaries / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", home, "-c", "fsync=off"]
    ask = [str(binaries / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "-d", "postgres", "-c"]
    return Service("postgres", command, place / "postgres.log", environment, cwd="/", **who), ask
