"""Ending this process when the one that it works for is gone, even by kill -9. Finished work is kept, as after any kill."""

import os
import threading
import time
from collections.abc import Callable

_CHECK_SECONDS = 0.5


def end_with_parent(parent: int) -> None:
    """End this process, in the middle of whatever it does, once `parent` is not its parent any more."""
    _end_unless(lambda: os.getppid() == parent)


def end_with_process(pid: int) -> None:
    """End this process once there is no process `pid`, which need not be its parent."""
    _end_unless(lambda: is_running(pid))


def is_running(pid: int) -> bool:
    """Whether there is a process of this number on this machine, anybody's."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError) as error:
        return isinstance(error, PermissionError)  # alive, and another user's
    return True


def _end_unless(goes_on: Callable[[], bool]) -> None:
    def watch() -> None:
        while goes_on():
            time.sleep(_CHECK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()
