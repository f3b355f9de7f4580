"""Processes that tests start, wait for and look at."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 900.0  # seconds; machines are shared


def wait_for(what: str, ready: Callable[[], Any], patience: float = PATIENCE) -> Any:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if found := ready():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {patience:.0f} s")


@contextmanager
def running(command: list[Any], log: Path, environment: dict[str, str] | None = None, **more: Any) -> Iterator[Any]:
    """A process that ends with the block; what it prints goes to the log."""
    with log.open("w") as file:
        process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, env=environment, **more)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int, named: str = "") -> list[int]:
    """The processes that a process started, of those whose command line has these words."""
    listed = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if named in line]


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def unprivileged() -> list[str]:
    """What to put before a command so that it has none of root's rights; nothing for who has none anyway."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv (util-linux) to give up root's rights")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
