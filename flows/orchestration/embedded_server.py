"""Prefect's settings and its embedded server: start-up that does not depend on luck, and a history that is whole.

A Prefect server named by PREFECT_API_URL or a profile is used as it is, and so is a dashboard that is up. Otherwise
Prefect starts a server of its own for the time of the run, on the database in PREFECT_HOME."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from flows.orchestration.crash_recovery import HEARTBEAT, mark_crashed
from flows.orchestration.process_lifetime import ends_with_us
from storage.errors import LongtakeError, wrap_os_errors
from storage.files.atomic import write_json
from storage.files.locks import file_lock
from tasks.framework.progress import console

_DRAIN_SECONDS = 120.0
_TRIES = 3  # of the embedded server to start
SLOTS = "longtake-gpu"
"""The global concurrency limit that `longtake deploy --gpu-slots` makes."""


def configure(*, verbose: bool = False) -> None:
    """Set what the user has not set. Must run before Prefect is imported, because Prefect reads it then."""
    defaults = {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600",  # 20 s, the default, fails on a slow machine
        # The command line reports by itself. A name, not a number: a number in quotes makes Prefect drop all logging.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO" if verbose else "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        **HEARTBEAT,
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def started() -> Iterator[None]:
    """The API is there. Two runs that start at once on a new database would both migrate it, so one waits."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_KEY, PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from flows.orchestration.dashboard import running_api

    home = Path(PREFECT_HOME.value())
    if PREFECT_API_URL.value():
        _tell_of_crashes(home)
        yield
        return
    if api := running_api(home):
        with temporary_settings({PREFECT_API_URL: api}):
            _tell_of_crashes(home)
            yield
        return
    notes = home / "longtake-servers"
    with wrap_os_errors(home):
        notes.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        # A key is for another server: with one, Prefect tells its events to a cloud, and task runs never reach this one.
        held.enter_context(temporary_settings(restore_defaults={PREFECT_API_KEY}))
        _look_after_server(notes, held)
        with file_lock(home / "longtake-start.lock"):
            _end_orphans(notes)
            try:
                with _deaf_to_interrupts(), get_client(sync_client=True) as client:
                    client.api_healthcheck()
            except RuntimeError as error:  # all that Prefect says of a server that does not answer in time
                raise LongtakeError(
                    f"Prefect's embedded server does not answer ({error}); is the machine very busy, or the disk of {home} full? "
                    "Run the same command again"
                ) from error
        _tell_of_crashes(home)
        yield


def _tell_of_crashes(home: Path) -> None:
    if found := mark_crashed(home):
        several = f"{len(found)} earlier runs were" if len(found) > 1 else "an earlier run was"
        console.print(f"[dim]{several} killed: Prefect's history now says so[/]")


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which goes to all of a terminal: the server would end before the run that
    reports to it, and the run would wait for it. They are ended by us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _look_after_server(notes: Path, held: ExitStack) -> None:
    """See to it that our embedded server ends with us from its first moment on, and remember which process it is, should we
    and what waits for our end be killed at once. Prefect starts a server that ends by itself, because its database cannot be
    used, again and again for ever: three times are enough."""
    from prefect.server.api.server import SubprocessASGIServer

    server = SubprocessASGIServer()
    begin, tries = server._run_uvicorn_command, iter(range(_TRIES))
    note = notes / f"{os.getpid()}.json"
    held.callback(note.unlink, missing_ok=True)

    def begun() -> subprocess.Popen[Any]:
        if next(tries, None) is None:
            raise LongtakeError(
                f"Prefect's embedded server ended {_TRIES} times while it started; what it printed above says why. Mostly its "
                f"database cannot be used: {notes.parent}, or what PREFECT_SERVER_DATABASE_CONNECTION_URL names"
            )
        process = begin()
        write_json(note, {"owner": os.getpid(), "server": process.pid, "port": server.port})
        held.enter_context(ends_with_us(process.pid))
        return process

    server._run_uvicorn_command = begun  # type: ignore[method-assign]


def _end_orphans(notes: Path) -> None:
    """End the embedded servers whose run was killed."""
    for note in notes.glob("*.json"):
        known = json.loads(note.read_text())
        if _command_of(known["owner"]):
            continue
        command = _command_of(known["server"])
        if "prefect.server.api.server:create_app" in command and str(known["port"]) in command.split("\0"):
            with suppress(ProcessLookupError):
                os.kill(known["server"], signal.SIGTERM)
        note.unlink(missing_ok=True)


def _command_of(pid: int) -> str:
    """The command line of a living process, or nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


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
            all_, ended = (
                client.request("POST", "/task_runs/count", json=asked).json() for asked in (mine, mine | final)
            )
            still = still + 1 if all_ == ended and all_ >= task_runs else 0
            if still >= (1 if task_runs else 5):
                return True
            time.sleep(0.2)
    return False
