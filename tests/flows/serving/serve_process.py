"""A server to test: the command as a user starts it, and requests that no well-behaved client would send."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from flows.serving.server import open_socket


@contextmanager
def served(workspace: Path, temporary: Path, *options: str) -> Iterator[str]:
    """'longtake serve' on a free port, with a folder for its temporary files; its address."""
    command = [sys.executable, "-m", "flows.cli", "serve", "-w", str(workspace), "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"it does not start: {line}{process.stderr.read()}"
        yield found.group()
    finally:
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
    assert "Traceback" not in complaints, complaints


@contextmanager
def in_thread(app: ASGIApp) -> Iterator[str]:
    """An application served by a thread of this process; its address."""
    listening = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def raw(address: str, head: str, *blocks: bytes) -> str:
    """Send bytes as they are, as far as they are wanted; what comes back. `head` is the lines of the request's head."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        try:
            for block in blocks:
                connection.sendall(block)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough
        answer = b""
        try:
            while block := connection.recv(65536):
                answer += block
        except ConnectionResetError:
            pass  # what we sent too much is thrown back; the answer came before
    return answer.decode()
