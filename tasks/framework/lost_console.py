"""What becomes of a run whose output nobody reads any more.

A run that a Prefect worker started writes into a pipe to that worker. When the worker is killed the run can go on and report to
the server by itself; but Rich, by which Prefect prints, raises SystemExit in whatever thread prints next. In the main one that
ends the run; in Dask's event loop it ended the loop alone, and the run waited for it for ever."""

from __future__ import annotations

import logging
import os
import select
import threading
from functools import partial

from rich.console import Console

_STARTED_BY_WORKER = "PREFECT__FLOW_RUN_ID"
_OUTPUTS = (1, 2)
_lock = threading.Lock()
_watching = False


def outlive_console() -> None:
    """In a run that a worker started, and in processes of it: go on in silence once nobody reads our output. What a person
    started in a terminal or a pipe ends with that, as ever."""
    global _watching
    if _STARTED_BY_WORKER not in os.environ:
        return
    for console in _consoles_of_logging():
        console.on_broken_pipe = partial(setattr, console, "quiet", True)  # type: ignore[method-assign]
    with _lock:
        if not _watching:
            threading.Thread(target=_watch, name="longtake-console", daemon=True).start()
            _watching = True


def _consoles_of_logging() -> list[Console]:
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = {handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers}
    consoles = (getattr(handler, "console", None) for handler in handlers)
    return [console for console in consoles if isinstance(console, Console)]


def _watch() -> None:
    """Put the null device in the place of an output whose other end is gone."""
    outputs = select.poll()
    for output in _OUTPUTS:
        outputs.register(output, 0)  # errors and hang-ups are told of in any case
    left = set(_OUTPUTS)
    while left:
        for output, _ in outputs.poll():
            outputs.unregister(output)
            left.discard(output)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, output)
            os.close(null)
