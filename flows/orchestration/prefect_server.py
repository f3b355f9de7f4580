"""One way to start a Prefect server on this machine, for a run that has none or for the dashboard."""

import os
import socket
import subprocess
import sys
from typing import IO

import httpx

from flows.orchestration.process_lifetime import child_environment
from storage.errors import LongtakeError

_START_SECONDS = 600.0  # it answers within seconds, but on a machine with twenty times its work to do it took minutes


class ServerEnded(LongtakeError):
    """The server ended while it started."""


def start_server(port: int = 0, dashboard: bool = False, output: IO[bytes] | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start Prefect's server on a port of this machine (0: any free one) and wait until it answers. Returns its process and
    its address. It ends when this process does, even by kill -9. Ctrl-C does not reach it: it would end before the run that
    reports to it."""
    from prefect.settings import get_current_settings

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
        port = listening.getsockname()[1]
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        # The dashboard's pages ask the port that this setting names.
        address = {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(port)}
        environment = child_environment({**os.environ, **settings, **address})
        for name in ("PREFECT_API_URL", "PREFECT_API_KEY"):  # of another server
            environment.pop(name, None)
        module = [sys.executable, "-P", "-m", "flows.orchestration.server_process", str(listening.fileno())]
        server = subprocess.Popen(
            [*module, *(["dashboard"] if dashboard else [])],
            env=environment,
            pass_fds=[listening.fileno()],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        # The socket takes the connection at once; the answer comes when the server is up, a reset if it ends before.
        httpx.get(f"{url}/api/health", timeout=_START_SECONDS).raise_for_status()
    except BaseException as error:
        ended = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
        end_server(server)
        if ended:
            raise ServerEnded("Prefect's server ended while it started") from error
        if isinstance(error, httpx.HTTPError):
            raise LongtakeError(
                f"Prefect's server does not answer at {url} ({error}); is the machine very busy? Run the same command again"
            ) from error
        raise
    return server, url


def end_server(server: subprocess.Popen[bytes]) -> None:
    """Tell a server to end, and kill it if it does not."""
    server.terminate()
    try:
        server.wait(timeout=5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
