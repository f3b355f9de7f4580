"""A pool of worker processes that may crash or hang: that costs one job's time, never the run. A job that fails so is tried
again: a killed process says nothing of the job.

One thread feeds each process (worker_process.py), so answers arrive while the caller computes. At most `ahead` jobs are started
and not handed out yet, and a stream waits once `MAX_QUEUED_MESSAGES` of its messages wait: memory is bounded."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Literal, Self, TypeVar

from storage.errors import BadMedia, StorageError, TransientError
from storage.worker_process import START_SECONDS, Reply, WorkerKind, WorkerProcess, pickled

JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")
_StreamFunction = Callable[[Any], Iterator[Any]]
Loss = Literal["timeout", "crashed"]
"""How a worker process was lost."""

MAX_QUEUED_MESSAGES = 4
"""Messages of one stream, of a chunk or several small ones, that may wait to be taken."""
MAX_STARTS = 3
"""How often a process is started that is killed before it is ready."""


class WorkerPool:
    """`workers` processes; 0 runs jobs in this process. `timeout` is how many seconds one job, or chunk of it, may take."""

    kind = WorkerKind("worker")
    attempts = 2
    """how often a job is run whose process dies or hangs"""

    def __init__(self, workers: int, timeout: float) -> None:
        self.workers, self.timeout, self.ahead = workers, timeout, 2 * workers + 1
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        self._started: list[WorkerProcess] = []
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        if self.workers:
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix=self.kind.name)
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
        pending: deque[tuple[JobT, _ChunkQueue]] = deque()
        remaining = iter(jobs)

        def submit() -> None:
            for job in islice(remaining, self.ahead - len(pending)):
                pending.append((job, self._submit(function, job, restart)))

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

    def submit(self, function: Callable[[JobT], AnswerT], job: JobT) -> Callable[[], AnswerT | BadMedia]:
        """Start one job -> what waits for its answer, which is as in `run`. How many are started is the caller's to bound."""
        answers: Iterable[Any]
        if self.workers:
            answers = self._submit(partial(_run_once, function), job, None)
        else:
            answers = _chunks_in_process(partial(_run_once, function), job)

        def wait() -> AnswerT | BadMedia:
            answer, *_ = answers
            return answer

        return wait

    def explain_loss(self, job: Any, lost: Loss, reason: str) -> BadMedia:
        """The answer for a job whose process died or hung at every attempt; or it is raised."""
        raise NotImplementedError

    def before_retry(self, job: Any) -> None:
        """Called before a job is run again."""

    def _submit(self, function: _StreamFunction, job: Any, restart: Callable[[Any], Any] | None) -> _ChunkQueue:
        if self._threads is None or self._closed.is_set():
            raise StorageError(f"the pool of {self.kind.name} processes is not open; use it inside its 'with' block")
        chunks = _ChunkQueue(self._closed)
        self._threads.submit(self._run_job, function, job, chunks, restart)
        return chunks

    def _run_job(self, function: _StreamFunction, job: Any, chunks: _ChunkQueue, restart: Callable[[Any], Any] | None) -> None:
        """Run one job in a process and queue its chunks; again if the process failed."""
        try:
            for attempt in range(self.attempts):
                if attempt:
                    self.before_retry(job)
                    if restart is not None and chunks.started:
                        chunks.put([restart(job)])
                lost = self._attempt(function, job, chunks.put)
                if lost is None or (restart is None and chunks.started):
                    break
            if lost is not None:
                chunks.put([self.explain_loss(job, *lost)], Reply.END)
        except Exception as error:  # the caller's thread raises it
            chunks.put(error, Reply.ERROR)

    def _attempt(self, function: _StreamFunction, job: Any, put: Callable[[list[Any], Reply], bool]) -> tuple[Loss, str] | None:
        """Run one job in an idle process and pass its chunks on; how the process was lost if it died or hung, which then is not
        used again."""
        message = pickled((function, job))
        process = self._take()
        try:
            process.send(message)
            kind = Reply.STARTED
            while kind not in (Reply.END, Reply.ERROR):
                kind, value = process.receive(self.timeout if process.has_started else START_SECONDS)
                process.has_started = True
                wanted = kind not in (Reply.CHUNKS, Reply.END) or put(value, kind)
                if not wanted and kind is Reply.CHUNKS:
                    process.kill()  # nobody waits for the rest
                    return None
        except TimeoutError:
            process.kill()
            if not process.has_started:  # not the job's fault
                what = f"a {self.kind.name} process did not begin within {START_SECONDS:g} s"
                raise TransientError(f"{what}; the machine is too busy: run the same command") from None
            return "timeout", f"no answer within {self.timeout:g} s"
        except (EOFError, OSError):
            return "crashed", process.exit_reason()
        self._idle.put(process)
        if kind is Reply.ERROR:
            if not isinstance(value, BadMedia):
                raise _with_job_noted(value, function, job)
            put([value], Reply.END)
        return None

    def _take(self) -> WorkerProcess:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        for _ in range(MAX_STARTS - 1):
            with suppress(TransientError):
                return self._start()
        return self._start()

    def _start(self) -> WorkerProcess:
        with self._lock:
            if self._closed.is_set():
                raise StorageError(
                    f"the pool of {self.kind.name} processes was closed while it worked; run the same command again"
                )
            for process in self._started:
                if not process.is_alive():
                    process.close()
            self._started = [process for process in self._started if process.is_alive()]
            process = WorkerProcess(self.kind)
            self._started.append(process)
        process.wait_until_ready()
        return process


class _ChunkQueue:
    """The chunks of one job on their way from a pool thread to the caller; an error is raised in the caller's thread."""

    def __init__(self, closed: threading.Event) -> None:
        self._queue: queue.Queue[tuple[Reply, Any]] = queue.Queue(MAX_QUEUED_MESSAGES)
        self._closed = closed
        self._cancelled = False
        self.started = False
        """whether a chunk has come"""

    def put(self, chunks: Any, kind: Reply = Reply.CHUNKS) -> bool:
        """Wait for room; False if nobody wants the chunks any more."""
        while not self._cancelled and not self._closed.is_set():
            with suppress(queue.Full):
                self._queue.put((kind, chunks), timeout=0.2)
                self.started = True
                return True
        return False

    def cancel(self) -> None:
        self._cancelled = True

    def __iter__(self) -> Iterator[Any]:
        try:
            kind = Reply.STARTED
            while kind is not Reply.END:
                kind, value = self._queue.get()
                if kind is Reply.ERROR:
                    raise value
                yield from value
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
