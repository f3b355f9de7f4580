"""What the decoder processes of the tests do: answer, count, crash, hang, fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from storage.errors import BadMedia
from storage.worker_process import MESSAGE_SECONDS


def act(job: str) -> str:
    """What the workers of these tests do, by the name of the job."""
    if job == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if job == "hang":
        time.sleep(60)
    if job == "bad":
        raise BadMedia("empty", "nothing in it")
    if job == "bug":
        raise ZeroDivisionError("a mistake of ours")
    if job.startswith("slow"):
        time.sleep(0.2)
    return f"{job} done"


def count_to(job: str) -> Iterator[int]:
    """Numbers, each as the last one is taken; the job says how many and how it ends."""
    many, _, end = job.partition(" ")
    for n in range(int(many)):
        if end == "crash":
            time.sleep(2 * MESSAGE_SECONDS)  # so that the one before is on its way
        yield n
    act(end)


def large(job: Path) -> Iterator[bytes]:
    for n in range(50):
        job.write_text(str(n))
        yield bytes(2**20)


def slowly(job: str) -> Iterator[int]:
    for n in range(4):
        time.sleep(0.8)
        yield n


def dies_at_first(job: Path) -> str:
    """Killed the first time, as by a system that is short of memory."""
    if not job.with_suffix(".tried").exists():
        job.with_suffix(".tried").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def stream_that_dies_at_first(job: Path) -> Iterator[int]:
    for n in range(2):
        time.sleep(2 * MESSAGE_SECONDS)  # each in a message of its own
        yield n
    dies_at_first(job)
    yield 2


def minus_one(job: Path) -> int:
    return -1


def hangs_when_read(job: Path) -> Iterator[None]:
    time.sleep(60)
    yield


def odd_error(job: str) -> None:
    class LocalError(Exception):
        pass

    raise LocalError(f"cannot travel: {job}")


def process_id(job: int) -> int:
    return os.getpid()


def forever(job: Path) -> None:
    job.write_text(str(os.getpid()))
    time.sleep(600)
