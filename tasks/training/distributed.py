"""Training in several processes: how a stage starts them and waits. What each of them does is in distributed_process.py.

The stage's own process, where Prefect is, holds the stage's lock and trains nothing. It starts torch's launcher, which starts
`runtime.nproc` processes with torchrun's environment; each runs the same stage function, and they connect over the loopback.
The main process writes its result, or its error, to a file."""

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
from tasks.framework.stage import StageContext, StageResult

TASK, RESULT = "processes.json", "processes-result.json"
_POLL_SECONDS = 5.0  # between two updates of the curve


def train_in_processes(stage: str, label: str, context: StageContext, options: BaseModel, **inputs: ArtifactRef) -> StageResult:
    """Run a training stage in `runtime.nproc` processes; this one waits and publishes the curve in Prefect meanwhile."""
    context.runtime.torch_device()  # more processes than GPUs are refused here, in words
    task, result = context.folder / TASK, context.folder / RESULT
    result.unlink(missing_ok=True)
    values = {
        "stage": stage,
        "options": options.model_dump(mode="json"),
        "inputs": {name: ref.to_json() for name, ref in inputs.items()},
        "workspace": str(context.workspace.root.absolute()),
        "data": str(context.data),
        "runtime": context.runtime.model_dump(mode="json"),
        "folder": str(context.folder.absolute()),
        "ref": context.ref.to_json(),
        "parent": os.getpid(),
    }
    write_json(task, values)
    command = [sys.executable, "-m", "tasks.training.distributed_process", str(task.absolute())]
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # In a session of its own: Ctrl-C reaches this process, which then ends the others.
    launcher = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    code, artifact, curve = None, CurveArtifact(label), context.folder / "curves.jsonl"
    try:
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = launcher.wait(_POLL_SECONDS)
            if curve.exists():
                artifact.show(read_jsonl(curve), final=code is not None)
    finally:
        if launcher.poll() is None:
            launcher.terminate()  # torch's launcher ends its processes, then itself
            launcher.wait()
        task.unlink(missing_ok=True)
    found: dict[str, Any] = json.loads(result.read_bytes()) if result.exists() else {}
    result.unlink(missing_ok=True)
    if "error" in found:
        raise LongtakeError(found["error"])
    if code or not found:
        raise LongtakeError(
            f"one of the {context.runtime.nproc} training processes ended (exit code {code}); its output is above. The same "
            "command goes on from the last checkpoint; runtime.nproc 1 trains in this process"
        )
    return StageResult(**found)
