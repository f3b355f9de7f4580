"""How processes end. A command that gets SIGTERM ends as after Ctrl-C; what it started ends with it even after kill -9: the
runs of a sweep and the embedded Prefect server watch for the process that started them."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from storage.files.parent_watch import end_with_parent

_PARENT = "LONGTAKE_PARENT"
_ROOT = Path(__file__).parents[2]


def treat_sigterm_as_interrupt() -> None:
    """Let SIGTERM, by which systemd, Docker and `kill` end a process, raise KeyboardInterrupt as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Python module of ours that is to end when this process is gone. With `python -P` the module is
    found wherever the user is: a folder of theirs may be called `flows` too."""
    path = os.pathsep.join(filter(None, (str(_ROOT), environment.get("PYTHONPATH", ""))))
    return {**environment, _PARENT: str(os.getpid()), "PYTHONPATH": path}


def end_with_starter() -> None:
    """In a module that got a `child_environment`: end when the process that started it is gone."""
    if parent := os.environ.pop(_PARENT, ""):
        end_with_parent(int(parent))
