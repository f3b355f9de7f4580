"""The processes of a distributed training, started by distributed.py: `python -m tasks.training.distributed_process TASK.json`.
Without torchrun's environment this is the launcher; with it, one of the processes, so `torchrun -m ...` does the same."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from storage.errors import LongtakeError
from storage.files.atomic import write_json
from storage.files.parent_watch import end_with_process


def launch(task: Path) -> int:
    """Start the processes and wait for them; if one fails the others are ended. Returns the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    values = json.loads(task.read_bytes())
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=values["runtime"]["nproc"],
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,  # the stage's own resume is exact; a restart here would hide why it failed
    )
    end_with_process(values["parent"])
    try:
        elastic_launch(config, sys.executable)("-m", "tasks.training.distributed_process", str(task))
    except (ChildFailedError, SignalException):
        return 1
    return 0


def run_process(task: Path) -> int:
    """Run the stage as one of the processes; the main one writes the result. Returns the exit code."""
    import torch
    import torch.distributed as dist

    from models.training.parallel import Ranks
    from storage.records import ArtifactRef
    from storage.workspace import Workspace
    from tasks.boost import BoostOptions, boost
    from tasks.framework.runtime import Runtime
    from tasks.framework.stage import StageContext
    from tasks.seed import SeedOptions, seed
    from tasks.training.distributed import RESULT

    stages: dict[str, tuple[Any, Any]] = {"seed": (seed, SeedOptions), "boost": (boost, BoostOptions)}
    values = json.loads(task.read_bytes())
    end_with_process(values["parent"])
    runtime = Runtime.model_validate(values["runtime"])
    card: torch.device | None = None
    if runtime.torch_device() == "cuda":
        card = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(card)
    # NCCL is told its card and connects at once; an hour is more than scoring, which the others wait for, ever takes.
    dist.init_process_group("cpu:gloo,cuda:nccl" if card else "gloo", device_id=card, timeout=timedelta(hours=1))
    folder, ranks = Path(values["folder"]), Ranks()
    ref = ArtifactRef.from_json(values["ref"])
    context = StageContext(Workspace.open(values["workspace"]), Path(values["data"]), runtime, folder, ref)
    stage, options = stages[values["stage"]]
    inputs = {name: ArtifactRef.from_json(each) for name, each in values["inputs"].items()}
    try:
        result = stage.function(context, options.model_validate(values["options"]), **inputs)
    except LongtakeError as error:
        if ranks.is_main_process or not (folder / RESULT).exists():
            write_json(folder / RESULT, {"error": str(error)})
        return 1
    if ranks.is_main_process:
        write_json(folder / RESULT, {"count": result.count, "summary": result.summary})
    dist.barrier()  # no process leaves while another still communicates
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.exit(run_process(path) if "RANK" in os.environ else launch(path))
