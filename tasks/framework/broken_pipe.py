"""A run survives the Prefect worker that started it.

Such a run writes into a pipe to its worker. When the worker is killed the run can go on and report to the server by itself; but
Rich, with which Prefect prints, raises SystemExit in whatever thread prints next. In the main thread that ends the run; in
Dask's event loop it ended the loop alone, and the run waited for it for ever."""

import logging
import os
import select
import threading
from functools import partial

from rich.console import Console

_OUTPUTS = (1, 2)
_lock = threading.Lock()
_watching = False


def survive_broken_pipe() -> None:
    """In a run that a worker started, and in its child processes: go on silently when the pipe breaks. What a person started
    in a terminal or a pipe still ends with it."""
    global _watching
    if "PREFECT__FLOW_RUN_ID" not in os.environ:
        return
    for console in _logging_consoles():
        console.on_broken_pipe = partial(setattr, console, "quiet", True)  # type: ignore[method-assign]
    with _lock:
        if not _watching:
            threading.Thread(target=_watch, name="longtake-console", daemon=True).start()
            _watching = True


def _logging_consoles() -> list[Console]:
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = {handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers}
    consoles = (getattr(handler, "console", None) for handler in handlers)
    return [console for console in consoles if isinstance(console, Console)]


def _watch() -> None:
    """Redirect an output to the null device when its other end is closed."""
    poll = select.poll()
    for output in _OUTPUTS:
        poll.register(output, 0)  # errors and hang-ups are reported in any case
    open_outputs = set(_OUTPUTS)
    while open_outputs:
        for output, _ in poll.poll():
            poll.unregister(output)
            open_outputs.discard(output)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, output)
            os.close(null)
