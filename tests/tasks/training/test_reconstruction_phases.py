"""RecNet's two stages: the captioner alone, then both; nothing of the reconstructor moves before its time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.captioners.recnet.captioner import RecNetOptions
from models.losses.cross_entropy import CrossEntropy
from models.training.objective import Objective
from storage.checkpoints import Checkpoint
from storage.errors import UsageError
from storage.results import read_jsonl
from tasks.framework.stage import StageRun
from tasks.seed import ReconstructionPhases, SeedingOptions, SeedOptions
from tasks.training.batches import CaptionData
from tests.tasks.toy_run import CAPTIONER, ToyRun
from tests.tasks.training.interruption import interrupted_at


def recnet(**seeding: Any) -> SeedOptions:
    how = {"epochs": 3, "batch_size": 4, "captions_per_video": 2, "patience": 9, **seeding}
    return SeedOptions(captioner=RecNetOptions(base=CAPTIONER, attention=8), seeding=SeedingOptions(**how), max_words=8)


def weights(job: StageRun) -> dict[str, np.ndarray]:
    return Checkpoint.load(job.folder / "captioner.safetensors").tensors


def test_the_reconstruction_joins_at_its_epoch() -> None:
    alone = Objective(xe=(1.0, CrossEntropy()))
    phases = ReconstructionPhases(alone, recnet(reconstruction_after=2, reconstruction=0.3))
    assert [sorted(phases.at(epoch).terms) for epoch in range(4)] == [["xe"], ["xe"], *[["rebuild", "xe"]] * 2]
    assert phases.at(2).terms["rebuild"][0] == 0.3
    from_the_start = ReconstructionPhases(alone, recnet())
    assert sorted(from_the_start.at(0).terms) == ["rebuild", "xe"]


def test_the_first_stage_trains_the_captioner_as_if_it_had_no_reconstructor(toy: ToyRun) -> None:
    staged = read_jsonl(toy.seeded(recnet(reconstruction_after=2)).folder / "curves.jsonl")
    never = read_jsonl(toy.seeded(recnet(reconstruction=0)).folder / "curves.jsonl")
    assert ["rebuild" in point for point in staged] == [False, False, True]
    assert staged[:2] == never[:2]
    assert staged[2]["xe"] != never[2]["xe"] and staged[2]["total"] > staged[2]["xe"]


def test_the_best_epoch_is_one_of_both_and_patience_counts_from_there(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    falling = iter([9.0, 8.0, 3.0, 2.0, 1.0])
    monkeypatch.setattr(CaptionData, "validation", lambda *args: lambda: (next(falling), {}))
    job = toy.seeded(recnet(epochs=5, reconstruction_after=2, patience=2))
    done = json.loads((job.folder / "done.json").read_text())["summary"]
    assert (done["best_epoch"], done["val_cider"], done["epochs"]) == (3, 3.0, 5)


def test_a_training_stopped_in_the_first_stage_ends_in_the_same_bits(toy: ToyRun) -> None:
    job = toy.seeded(recnet(reconstruction_after=1))
    whole = weights(job)
    assert any(name.startswith("model.reconstructor.") for name in whole)
    for at in (2, 3, 4):  # inside the first stage, at its end, and one step later
        with interrupted_at(at):
            job.execute(force=True)
        job.execute()
        again = weights(job)
        assert all(np.array_equal(whole[name], again[name]) for name in whole)


def test_a_reconstructor_that_would_never_be_trained_is_refused() -> None:
    with pytest.raises(UsageError, match="reconstruction_after is 3 of 3 epochs"):
        recnet(reconstruction_after=3)
    assert recnet(reconstruction_after=3, reconstruction=0).first_whole_epoch == 0
