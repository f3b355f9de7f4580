"""Seeding alone: it learns, resumes to the same bits from inside an epoch, and refuses what does not fit."""

from __future__ import annotations

import pytest

from storage.errors import Mismatch
from storage.references import References
from storage.results import read_jsonl
from tasks import seed as module
from tasks.feature_access import FeatureAccess
from tasks.seed import load_captioner
from tests.tasks.toy_run import ToyRun


def test_the_loss_falls_and_every_epoch_is_validated(toy: ToyRun) -> None:
    folder = toy.seeded().work().folder
    curve = read_jsonl(folder / "curves.jsonl")
    assert [point["epoch"] for point in curve] == [1, 2, 3]
    assert curve[-1]["total"] < curve[0]["total"]
    assert all("val_cider" in point for point in curve)
    assert (folder / "captioner.safetensors").exists() and not (folder / "last.safetensors").exists()


@pytest.mark.parametrize("stop_at", [1, 3, 4, 8])
def test_a_training_stopped_at_any_step_ends_in_the_same_bits(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    job = toy.seeded()
    files = ("captioner.safetensors", "curves.jsonl")
    whole = [(job.work().folder / name).read_bytes() for name in files]
    real = module.train

    def stops(*args, **kwargs):
        for progress in real(*args, **kwargs):
            yield progress
            if progress.step == stop_at:
                raise KeyboardInterrupt

    monkeypatch.setattr(module, "_SAVE_EVERY", 0.0)
    monkeypatch.setattr(module, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        job.carry_out(force=True)
    assert job.done() is None
    monkeypatch.setattr(module, "train", real)
    job.carry_out()
    assert [(job.work().folder / name).read_bytes() for name in files] == whole


def test_a_captioner_is_refused_with_another_vocabulary(toy: ToyRun) -> None:
    job, features = toy.seeded(), toy.features()
    access = FeatureAccess.open(job.workspace, features.work().folder, ("scene",))
    path = job.work().folder / "captioner.safetensors"
    vocabulary = References(toy.text().work().folder).vocabulary
    assert load_captioner(path, access, vocabulary.key, len(vocabulary)) is not None
    with pytest.raises(Mismatch, match="vocabulary"):
        load_captioner(path, access, "another", len(vocabulary))
