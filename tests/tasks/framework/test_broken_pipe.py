"""A run whose worker was killed goes on although nobody reads what it prints."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.logging import RichHandler

from tasks.framework import broken_pipe

RUN = """
import logging, sys, threading, time
from pathlib import Path
from prefect.logging.configuration import setup_logging
from tasks.framework.broken_pipe import survive_broken_pipe

setup_logging()
survive_broken_pipe()
print("begun", flush=True)
sys.stdin.readline()
log, place = logging.getLogger("distributed"), Path(sys.argv[1])

def work(name):
    log.critical("nobody hears this")
    (place / name).touch()

thread = threading.Thread(target=work, args=["thread"])
thread.start()
thread.join()
work("main")
for _ in range(20):
    print("nor this", flush=True)
    print("nor this", flush=True, file=sys.stderr)
    time.sleep(0.05)
(place / "end").touch()
"""


def survivors(place: Path, environment: dict[str, str]) -> set[str]:
    """What a run gets done after its output is closed."""
    command = [sys.executable, "-c", RUN, str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    run = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)  # type: ignore[call-overload]
    assert run.stdout.readline() == b"begun\n"
    run.stdout.close()
    run.stdin.write(b"go\n")
    run.stdin.close()
    run.wait(60)
    return {path.name for path in place.iterdir()}


def test_a_run_outlives_the_worker_that_reads_its_output(tmp_path: Path) -> None:
    assert survivors(tmp_path, {"PREFECT__FLOW_RUN_ID": "0" * 8}) == {"thread", "main", "end"}


def test_what_a_person_started_ends_with_its_pipe(tmp_path: Path) -> None:
    """Else the test above would say nothing: Rich ends the thread that prints first, and a print the rest."""
    assert survivors(tmp_path, {}) == {"main"}


def test_a_line_on_its_way_when_the_worker_dies_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the null device is in place, which takes a moment."""

    class Broken(StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0" * 8)
    monkeypatch.setattr(broken_pipe, "_watching", True)  # this process keeps its outputs
    handler = RichHandler(console=Console(file=Broken()))
    log = logging.getLogger("longtake.test")
    log.addHandler(handler)
    try:
        broken_pipe.survive_broken_pipe()
        log.critical("nobody hears this")
    finally:
        log.removeHandler(handler)
    assert handler.console.quiet
