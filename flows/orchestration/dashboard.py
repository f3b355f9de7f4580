"""Prefect's server and dashboard on this machine, on the database that runs without a server use."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from storage.errors import LongtakeError, UsageError, wrap_os_errors
from storage.files.atomic import write_json

_START_SECONDS = 600.0  # it answers within seconds, but on a machine with twenty times its work to do it took minutes
_NOTE = "longtake-dashboard.json"


@contextmanager
def dashboard(home: Path, port: int) -> Iterator[str]:
    """Prefect's server with its dashboard; yields the address once it answers, and ends it with the block. Runs that start
    meanwhile find it by a note in Prefect's folder and report to it."""
    _check_free(port)
    url = f"http://127.0.0.1:{port}"
    # The port goes by this setting: with --port alone the pages would go on asking port 4200.
    environment = {**os.environ, "PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(port)}
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "prefect", "server", "start"]
    note, log = home / _NOTE, home / "longtake-dashboard.log"
    with wrap_os_errors(home):
        home.mkdir(parents=True, exist_ok=True)
        file = log.open("wb")
    with file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        _wait(server, url, log)
        write_json(note, {"server": server.pid, "api": f"{url}/api"})
        yield url
    finally:
        note.unlink(missing_ok=True)
        server.send_signal(signal.SIGINT)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()


def running_api(home: Path) -> str:
    """The API of a dashboard that is up on this Prefect folder, or nothing."""
    try:
        api = str(json.loads((home / _NOTE).read_text())["api"])
        httpx.get(f"{api}/health", timeout=5).raise_for_status()
    except (OSError, ValueError, KeyError, httpx.HTTPError):
        return ""
    return api


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"port {port} is taken ({error.strerror}); choose another with --port") from error


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise LongtakeError(f"Prefect's server ended at once; {log} says why")
        try:
            httpx.get(f"{url}/api/health", timeout=2).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.3)
    raise LongtakeError(
        f"Prefect's server did not answer at {url} within {_START_SECONDS:.0f} s; is the machine very busy?"
    )
