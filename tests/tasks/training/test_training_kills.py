"""Seeding and boosting killed with SIGKILL at random steps, again and again: the end is that of an undisturbed run, bit for bit.

python -m tests.tasks.training.test_training_kills WORKSPACE DATA STAGE runs the stage in a process of its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.rewards.baselines import GreedyBaseline
from storage.workspace import Workspace
from tasks.boost import BoostingOptions, BoostOptions, boost
from tasks.framework.runtime import Runtime
from tasks.framework.stage import Stage, StageRun
from tasks.seed import SeedingOptions, SeedOptions
from tasks.training import trainer
from tests import ROOT
from tests.tasks.toy_run import CAPTIONER, SEED, ToyRun

FILES = ("captioner.safetensors", "curves.jsonl")
STEPS = 60  # 20 epochs of 3 steps
KILLED_SEEDING = SeedOptions(
    captioner=CAPTIONER.model_copy(update={"dropout": 0.3}),
    seeding=SeedingOptions(epochs=20, batch_size=4, captions_per_video=4, patience=20, learning_rate=3e-3, schedule="cosine"),
    max_words=8,
)
KILLED_BOOSTING = BoostOptions(
    boosting=BoostingOptions(epochs=20, batch_size=4, samples=3, learning_rate=3e-3, patience=20, baseline=GreedyBaseline()),
    max_words=8,
)


def executed(workspace: Path, data: Path, stage: str) -> StageRun:
    def alone(what: Stage, options: object, root: Path, **inputs: object) -> StageRun:
        job = what.bind(Workspace.open(workspace), root, Runtime(decoders=0, device="cpu"), options, inputs)  # type: ignore[arg-type]
        job.execute()
        return job

    toy = ToyRun(alone, data)
    if stage == "seed":
        return toy.seeded(KILLED_SEEDING)
    text, features = toy.text().ref, toy.features().ref
    inputs = {"features": features.part("scene/train", "scene/val")}
    inputs |= {"text": text.part("train", "val"), "seeded": toy.seeded(SEED).ref}
    return alone(boost, KILLED_BOOSTING, data, **inputs)


def killed(workspace: Path, data: Path, stage: str, step: int) -> bool:
    """Start the stage in a process of its own and kill it when it says that it has done `step`, wherever it is by then; False
    if it came to its end."""
    command = [sys.executable, "-m", "tests.tasks.training.test_training_kills", str(workspace), str(data), stage]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step ") and int(line.split()[1]) >= step:
                process.kill()
                break
        process.stdout.read()
    assert process.returncode in (0, -signal.SIGKILL), "it failed by itself"
    return process.returncode != 0


def after_kills(workspace: Path, data: Path, stage: str, kills: int) -> None:
    whole = executed(workspace, data, stage)
    before = [(whole.folder / name).read_bytes() for name in FILES]
    whole.workspace.discard(whole.stage.name, whole.ref.key)
    steps = sorted(random.Random(f"{stage} {kills}").sample(range(1, STEPS - 3), kills))
    done = [killed(workspace, data, stage, step) for step in steps]
    assert all(done), f"of {steps}, {done} hit a training that was still going on"
    assert whole.find_completion() is None and (whole.folder / "last.safetensors").exists()
    assert not killed(workspace, data, stage, STEPS + 1)
    assert [(whole.folder / name).read_bytes() for name in FILES] == before


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed") / "workspace"


def test_a_killed_training_ends_in_the_same_bits(place: Path, world: Path) -> None:
    after_kills(place, world, "seed", 1)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["seed", "boost"])
def test_a_training_killed_ten_times_ends_in_the_same_bits(place: Path, world: Path, stage: str) -> None:
    after_kills(place, world, stage, 10)


def _slowly() -> None:
    """Save now and then within epochs, and say every step, so that kills find checkpoints that are older than they are."""
    real = trainer.train

    def told(*args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        for progress in real(*args, **kwargs):
            yield progress
            print("step", progress.step, flush=True)

    torch.set_num_threads(1)
    trainer._SAVE_EVERY = 0.03
    trainer.train = told  # type: ignore[assignment]
    executed(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])


if __name__ == "__main__":
    _slowly()
