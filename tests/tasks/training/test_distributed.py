"""Two processes that train together give the curve of one with the same batches, resume exactly, and fail in plain words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.captioners.recnet.captioner import RecNetOptions
from storage.checkpoints import Checkpoint
from storage.errors import LongtakeError
from storage.results import read_jsonl
from storage.workspace import Workspace
from tasks.boost import BoostingOptions, BoostOptions, boost
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageRun
from tasks.seed import SeedingOptions, SeedOptions, seed
from tests.tasks.toy_run import CAPTIONER, SEED, ToyRun

STILL = CAPTIONER.model_copy(update={"dropout": 0.0})  # processes drop other units than one alone would
# 10 videos in batches of 3: the last batch has one video, and so nothing for the second process.
# A small rate: Adam makes steps of one size of the smallest gradients, rounding included.
SEEDING = SeedingOptions(epochs=3, batch_size=3, captions_per_video=4, learning_rate=5e-4, reconstruction=0.2)
REBUILDING = SeedOptions(captioner=RecNetOptions(base=STILL, attention=8), seeding=SEEDING, max_words=8)
BOOSTING = BoostOptions(
    boosting=BoostingOptions(
        epochs=1,  # later, rounding alone makes a near tie fall the other way, and other captions are learnt from
        batch_size=3,
        samples=2,
        learning_rate=1e-3,
        xe=0.5,
        captions_per_video=4,
        baseline={"kind": "none"},
        temperature=1e-6,  # greedy, also where two words are nearly as likely: all processes draw the same captions
        dropout="none",
    ),
    max_words=8,
)


def inputs(toy: ToyRun, **more: Any) -> dict[str, Any]:
    text, features = toy.text().ref, toy.features().ref
    found = {"features": features.part("scene/train", "scene/val")}
    return found | {"text": text.part("train", "val")} | more


def job_of(toy: ToyRun, workspace: Workspace, stage: Any, options: Any, nproc: int, **more: Any) -> StageRun:
    return stage.bind(workspace, toy.data, Runtime(device="cpu", threads=1, nproc=nproc), options, inputs(toy, **more))


def outcome(job: StageRun) -> tuple[list[dict[str, Any]], Checkpoint, dict[str, Any]]:
    job.execute(force=True)
    folder, done = job.folder, job.find_completion()
    assert done is not None
    assert sorted(path.name for path in folder.iterdir()) == ["captioner.safetensors", "curves.jsonl", "done.json"]
    return read_jsonl(folder / "curves.jsonl"), Checkpoint.load(folder / "captioner.safetensors"), done.summary


OF_PARTS = ("reward_std", "unique", "entropy", "warning")
"""What the curve of boosting says of each process's part of a batch, not of the whole."""


def assert_alike(one: StageRun, two: StageRun) -> None:
    assert one.ref.key == two.ref.key, "how many processes train is no part of what is trained"
    (curve, weights, summary), (curve_2, weights_2, summary_2) = outcome(one), outcome(two)
    for point in (*curve, *curve_2, summary, summary_2):
        for name in OF_PARTS:
            point.pop(name, None)
    assert [point.keys() for point in curve] == [point.keys() for point in curve_2]
    for point, point_2 in zip(curve, curve_2, strict=True):
        assert point_2 == pytest.approx(point, rel=2e-4, abs=1e-5)
    assert summary_2 == pytest.approx(summary, rel=2e-4, abs=1e-5)
    assert weights.values == weights_2.values and weights.tensors.keys() == weights_2.tensors.keys()
    for name, tensor in weights.tensors.items():
        np.testing.assert_allclose(weights_2.tensors[name], tensor, rtol=1e-3, atol=2e-5)


def test_two_processes_seed_as_one_does(toy: ToyRun, workspace: Workspace) -> None:
    one, two = (job_of(toy, workspace, seed, REBUILDING, nproc) for nproc in (1, 2))
    assert_alike(one, two)


@pytest.mark.slow
def test_two_processes_boost_as_one_does(toy: ToyRun, workspace: Workspace) -> None:
    seeded = toy.seeded(SEED.model_copy(update={"captioner": STILL})).ref
    one, two = (job_of(toy, workspace, boost, BOOSTING, nproc, seeded=seeded) for nproc in (1, 2))
    assert_alike(one, two)


def spoil(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> None:
    """Every process that is started from now on runs `program` before anything else."""
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")


DIES = """
import os, sys, threading, time
if os.environ.get("RANK") == "1":
    def die():
        while not hasattr(sys.modules.get("tasks.training.trainer"), "run_training"):
            time.sleep(0.01)
        module = sys.modules["tasks.training.trainer"]
        real, module._SAVE_EVERY = module.train, 0.0
        def train(*args, **kwargs):
            for progress in real(*args, **kwargs):
                yield progress
                if progress.step == 5:
                    os._exit(3)
        module.train = train
    threading.Thread(target=die, daemon=True).start()
"""


@pytest.mark.slow
def test_a_process_that_dies_ends_all_and_the_next_run_goes_on_to_the_same_bits(
    toy: ToyRun, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SEED.model_copy(
        update={"seeding": SeedingOptions(epochs=4, batch_size=3, captions_per_video=4, learning_rate=3e-3)}
    )
    job = job_of(toy, workspace, seed, options, 2)
    curve, weights, _ = outcome(job)
    workspace.discard("seed", job.ref.key)
    with monkeypatch.context() as patch:
        spoil(patch, tmp_path, DIES)
        began = time.monotonic()
        with pytest.raises(LongtakeError, match="one of the 2 training processes ended"):
            job.execute()
        assert time.monotonic() - began < 300, "the other one does not wait for ever"
    kept = Checkpoint.load(job.folder / "last.safetensors")
    assert kept.values["training"]["step"] == 4 and "rng.1.cpu" in kept.tensors, "dropout is drawn by each process"
    job.execute()
    assert read_jsonl(job.folder / "curves.jsonl") == curve
    again = Checkpoint.load(job.folder / "captioner.safetensors")
    assert all(np.array_equal(again.tensors[name], tensor) for name, tensor in weights.tensors.items())
