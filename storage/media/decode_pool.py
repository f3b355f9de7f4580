"""Decoding in processes that may die: a native crash or a hang costs one video, never the run. It costs the video only if it
happens twice and the file can be read: a process that somebody killed, or a disk that did not answer, says nothing of it.

One thread here feeds each worker (decode_worker.py), so answers arrive while the caller computes. At most `ahead` jobs are
begun and not yet handed out, and a stream waits once `MAX_QUEUED_CHUNKS` pieces of it are: memory is bounded."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from storage.errors import BadMedia, StorageError, TransientError
from storage.files.disk_check import read_through
from storage.media.decode_worker import START_SECONDS, DecodeProcess, Reply

JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")

MAX_QUEUED_CHUNKS = 8
"""How many pieces of a stream may wait to be taken."""
MAX_STARTS = 3
"""How often a process is started that is killed before it is ready."""


class DecodePool:
    """`workers` processes; 0 runs everything here and now. `timeout` is the seconds that one job may take."""

    def __init__(self, workers: int, timeout: float) -> None:
        self.workers = workers
        self.timeout = timeout
        self.ahead = 2 * workers + 1
        self._idle: queue.SimpleQueue[DecodeProcess] = queue.SimpleQueue()
        self._started: list[DecodeProcess] = []
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> DecodePool:
        if self.workers:
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="decode")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed.set()
            for worker in self._started:
                worker.kill()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for worker in self._started:
            worker.close()

    def run(
        self, function: Callable[[JobT], AnswerT], jobs: Iterable[JobT]
    ) -> Iterator[tuple[JobT, AnswerT | BadMedia]]:
        """Each job with its answer, in the order of the jobs. A BadMedia that the function raises, a crash and a hang
        are answers too; any other exception is raised here, the job named in a note. `function` must be importable."""
        for job, answers in self.stream(partial(_run_once, function), jobs):
            answer, *_ = answers  # who dies after the answer has given it
            yield job, answer

    def stream(
        self,
        function: Callable[[JobT], Iterator[AnswerT]],
        jobs: Iterable[JobT],
        over: Callable[[JobT], AnswerT] | None = None,
    ) -> Iterator[tuple[JobT, Iterator[AnswerT | BadMedia]]]:
        """Each job with the pieces that the function yields for it, in the order of the jobs; take them all before the
        next job. Where it fails as in `run`, a BadMedia is the last piece. `timeout` counts for each piece.

        A job whose process died or hung is begun once more. `over` makes the piece that tells that those before are
        void; without it, a job of which pieces have come is not begun again."""
        if not self.workers:
            for job in jobs:
                yield job, _chunks_in_process(function, job)
            return
        if self._threads is None or self._closed.is_set():
            raise StorageError("the decode pool is not open; use it inside its 'with' block")
        pending: deque[tuple[JobT, _ChunkQueue]] = deque()

        def begin() -> None:
            for job in islice(coming, self.ahead - len(pending)):
                chunks = _ChunkQueue(self._closed)
                pending.append((job, chunks))
                self._threads.submit(self._run_job, function, job, chunks, over)  # type: ignore[union-attr]

        coming = iter(jobs)
        try:
            begin()
            while pending:
                first, chunks = pending.popleft()
                yield first, iter(chunks)
                chunks.cancel()
                begin()
        finally:
            for _, chunks in pending:
                chunks.cancel()

    def _run_job(
        self,
        function: Callable[[JobT], Iterator[AnswerT]],
        job: JobT,
        chunks: _ChunkQueue,
        over: Callable[[JobT], AnswerT] | None,
    ) -> None:
        """Have one job done by a worker and pass on what it answers; a second time if the first worker failed."""
        try:
            bad = self._attempt(function, job, chunks.put)
            if bad is not None and (over is not None or not chunks.begun):
                self._check_readable(job)
                if over is not None and chunks.begun:
                    chunks.put(over(job))
                bad = self._attempt(function, job, chunks.put)
        except Exception as error:  # the caller's thread raises it
            chunks.put(_Raise(error))
            return
        if bad is not None:
            chunks.put(bad)
        chunks.put(_END)

    def _attempt(
        self, function: Callable[[Any], Iterator[Any]], job: Any, put: Callable[[Any], bool]
    ) -> BadMedia | None:
        """Give one job to an idle worker and pass on what it answers; BadMedia if the worker died or hung. Such a worker
        is not used again."""
        message = ForkingPickler.dumps((function, job))
        worker = self._take()
        begun = False
        try:
            worker.send(message)
            what, value = worker.receive(START_SECONDS)
            begun = True
            while what in (Reply.BEGUN, Reply.CHUNK):
                if what is Reply.CHUNK and not put(value):
                    worker.kill()  # nobody waits for the rest
                    return None
                what, value = worker.receive(self.timeout)
        except TimeoutError:
            worker.kill()
            if not begun:  # no fault of the video's
                raise TransientError(
                    f"a decoder process did not begin within {START_SECONDS:g} s; the machine is too busy: run the same command"
                ) from None
            return BadMedia("timeout", f"{job}: no answer within {self.timeout:g} s; the decoder hangs on this file")
        except (EOFError, OSError):
            how = worker.exit_reason()
            return BadMedia("crashed", f"{job}: the decoder process died ({how}); convert the file")
        self._idle.put(worker)
        if what is Reply.ERROR:
            if not isinstance(value, BadMedia):
                raise _with_job_noted(value, function, job)
            put(value)
        return None

    def _check_readable(self, job: Any) -> None:
        """That the job's file can be read, in a process of its own, because reading may hang as well."""
        path = job if isinstance(job, Path) else getattr(job, "path", None)
        if path is None or self._attempt(read_through, path, lambda _: True) is None:
            return
        raise TransientError(
            f"cannot read {path}: no answer within {self.timeout:g} s; check the disk or network that it lies on, then run "
            "the same command"
        )

    def _take(self) -> DecodeProcess:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        for _ in range(MAX_STARTS - 1):
            with suppress(TransientError):
                return self._start()
        return self._start()

    def _start(self) -> DecodeProcess:
        with self._lock:
            if self._closed.is_set():
                raise StorageError("the decode pool was closed while it worked; run the same command again")
            for worker in self._started:
                if not worker.alive():
                    worker.close()
            self._started = [worker for worker in self._started if worker.alive()]
            worker = DecodeProcess()
            self._started.append(worker)
        worker.wait_until_ready()
        return worker


_END = object()


@dataclass(frozen=True)
class _Raise:
    """An exception that is not about the media: for the caller to see."""

    error: Exception


class _ChunkQueue:
    """The pieces of one job on their way from a worker's thread to the caller."""

    def __init__(self, closed: threading.Event) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(MAX_QUEUED_CHUNKS)
        self._closed = closed
        self._cancelled = False
        self.begun = False
        """whether a piece has come"""

    def put(self, chunk: Any) -> bool:
        """Wait for room; False if nobody wants the pieces any more."""
        while not self._cancelled and not self._closed.is_set():
            try:
                self._queue.put(chunk, timeout=0.2)
                self.begun = True
                return True
            except queue.Full:
                continue
        return False

    def cancel(self) -> None:
        self._cancelled = True

    def __iter__(self) -> Iterator[Any]:
        try:
            while (chunk := self._queue.get()) is not _END:
                if isinstance(chunk, _Raise):
                    raise chunk.error
                yield chunk
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
