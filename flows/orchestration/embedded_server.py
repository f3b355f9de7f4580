"""Prefect's settings and its embedded server: a start that works on a slow machine, and a complete history.

A Prefect server named by PREFECT_API_URL or a profile is used as it is, and so is a dashboard that is up. Otherwise a server
is started for as long as this process lives, on the database in PREFECT_HOME."""

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from uuid import UUID

from flows.orchestration.crash_recovery import HEARTBEAT, mark_crashed
from storage.errors import LongtakeError, wrap_os_errors
from storage.files.locks import file_lock
from tasks.framework.progress import console

_DRAIN_SECONDS = 120.0
_TRIES = 3  # of the embedded server to start
SLOTS = "longtake-gpu"
"""The global concurrency limit that `longtake deploy --gpu-slots` creates."""


def configure(*, verbose: bool = False) -> None:
    """Set what the user has not set. Must run before Prefect is imported, because Prefect reads it then."""
    defaults = {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # The command line reports by itself. A name, not a number: a number in quotes makes Prefect drop all logging.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO" if verbose else "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        **HEARTBEAT,
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def prefect_api() -> Iterator[None]:
    """Prefect's API answers in this block: of the server that PREFECT_API_URL names, of the dashboard, or of a server of our
    own, which then lives as long as this process."""
    from prefect.settings import PREFECT_API_KEY, PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from flows.orchestration.dashboard import running_api

    home = Path(PREFECT_HOME.value())
    if PREFECT_API_URL.value():
        _mark_crashed_runs(home)
        yield
        return
    api = running_api(home)
    # A key is for another server: with one, Prefect sends its events to a cloud, and task runs never reach ours.
    without_key = set() if api else {PREFECT_API_KEY}
    with temporary_settings({PREFECT_API_URL: api or _embedded_api(home)}, restore_defaults=without_key):
        _mark_crashed_runs(home)
        yield


@cache
def _embedded_api(home: Path) -> str:
    """Start the embedded server of this process. Two runs that start at once on a new database would both migrate it, so one
    waits. A server that ends while it starts is started again: its database may just have been busy."""
    from flows.orchestration.prefect_server import ServerEnded, end_server, start_server

    with wrap_os_errors(home):
        home.mkdir(parents=True, exist_ok=True)
    with file_lock(home / "longtake-start.lock"):
        for _ in range(_TRIES):
            with suppress(ServerEnded):
                server, url = start_server()
                # At exit, after Prefect has sent its last logs and events.
                atexit.register(end_server, server)
                return f"{url}/api"
    raise LongtakeError(
        f"Prefect's embedded server ended {_TRIES} times while it started; what it printed above says why. Mostly its "
        f"database cannot be used: {home}, or what PREFECT_SERVER_DATABASE_CONNECTION_URL names"
    )


def _mark_crashed_runs(home: Path) -> None:
    if found := mark_crashed(home):
        several = f"{len(found)} earlier runs were" if len(found) > 1 else "an earlier run was"
        console.print(f"[dim]{several} killed: Prefect's history now says so[/]")


def wait_for_history(flow_run_id: UUID, task_runs: int) -> bool:
    """Wait until at least so many task runs of a flow run are recorded, and all in a final state: the embedded server takes
    them from a queue and would lose those still in it when this process ends. 0 waits until nothing moves any more. False if
    it could not be seen: results are safe either way."""
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.objects import TERMINAL_STATES
    from prefect.exceptions import PrefectException

    mine = {"flow_runs": {"id": {"any_": [str(flow_run_id)]}}}
    final = {"task_runs": {"state": {"type": {"any_": sorted(state.value for state in TERMINAL_STATES)}}}}
    deadline, still = time.monotonic() + _DRAIN_SECONDS, 0
    with get_client(sync_client=True) as client, suppress(HTTPError, PrefectException):
        while time.monotonic() < deadline:
            all_, ended = (client.request("POST", "/task_runs/count", json=asked).json() for asked in (mine, mine | final))
            still = still + 1 if all_ == ended and all_ >= task_runs else 0
            if still >= (1 if task_runs else 5):
                return True
            time.sleep(0.2)
    return False
