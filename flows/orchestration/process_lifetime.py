"""Who ends with whom. A command that is told to end (SIGTERM) ends as after Ctrl-C; what it started ends with it even after
kill -9: its embedded server by a process that waits for us to be gone, the runs of a sweep because they look for their parent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from storage.files.parent_watch import end_with_parent

_PARENT = "LONGTAKE_PARENT"
# Its standard input ends when we do, however we end. Then the server is told to end, and made to if it does not.
_WAIT_AND_END = """
cat > /dev/null
kill -TERM "$1"
for second in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    kill -0 "$1" || exit
    sleep 1
done
kill -KILL "$1"
"""


def end_as_by_interrupt() -> None:
    """Let SIGTERM, by which systemd, Docker and `kill` end a process, raise KeyboardInterrupt as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def ends_with_us(pid: int) -> Iterator[None]:
    """If this process is gone before the block ends, the process `pid` is ended."""
    watcher = subprocess.Popen(
        ["sh", "-c", _WAIT_AND_END, "longtake-lifeline", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C and a signal to our group are not meant for it
    )
    try:
        yield
    finally:
        watcher.kill()
        watcher.communicate()


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that is to end when this process is gone."""
    return {**environment, _PARENT: str(os.getpid())}


def end_with_starter() -> None:
    """In a command that got a `child_environment`: end when the process that started it is gone."""
    if parent := os.environ.pop(_PARENT, ""):
        end_with_parent(int(parent))
