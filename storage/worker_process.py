"""One worker process: how a pool (worker_pool.py) starts it and talks to it, and its own main loop.

It is a fresh interpreter (no fork, no import of the program that started it) with a socket of its own; it ends with its parent.
Arrays travel beside the pickle that they belong to, so that they are not copied on either side of the socket."""

import json
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from storage.errors import BadMedia, StorageError, TransientError
from storage.files.parent_watch import end_with_parent
from storage.machine import keep_freed_memory

MESSAGE_BYTES, MESSAGE_SECONDS = 2 * 2**20, 0.05
"""Chunks travel together until they have so many bytes, or came over so long a time: every message wakes a thread up."""
START_SECONDS = 120.0
"""How long a fresh interpreter may take to start on a busy machine."""

# SIGINT is ignored before anything slow is imported: Ctrl-C is the parent's to handle.
_PROGRAM = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
handle, parent, memory, keeps, sys.path[:] = json.loads(sys.argv[1])
from storage.worker_process import serve
serve(handle, parent, memory, keeps)
"""
_HEADER = struct.Struct("<QQ")  # bytes of the pickle, and how many arrays follow it
_SIZE = struct.Struct("<Q")
_SOCKET_BYTES = 2**20  # that may be on their way; the system may allow less


@dataclass(frozen=True)
class WorkerKind:
    """What a pool's processes are called, in messages and in the list of processes, and how they treat memory."""

    name: str
    memory: int | None = None
    """bytes of address space that each may have"""
    keeps_memory: bool = False
    """whether blocks that are freed are kept for the next job"""


class Reply(Enum):
    """The kinds of messages from a worker process."""

    STARTED = 0
    """the process's first job was unpickled, which imports all it needs"""
    CHUNKS = 1
    """some of what the job gives, in order"""
    END = 2
    """the last of it, perhaps none"""
    ERROR = 3


Message = Sequence[bytes | memoryview]
"""A pickled value as the parts that are sent one after another."""


def pickled(value: Any) -> Message:
    """A value ready to be sent; arrays in it are referred to, not copied."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    sizes = b"".join(_SIZE.pack(array.nbytes) for array in arrays)
    return [_HEADER.pack(len(body), len(arrays)) + sizes + body, *arrays]


@dataclass(frozen=True)
class Received:
    """A pickled value as it came."""

    body: memoryview
    arrays: list[memoryview]

    def value(self) -> Any:
        return pickle.loads(self.body, buffers=self.arrays)  # noqa: S301 - from a process of our own


class Channel:
    """One end of a socket that whole values go through."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)

    def send(self, message: Message) -> None:
        self._socket.settimeout(None)
        for part in message:
            self._socket.sendall(part)

    def receive(self, timeout: float | None = None) -> Received:
        """The next value, still pickled; TimeoutError if nothing comes, EOFError if the other end is gone."""
        self._socket.settimeout(timeout)
        length, count = _HEADER.unpack(self._read(_HEADER.size))
        sizes = [size for (size,) in _SIZE.iter_unpack(self._read(_SIZE.size * count))]
        return Received(self._read(length), [self._read(size) for size in sizes])

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> memoryview:
        whole = np.empty(size, np.uint8).data  # a bytearray would be filled with zeros first
        rest = whole
        while len(rest):
            count = self._socket.recv_into(rest)
            if not count:
                raise EOFError
            rest = rest[count:]
        return whole


class WorkerProcess:
    """One worker process and the socket to it."""

    def __init__(self, kind: WorkerKind) -> None:
        self._kind = kind
        self.has_started = False
        """whether it has begun its first job"""
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        none, env = subprocess.DEVNULL, {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            handle, err = theirs.fileno(), self._stderr
            settings = json.dumps([handle, os.getpid(), kind.memory, kind.keeps_memory, sys.path])
            command = [sys.executable, "-c", _PROGRAM, settings, kind.name]
            self._process = subprocess.Popen(command, pass_fds=[handle], stdin=none, stdout=none, stderr=err, env=env)
        self._channel = Channel(ours)

    def wait_until_ready(self) -> None:
        """Raise StorageError if the process does not start; TransientError if it was killed, and may start next time."""
        try:
            self._channel.receive(START_SECONDS)
            return
        except TimeoutError:
            pass
        except (EOFError, OSError):
            if (reason := self.exit_reason()).startswith("SIG"):
                what = f"a {self._kind.name} process was ended by {reason} as it started"
                raise TransientError(f"{what}, for want of memory perhaps; run the same command") from None
        self.kill()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines() or [self.exit_reason()]
        raise StorageError(f"a {self._kind.name} process does not start: {lines[-1]}; 'longtake doctor' checks the set-up")

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def receive(self, timeout: float) -> tuple[Reply, Any]:
        """The next message; TimeoutError or EOFError if none comes."""
        return self._channel.receive(timeout).value()

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
        self._channel.close()
        self._stderr.close()


def serve(handle: int, parent: int, memory: int | None, keeps_memory: bool) -> None:
    """The main loop of a worker process: run jobs until the socket closes."""
    channel = Channel(socket.socket(fileno=handle))
    end_with_parent(parent)
    channel.send(pickled("ready"))
    if keeps_memory:
        keep_freed_memory()
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # native decoders talk a lot about damaged files
    first = True
    while True:
        try:
            message = channel.receive()
        except (EOFError, OSError):
            return
        job: Any = None
        chunks: list[Any] = []
        try:
            function, job = message.value()
            if first:
                channel.send(pickled((Reply.STARTED, None)))
                first = False
            size, sent = 0, time.monotonic()
            for chunk in function(job):
                chunks.append(chunk)
                size += _bytes_in(chunk)
                if size >= MESSAGE_BYTES or time.monotonic() - sent > MESSAGE_SECONDS:
                    channel.send(pickled((Reply.CHUNKS, chunks)))
                    chunks, size, sent = [], 0, time.monotonic()
            reply = pickled((Reply.END, chunks))
        except Exception as error:  # sent to the parent, which raises it
            if chunks:
                channel.send(pickled((Reply.CHUNKS, chunks)))
            reply = _pickled_error(_too_large(job, memory) if memory and isinstance(error, MemoryError) else error)
        try:
            channel.send(reply)
        except OSError:
            return


def _bytes_in(chunk: Any) -> int:
    """About how much a chunk holds: an array, bytes, what says it by `nbytes`, or a tuple of these."""
    if isinstance(chunk, tuple):
        return sum(map(_bytes_in, chunk))
    return len(chunk) if isinstance(chunk, bytes) else getattr(chunk, "nbytes", 0)


def _too_large(job: Any, memory: int) -> BadMedia:
    needs = f"it needs more than {memory / 2**30:g} GB to decode"
    return BadMedia("too_large", f"{job}: {needs}; it is damaged, or scale it down first")


def _pickled_error(error: Exception) -> Message:
    trace = "".join(traceback.format_exception(error))
    error.add_note(trace)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was dumped this moment
    except Exception:  # cannot be pickled: its text can
        error = RuntimeError(trace)
    return pickled((Reply.ERROR, error))
