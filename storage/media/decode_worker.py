"""One decoder process: how the pool (decode_pool.py) starts it and talks to it, and its own main loop.

It is a fresh interpreter (no fork, no import of the program that started it) with a socket of its own and a limit of memory; it
ends with its parent."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from enum import Enum
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from storage.errors import BadMedia, StorageError, TransientError
from storage.files.parent_watch import end_with_parent

MEMORY = 6 * 2**30
"""Bytes of address space for a decoder: a file of a few kB can claim frames without end."""
START_SECONDS = 120.0
"""How long a fresh interpreter may take to start on a busy machine."""

# SIGINT is ignored before anything slow is imported: Ctrl-C is the parent's to handle.
_PROGRAM = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
handle, parent, sys.path[:] = json.loads(sys.argv[1])
from storage.media.decode_worker import serve
serve(handle, parent)
"""


class Reply(Enum):
    """The kinds of messages from a decoder process."""

    STARTED = 0
    """the job was unpickled, which the first time imports all it needs"""
    CHUNK = 1
    ERROR = 2
    END = 3


class DecodeProcess:
    """One decoder process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        none, env = subprocess.DEVNULL, {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            handle, err = theirs.fileno(), self._stderr
            command = [sys.executable, "-c", _PROGRAM, json.dumps([handle, os.getpid(), sys.path])]
            self._process = subprocess.Popen(command, pass_fds=[handle], stdin=none, stdout=none, stderr=err, env=env)
        self._connection = Connection(ours.detach())

    def wait_until_ready(self) -> None:
        """Raise StorageError if the process does not start; TransientError if it was killed, and may start next time."""
        try:
            if self._connection.poll(START_SECONDS):
                self._connection.recv()
                return
        except (EOFError, OSError):
            if (reason := self.exit_reason()).startswith("SIG"):
                what = f"a decoder process was ended by {reason} as it started"
                raise TransientError(f"{what}, for want of memory perhaps; run the same command") from None
        self.kill()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines() or [self.exit_reason()]
        raise StorageError(f"a decoder process does not start: {lines[-1]}; 'longtake doctor' checks the set-up")

    def send(self, message: bytes | memoryview) -> None:
        self._connection.send_bytes(message)

    def receive(self, timeout: float) -> tuple[Reply, Any]:
        """The next message; TimeoutError or EOFError if none comes."""
        if not self._connection.poll(timeout):
            raise TimeoutError
        return self._connection.recv()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def exit_reason(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its connection"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def close(self) -> None:
        self._process.wait()
        self._connection.close()
        self._stderr.close()


def serve(handle: int, parent: int) -> None:
    """The main loop of a decoder process: run jobs until the socket closes."""
    connection = Connection(handle)
    end_with_parent(parent)
    connection.send("ready")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # native decoders talk a lot about damaged files
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, job = ForkingPickler.loads(message)
            connection.send_bytes(ForkingPickler.dumps((Reply.STARTED, None)))
            for chunk in function(job):
                connection.send_bytes(ForkingPickler.dumps((Reply.CHUNK, chunk)))
            reply: bytes | memoryview = ForkingPickler.dumps((Reply.END, None))
        except MemoryError:
            reason = f"{job}: it needs more than {MEMORY / 2**30:g} GB to decode; it is damaged, or scale it down first"
            reply = _pickled_error(BadMedia("too_large", reason))
        except Exception as error:  # sent to the parent, which raises it
            reply = _pickled_error(error)
        try:
            connection.send_bytes(reply)
        except OSError:
            return


def _pickled_error(error: Exception) -> bytes | memoryview:
    trace = "".join(traceback.format_exception(error))
    error.add_note(trace)
    try:
        message = ForkingPickler.dumps((Reply.ERROR, error))
        ForkingPickler.loads(message)
    except Exception:  # cannot be pickled: its text can
        message = ForkingPickler.dumps((Reply.ERROR, RuntimeError(trace)))
    return message
