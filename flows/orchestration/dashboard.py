"""Prefect's server and dashboard on this machine, on the database that runs without a server use."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from flows.orchestration.prefect_server import ServerEnded, end_server, start_server
from storage.errors import LongtakeError, UsageError, wrap_os_errors
from storage.files.atomic import write_json

_NOTE = "longtake-dashboard.json"


@contextmanager
def dashboard(home: Path, port: int) -> Iterator[str]:
    """Prefect's server with its dashboard; yields the address once it answers, and ends it with the block. Runs that start
    meanwhile find it by a note in Prefect's folder and report to it."""
    note, log = home / _NOTE, home / "longtake-dashboard.log"
    with wrap_os_errors(home):
        home.mkdir(parents=True, exist_ok=True)
        file = log.open("wb")
    with file:
        try:
            server, url = start_server(port, dashboard=True, output=file)
        except OSError as error:
            raise UsageError(f"port {port} is taken ({error.strerror}); choose another with --port") from error
        except ServerEnded as error:
            raise LongtakeError(f"{error}; {log} says why") from error
    try:
        write_json(note, {"server": server.pid, "api": f"{url}/api"})
        yield url
    finally:
        note.unlink(missing_ok=True)
        end_server(server)


def running_api(home: Path) -> str:
    """The API of a dashboard that is up on this Prefect folder, or nothing."""
    try:
        api = str(json.loads((home / _NOTE).read_text())["api"])
        httpx.get(f"{api}/health", timeout=5).raise_for_status()
    except (OSError, ValueError, KeyError, httpx.HTTPError):
        return ""
    return api
