"""The word tagger's stage alone: it learns, and an interrupted training ends in the same bits."""

from __future__ import annotations

import pytest

from storage.results import read_jsonl
from tasks import train_tagger as module
from tasks.train_tagger import tag_targets
from tests.tasks.toy_run import ToyRun


def test_targets_are_the_share_of_captions_that_use_a_word() -> None:
    assert tag_targets([["a", "red", "ball"], ["a", "ball"]], ["red", "ball", "cat"]) == [0.5, 1.0, 0.0]


def test_the_loss_falls_and_the_weights_are_kept(toy: ToyRun) -> None:
    folder = toy.tagger().work().folder
    curve = read_jsonl(folder / "curves.jsonl")
    assert len(curve) == 2 and curve[1]["loss"] < curve[0]["loss"]
    assert sorted(path.name for path in folder.iterdir()) == ["curves.jsonl", "done.json", "tagger.safetensors"]


def test_a_training_stopped_after_an_epoch_goes_on_to_the_same_bits(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = toy.tagger()
    whole = (job.work().folder / "tagger.safetensors").read_bytes()
    real = module.train

    def stops_after_an_epoch(*args, **kwargs):
        for progress in real(*args, **kwargs):
            yield progress
            if progress.end_of_epoch:
                raise KeyboardInterrupt

    monkeypatch.setattr(module, "train", stops_after_an_epoch)
    with pytest.raises(KeyboardInterrupt):
        job.carry_out(force=True)
    assert job.done() is None and (job.work().folder / "last.safetensors").exists()
    monkeypatch.setattr(module, "train", real)
    job.carry_out()
    assert (job.work().folder / "tagger.safetensors").read_bytes() == whole
