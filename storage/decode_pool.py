"""Decoding in processes that may die: a native crash or a hang costs one video, never the run.

Each worker is a fresh interpreter (no fork, and it does not import the program that started it), speaks over a socket
of its own and ends with its parent. One thread here feeds each worker, so answers arrive while the caller computes; at
most `ahead` jobs are begun and not yet handed out, which bounds memory."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from storage.errors import BadMedia, StorageError
from storage.media import Probe, Sampled, probe, read_samples
from storage.sampling import Sampling

Job = TypeVar("Job")
Answer = TypeVar("Answer")

START_SECONDS = 120.0
"""How long a fresh interpreter may take to start on a busy machine."""

# SIGINT is ignored before anything slow is imported: Ctrl-C is the parent's to handle.
_PROGRAM = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
handle, parent, sys.path[:] = json.loads(sys.argv[1])
from storage.decode_pool import serve
serve(handle, parent)
"""


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """One video to decode for some samplings; without a probe it is probed first."""

    path: Path
    samplings: Mapping[str, Sampling]
    segment: tuple[float, float] | None = None
    probe: Probe | None = None
    size: tuple[int, int] | None = None

    def __str__(self) -> str:
        return str(self.path)


def decode_job(job: DecodeJob) -> dict[str, Sampled]:
    """What a worker does with a DecodeJob."""
    return read_samples(job.path, job.samplings, job.segment, job.probe or probe(job.path), job.size)


class DecodePool:
    """`workers` processes; 0 runs everything here and now. `timeout` is the seconds that one job may take."""

    def __init__(self, workers: int, timeout: float) -> None:
        self.workers = workers
        self.timeout = timeout
        self.ahead = 2 * workers + 1
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._started: list[_Worker] = []
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> DecodePool:
        if self.workers:
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            for worker in self._started:
                worker.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for worker in self._started:
            worker.close()

    def run(self, function: Callable[[Job], Answer], jobs: Iterable[Job]) -> Iterator[tuple[Job, Answer | BadMedia]]:
        """Each job with its answer, in the order of the jobs. A BadMedia that the function raises, a crash and a hang
        are answers too; any other exception is raised here, the job named in a note. `function` must be importable."""
        if not self.workers:
            for job in jobs:
                yield job, _answer_here(function, job)
            return
        if self._threads is None or self._closed:
            raise StorageError("the decode pool is not open; use it inside its 'with' block")
        pending: deque[tuple[Job, Future[Answer | BadMedia]]] = deque()
        try:
            for job in jobs:
                pending.append((job, self._threads.submit(self._answer, function, job)))
                if len(pending) >= self.ahead:
                    first, future = pending.popleft()
                    yield first, future.result()
            while pending:
                first, future = pending.popleft()
                yield first, future.result()
        finally:
            for _, future in pending:
                future.cancel()

    def _answer(self, function: Callable[[Job], Answer], job: Job) -> Answer | BadMedia:
        """Give one job to an idle worker and wait; a worker that failed is not used again."""
        message = ForkingPickler.dumps((function, job))
        worker = self._take()
        try:
            done, value = worker.ask(message, self.timeout)
        except TimeoutError:
            worker.kill()
            return BadMedia("timeout", f"{job}: no answer within {self.timeout:g} s; the decoder hangs on this file")
        except (EOFError, OSError):
            return BadMedia("crashed", f"{job}: the decoder process died ({worker.how_it_ended()}); convert the file")
        self._idle.put(worker)
        if done or isinstance(value, BadMedia):
            return value
        raise _named(value, function, job)

    def _take(self) -> _Worker:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        with self._lock:
            if self._closed:
                raise StorageError("the decode pool was closed while it worked; run the same command again")
            for worker in self._started:
                if not worker.alive():
                    worker.close()
            self._started = [worker for worker in self._started if worker.alive()]
            worker = _Worker()
            self._started.append(worker)
        worker.wait_until_ready()
        return worker


class _Worker:
    """One decoder process and the socket to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps([theirs.fileno(), os.getpid(), sys.path])],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._connection = Connection(ours.detach())

    def wait_until_ready(self) -> None:
        """A process that does not start is our fault, not the video's."""
        try:
            if self._connection.poll(START_SECONDS):
                self._connection.recv()
                return
        except (EOFError, OSError):
            pass
        self.kill()
        self._complaints.seek(0)
        words = self._complaints.read().decode(errors="replace").strip().splitlines() or [self.how_it_ended()]
        raise StorageError(f"a decoder process does not start: {words[-1]}; 'longtake doctor' checks the set-up")

    def ask(self, message: bytes | memoryview, timeout: float) -> tuple[bool, Any]:
        """(True, the answer) or (False, the exception); TimeoutError or EOFError if neither comes."""
        self._connection.send_bytes(message)
        if not self._connection.poll(timeout):
            raise TimeoutError
        return self._connection.recv()

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def how_it_ended(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its connection"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def close(self) -> None:
        self._process.wait()
        self._connection.close()
        self._complaints.close()


def serve(handle: int, parent: int) -> None:
    """The life of a worker: answer until the socket closes."""
    connection = Connection(handle)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection.send("ready")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # native decoders talk a lot about damaged files
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, job = ForkingPickler.loads(message)
            reply: bytes | memoryview = ForkingPickler.dumps((True, function(job)))
        except Exception as error:  # carried over to the parent, which raises it
            reply = _carried(error)
        try:
            connection.send_bytes(reply)
        except OSError:
            return


def _carried(error: Exception) -> bytes | memoryview:
    words = "".join(traceback.format_exception(error))
    error.add_note(words)
    try:
        message = ForkingPickler.dumps((False, error))
        ForkingPickler.loads(message)
    except Exception:  # an exception that cannot travel: its words can
        message = ForkingPickler.dumps((False, RuntimeError(words)))
    return message


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, even in the middle of a job."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _answer_here(function: Callable[[Job], Answer], job: Job) -> Answer | BadMedia:
    try:
        return function(job)
    except BadMedia as bad:
        return bad
    except Exception as error:  # raised again with the job named
        raise _named(error, function, job) from None


def _named(error: Exception, function: Callable[..., Any], job: object) -> Exception:
    error.add_note(f"while {getattr(function, '__name__', function)} worked on {job}")
    return error
