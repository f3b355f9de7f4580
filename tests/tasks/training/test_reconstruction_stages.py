"""RecNet's two stages: the captioner alone, then both from its best epoch; nothing of the reconstructor moves before its time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from models.captioners.recnet.captioner import RecNetOptions
from storage.checkpoints import Checkpoint
from storage.errors import UsageError
from storage.results import read_jsonl
from tasks.framework.stage import StageRun
from tasks.seed import SeedingOptions, SeedOptions
from tasks.training import trainer
from tasks.training.batches import CaptionData
from tests.tasks.toy_run import CAPTIONER, ToyRun
from tests.tasks.training.interruption import interrupted_at


def recnet(**seeding: Any) -> SeedOptions:
    how = {"epochs": 3, "batch_size": 4, "captions_per_video": 4, "patience": 9, **seeding}
    return SeedOptions(captioner=RecNetOptions(base=CAPTIONER, attention=8), seeding=SeedingOptions(**how), max_words=8)


def weights(job: StageRun) -> dict[str, np.ndarray]:
    return Checkpoint.load(job.folder / "captioner.safetensors").tensors


def summary(job: StageRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.folder / "done.json").read_text())["summary"]
    return found


def scored(*scores: float) -> Callable[..., Any]:
    """A validation that gives these scores, one after the other."""
    following = iter(scores)
    return lambda *args: lambda: (next(following), {})


def test_the_first_stage_trains_the_captioner_as_if_it_had_no_reconstructor(toy: ToyRun) -> None:
    staged = read_jsonl(toy.seeded(recnet(reconstruction_after=2)).folder / "curves.jsonl")
    never = read_jsonl(toy.seeded(recnet(reconstruction=0)).folder / "curves.jsonl")
    assert ["rebuild" in point for point in staged] == [False, False, True]
    assert staged[:2] == never[:2]
    assert [(point["epoch"], point["step"]) for point in staged] == [(1, 3), (2, 6), (3, 9)], "one curve"
    assert staged[2]["xe"] != never[2]["xe"] and staged[2]["total"] > staged[2]["xe"]


def test_both_start_from_the_captioners_best_epoch(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CaptionData, "validation", scored(1.0, 5.0, 4.0))
    alone = toy.seeded(recnet(reconstruction=0))
    monkeypatch.setattr(CaptionData, "validation", scored(1.0, 5.0, 4.0, 3.0))
    best: dict[str, np.ndarray] = {}

    def watched(context: Any, training: Any) -> Any:
        history = trainer.train_first(context, training)
        best.update({name: value.detach().clone().numpy() for name, value in training.model.state_dict().items()})
        return history

    monkeypatch.setattr("tasks.seed.train_first", watched)
    job = toy.seeded(recnet(epochs=4, reconstruction_after=3))
    expected = weights(alone)
    captioner = [name for name in expected if not name.startswith("model.reconstructor.")]
    assert all(np.array_equal(best[name.removeprefix("model.")], expected[name]) for name in captioner)
    assert Checkpoint.load(alone.folder / "captioner.safetensors").values["epoch"] == 1
    assert not (job.folder / trainer.FIRST).exists()


def test_validation_that_stops_rising_ends_the_first_stage(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rises_till_three, then_with_both = (1.0, 2.0, 3.0, 2.0, 2.0), (2.5, 2.8, 2.7, 2.6)
    monkeypatch.setattr(CaptionData, "validation", scored(*rises_till_three, *then_with_both))
    job = toy.seeded(recnet(epochs=20, reconstruction_after="best", patience=2))
    curve = read_jsonl(job.folder / "curves.jsonl")
    assert ["rebuild" in point for point in curve] == [False] * 5 + [True] * 4
    assert [point["epoch"] for point in curve] == list(range(1, 10))
    found = summary(job)
    assert (found["best_epoch"], found["val_cider"], found["epochs"]) == (7, 2.8, 9), "the best of both, not of the first stage"


@pytest.mark.parametrize("after", [1, "best"])
def test_a_training_stopped_in_its_first_stage_ends_in_the_same_bits(toy: ToyRun, after: Any) -> None:
    job = toy.seeded(recnet(epochs=2, reconstruction_after=after, patience=1))
    whole, curve = weights(job), (job.folder / "curves.jsonl").read_bytes()
    assert any(name.startswith("model.reconstructor.") for name in whole)
    for at in (1, 2):  # inside the first stage
        with interrupted_at(at):
            job.execute(force=True)
        job.execute()
        again = weights(job)
        assert all(np.array_equal(whole[name], again[name]) for name in whole)
        assert (job.folder / "curves.jsonl").read_bytes() == curve


def test_a_finished_first_stage_is_not_trained_again(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    job = toy.seeded(recnet(reconstruction_after=1))
    whole, steps = weights(job), []
    real = trainer.train

    def second_stage_stops(*args: Any, **kwargs: Any) -> Any:
        for progress in real(*args, **kwargs):
            steps.append(tuple(progress.losses))
            yield progress
            if "rebuild" in progress.losses and progress.step == 2 and stopping:
                raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_SAVE_EVERY", 0.0)
    monkeypatch.setattr(trainer, "train", second_stage_stops)
    stopping = True
    with pytest.raises(KeyboardInterrupt):
        job.execute(force=True)
    assert [len(step) for step in steps] == [2, 2, 2, 3, 3]
    steps.clear()
    stopping = False
    job.execute()
    assert [len(step) for step in steps] == [3] * 4, "only what was left of the second stage"
    assert all(np.array_equal(whole[name], array) for name, array in weights(job).items())


def test_a_reconstructor_that_would_never_be_trained_is_refused() -> None:
    with pytest.raises(UsageError, match="reconstruction_after is 3 of 3 epochs"):
        recnet(reconstruction_after=3)
    assert recnet(reconstruction_after=3, reconstruction=0).first_whole_epoch == 0
    with pytest.raises(UsageError, match=r"set seeding\.keep to best"):
        recnet(reconstruction_after="best", keep="last")
