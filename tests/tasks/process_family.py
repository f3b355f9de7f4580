"""The processes that a test started, and their children's children, found by a mark in their environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
MARK = "LONGTAKE_TEST_FAMILY"


@dataclass(frozen=True)
class Member:
    """One living process."""

    pid: int
    parent: int
    command: str

    @property
    def is_decoder(self) -> bool:
        return "storage.worker_process" in self.command and self.command.endswith(" decoder")

    @property
    def is_worker(self) -> bool:
        """Of a Dask cluster, or of a Ray one while it has a task."""
        return "spawn_main" in self.command or self.command.startswith("ray::extract_shard")

    @property
    def is_server(self) -> bool:
        return "prefect.server" in self.command


def family(mark: str) -> list[Member]:
    """Everything that lives and was started with this mark; a process that marked itself is not in it."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if command and fields[0] != "Z":
            found.append(Member(int(folder.name), int(fields[1]), command))
    return found


def busy_workers(mark: str) -> list[int]:
    """Workers that have a decoder at this moment: they are in the middle of a shard."""
    members = family(mark)
    parents = {member.parent for member in members if member.is_decoder}
    return [member.pid for member in members if member.is_worker and member.pid in parents]


def kill_a_busy_worker(mark: str, seconds: float = 60) -> int:
    """kill -9 one worker in the middle of its shard; its pid."""
    busy = wait_for(lambda: busy_workers(mark), seconds)
    os.kill(busy[0], signal.SIGKILL)
    return busy[0]


def wait_for(look: Callable[[], T], seconds: float = 60) -> T:
    """What `look` gives once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)
    return found
