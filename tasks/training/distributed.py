"""A training stage carried out by several processes: how the stage starts them and waits. What they do is in training_process.py.

The stage's own process, where Prefect is, holds the stage's lock and trains nothing. It starts torch's launcher, which starts
`runtime.nproc` processes with torchrun's environment; each carries out the same stage function and meets the others at a port
of the loopback. What the leading one comes to, or fails of, is handed back in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from storage.errors import LongtakeError
from storage.files.atomic import write_json
from storage.records import ArtifactRef
from storage.results import read_jsonl
from tasks.framework.progress import CurveArtifact
from tasks.framework.stage import Input, StageContext, StageResult

TASK, ANSWER = "processes.json", "processes-answer.json"
_LOOK_EVERY = 5.0  # seconds between two looks at the curve
_ROOT = Path(__file__).parents[2]


def train_in_processes(
    stage: str, label: str, context: StageContext, options: BaseModel, **inputs: Input
) -> StageResult:
    """Run a training stage in `runtime.nproc` processes; this one waits and shows the curve."""
    task, answer = context.folder / TASK, context.folder / ANSWER
    answer.unlink(missing_ok=True)
    values = {
        "stage": stage,
        "options": options.model_dump(mode="json"),
        "inputs": {name: ref.to_json() for name, ref in inputs.items() if isinstance(ref, ArtifactRef)},
        "workspace": str(context.workspace.root.absolute()),
        "data": str(context.data),
        "runtime": context.runtime.model_dump(mode="json"),
        "folder": str(context.folder.absolute()),
        "ref": context.ref.to_json(),
        "parent": os.getpid(),
    }
    write_json(task, values)
    command = [sys.executable, "-m", "tasks.training.distributed_process", str(task.absolute())]
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # In a session of its own: Ctrl-C is for this process, which then ends them.
    launcher = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = _watch(launcher, CurveArtifact(label), context.folder / "curves.jsonl")
    finally:
        if launcher.poll() is None:
            launcher.terminate()  # torch's launcher ends its processes, then itself
            launcher.wait()
        task.unlink(missing_ok=True)
    return _outcome(answer, code, context.runtime.nproc)


def _watch(launcher: subprocess.Popen[bytes], shown: CurveArtifact, curve: Path) -> int:
    """Wait for the end, with the curve in Prefect as far as it is; the exit code."""
    while True:
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = launcher.wait(_LOOK_EVERY)
        if curve.exists():
            shown.show(read_jsonl(curve), final=code is not None)
        if code is not None:
            return code


def _outcome(answer: Path, code: int, nproc: int) -> StageResult:
    told: dict[str, Any] = json.loads(answer.read_bytes()) if answer.exists() else {}
    answer.unlink(missing_ok=True)
    if "error" in told:
        raise LongtakeError(told["error"])
    if code or "made" not in told:
        raise LongtakeError(
            f"one of the {nproc} training processes ended (exit code {code}); what it said is above. The same command goes "
            "on from the last checkpoint; runtime.nproc 1 trains in this process"
        )
    return StageResult(told["made"]["count"], told["made"]["summary"])
