"""From the command to a stage: how many of our own functions lie between `longtake run` and a stage's own function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import ROOT
from tests.flows.command import TINY

MOST = 8
# The real command, but that the first stage prints the functions that called it. Prefect may run it in another thread.
SCRIPT = f"""
import sys, traceback
from pathlib import Path
import tasks.catalogue
from flows.cli.main import main

function = tasks.catalogue.catalogue.function

def catalogue(*arguments, **inputs):
    rooms = tuple(f"{ROOT}/{{room}}/" for room in ("flows", "tasks", "models", "storage"))
    ours = [f for f in traceback.extract_stack() if f.filename.startswith(rooms)]
    print("STACK", " > ".join(f"{{Path(f.filename).stem}}.{{f.name}}" for f in ours), "> catalogue.catalogue", flush=True)
    return function(*arguments, **inputs)

object.__setattr__(tasks.catalogue.catalogue, "function", catalogue)
main()
"""


def test_a_stage_is_at_most_eight_functions_away_from_the_command(served: dict[str, str], world: Path, tmp_path: Path) -> None:
    arguments = ["run", TINY, "--data", world, "-w", tmp_path / "w", "--until", "catalogue"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)],
        env=served | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("STACK ")]
    stack = line.removeprefix("STACK ").split(" > ")
    print(f"{len(stack)} of our own functions:", " > ".join(stack))
    assert stack[0] == "main.main" and len(stack) <= MOST
