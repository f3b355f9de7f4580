"""The command `longtake` in a process of its own, with an embedded Prefect server on a database of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

TINY = Path(__file__).with_name("tiny.yaml")
SLOWLY = ("--set", "seeding.epochs=2000", "--set", "seeding.patience=2000")  # a training that does not end by itself


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "flows.cli", *map(str, arguments)]


def environment_of(home: Path, template: Path | None = None, **more: str) -> dict[str, str]:
    """The environment of a command whose Prefect folder is `home`, made as a copy of `template` if there is one."""
    if template is not None:
        shutil.copytree(template, home, dirs_exist_ok=True)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "AWS_"))}
    return {**ours, "PREFECT_HOME": str(home), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **more}


def run_longtake(environment: dict[str, str], *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done
