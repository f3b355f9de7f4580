"""A pool of decoder processes that may crash or hang: that costs one video, never the run. A job that fails so is tried once
more, after a check that its file can be read: a killed process or a disk that does not answer says nothing of the video.

One thread feeds each process (decode_worker.py), so answers arrive while the caller computes. At most `ahead` jobs are started
and not handed out yet, and a stream waits once `MAX_QUEUED_CHUNKS` of its chunks wait: memory is bounded."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

from storage.errors import BadMedia, StorageError, TransientError
from storage.files.disk_check import read_through
from storage.media.decode_worker import START_SECONDS, DecodeProcess, Reply

JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")
_StreamFunction = Callable[[Any], Iterator[Any]]

MAX_QUEUED_CHUNKS = 8
"""Chunks of one stream that may wait to be taken."""
MAX_STARTS = 3
"""How often a process is started that is killed before it is ready."""


class DecodePool:
    """`workers` processes; 0 decodes in this process. `timeout` is how many seconds one job may take."""

    def __init__(self, workers: int, timeout: float) -> None:
        self.workers, self.timeout, self.ahead = workers, timeout, 2 * workers + 1
        self._idle: queue.SimpleQueue[DecodeProcess] = queue.SimpleQueue()
        self._started: list[DecodeProcess] = []
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> DecodePool:
        if self.workers:
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._closed.set()
            for process in self._started:
                process.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            process.close()

    def run(self, function: Callable[[JobT], AnswerT], jobs: Iterable[JobT]) -> Iterator[tuple[JobT, AnswerT | BadMedia]]:
        """Each job with its answer, in the order of the jobs. A BadMedia that the function raises, a crash and a hang
        are answers too; any other exception is raised here, the job named in a note. `function` must be importable."""
        for job, answers in self.stream(partial(_run_once, function), jobs):
            answer, *_ = answers  # a process that dies after its answer has given it
            yield job, answer

    def stream(
        self,
        function: Callable[[JobT], Iterator[AnswerT]],
        jobs: Iterable[JobT],
        restart: Callable[[JobT], AnswerT] | None = None,
    ) -> Iterator[tuple[JobT, Iterator[AnswerT | BadMedia]]]:
        """Each job with the chunks that the function yields for it, in the order of the jobs; take them all before the
        next job. Where it fails as in `run`, a BadMedia is the last chunk. `timeout` applies to each chunk.

        A job whose process died or hung is run once more. `restart` makes the chunk that declares the earlier ones void;
        without it, a job that has given chunks is not run again."""
        if not self.workers:
            for job in jobs:
                yield job, _chunks_in_process(function, job)
            return
        threads = self._threads
        if threads is None or self._closed.is_set():
            raise StorageError("the decode pool is not open; use it inside its 'with' block")
        pending: deque[tuple[JobT, _ChunkQueue]] = deque()
        remaining = iter(jobs)

        def submit() -> None:
            for job in islice(remaining, self.ahead - len(pending)):
                chunks = _ChunkQueue(self._closed)
                pending.append((job, chunks))
                threads.submit(self._run_job, function, job, chunks, restart)

        try:
            submit()
            while pending:
                first, chunks = pending.popleft()
                yield first, iter(chunks)
                chunks.cancel()
                submit()
        finally:
            for _, chunks in pending:
                chunks.cancel()

    def _run_job(self, function: _StreamFunction, job: Any, chunks: _ChunkQueue, restart: Callable[[Any], Any] | None) -> None:
        """Run one job in a process and queue its chunks; a second time if the process failed."""
        try:
            bad = self._attempt(function, job, chunks.put)
            if bad is not None and (restart is not None or not chunks.started):
                self._check_readable(job)
                if restart is not None and chunks.started:
                    chunks.put(restart(job))
                bad = self._attempt(function, job, chunks.put)
        except Exception as error:  # the caller's thread raises it
            chunks.put(error, Reply.ERROR)
            return
        if bad is not None:
            chunks.put(bad)
        chunks.put(None, Reply.END)

    def _attempt(self, function: _StreamFunction, job: Any, put: Callable[[Any], bool]) -> BadMedia | None:
        """Run one job in an idle process and pass its chunks on; BadMedia if the process died or hung, which then is not
        used again."""
        message = ForkingPickler.dumps((function, job))
        process = self._take()
        started = False
        try:
            process.send(message)
            kind, value = process.receive(START_SECONDS)
            started = True
            while kind in (Reply.STARTED, Reply.CHUNK):
                if kind is Reply.CHUNK and not put(value):
                    process.kill()  # nobody waits for the rest
                    return None
                kind, value = process.receive(self.timeout)
        except TimeoutError:
            process.kill()
            if not started:  # not the video's fault
                what = f"a decoder process did not begin within {START_SECONDS:g} s"
                raise TransientError(f"{what}; the machine is too busy: run the same command") from None
            return BadMedia("timeout", f"{job}: no answer within {self.timeout:g} s; the decoder hangs on this file")
        except (EOFError, OSError):
            reason = process.exit_reason()
            return BadMedia("crashed", f"{job}: the decoder process died ({reason}); convert the file")
        self._idle.put(process)
        if kind is Reply.ERROR:
            if not isinstance(value, BadMedia):
                raise _with_job_noted(value, function, job)
            put(value)
        return None

    def _check_readable(self, job: Any) -> None:
        """Read the job's file to its end, in a process, because reading may hang as well."""
        path = job if isinstance(job, Path) else getattr(job, "path", None)
        if path is not None and self._attempt(read_through, path, lambda _: True) is not None:
            what = f"cannot read {path}: no answer within {self.timeout:g} s"
            raise TransientError(f"{what}; check the disk or network that it lies on, then run the same command")

    def _take(self) -> DecodeProcess:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        for _ in range(MAX_STARTS - 1):
            with suppress(TransientError):
                return self._start()
        return self._start()

    def _start(self) -> DecodeProcess:
        with self._lock:
            if self._closed.is_set():
                raise StorageError("the decode pool was closed while it worked; run the same command again")
            for process in self._started:
                if not process.is_alive():
                    process.close()
            self._started = [process for process in self._started if process.is_alive()]
            process = DecodeProcess()
            self._started.append(process)
        process.wait_until_ready()
        return process


class _ChunkQueue:
    """The chunks of one job on their way from a pool thread to the caller; an error is raised in the caller's thread."""

    def __init__(self, closed: threading.Event) -> None:
        self._queue: queue.Queue[tuple[Reply, Any]] = queue.Queue(MAX_QUEUED_CHUNKS)
        self._closed = closed
        self._cancelled = False
        self.started = False
        """whether a chunk has come"""

    def put(self, chunk: Any, kind: Reply = Reply.CHUNK) -> bool:
        """Wait for room; False if nobody wants the chunks any more."""
        while not self._cancelled and not self._closed.is_set():
            with suppress(queue.Full):
                self._queue.put((kind, chunk), timeout=0.2)
                self.started = True
                return True
        return False

    def cancel(self) -> None:
        self._cancelled = True

    def __iter__(self) -> Iterator[Any]:
        try:
            while (reply := self._queue.get())[0] is not Reply.END:
                if reply[0] is Reply.ERROR:
                    raise reply[1]
                yield reply[1]
        finally:
            self.cancel()


def _run_once(function: Callable[[JobT], AnswerT], job: JobT) -> Iterator[AnswerT]:
    yield function(job)


def _chunks_in_process(function: Callable[[JobT], Iterator[AnswerT]], job: JobT) -> Iterator[AnswerT | BadMedia]:
    try:
        yield from function(job)
    except BadMedia as bad:
        yield bad
    except Exception as error:  # raised again with the job named
        raise _with_job_noted(error, function, job) from None


def _with_job_noted(error: Exception, function: Callable[..., Any], job: object) -> Exception:
    named = function.args[0] if isinstance(function, partial) else function
    error.add_note(f"while {getattr(named, '__name__', named)} worked on {job}")
    return error
