"""Run the web application on a socket until the process is told to stop."""

import socket
from collections.abc import Callable, Sequence

import uvicorn

from flows.serving.app import CaptionBackend, make_app
from flows.serving.schemas import Limits

_BACKLOG = 128


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that its port is known and taken before a model is loaded."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


async def serve_forever(
    worker: CaptionBackend,
    limits: Limits,
    names: Sequence[str],
    listening: socket.socket,
    ready: Callable[[dict[str, str], str], None],
) -> None:
    """Load the captioner, report the address by `ready`, and serve until the process is told to stop."""
    try:
        await worker.start()
        host, port = listening.getsockname()[:2]
        ready(worker.metadata, f"http://{f'[{host}]' if ':' in host else host}:{port}")
        config = uvicorn.Config(
            make_app(worker, limits, names),
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=3,
            timeout_keep_alive=15,
            ws="none",
        )
        await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await worker.stop()
        listening.close()
