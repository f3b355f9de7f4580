"""Seeding alone: it learns, resumes to the same bits from inside an epoch, and refuses what does not fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.captioners.recnet.captioner import RecNetOptions
from models.captioners.vre.captioner import VreOptions
from models.decoding.beam_search import SearchOptions
from models.decoding.scheduled_sampling import ScheduledSampling
from storage.checkpoints import Checkpoint
from storage.errors import Mismatch, UsageError
from storage.results import read_jsonl
from storage.text.references import References
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess
from tasks.seed import SeedingOptions, SeedOptions
from tasks.training import batches, trainer
from tasks.training.batches import ValidationSearch
from tasks.training.loading import load_captioner
from tests.tasks.toy_run import CAPTIONER, SEED, ToyRun
from tests.tasks.training.interruption import interrupted_at

VRE = SeedOptions(
    captioner=VreOptions(temporal="scene", hidden=8, dropout=0.1),
    seeding=SeedingOptions(epochs=4, batch_size=4, captions_per_video=4, refocus_after=1, refocus=2.0, learning_rate=0.01),
    max_words=8,
)


def test_the_loss_falls_and_every_epoch_is_validated(toy: ToyRun) -> None:
    folder = toy.seeded().folder
    curve = read_jsonl(folder / "curves.jsonl")
    assert [point["epoch"] for point in curve] == [1, 2, 3]
    assert curve[-1]["total"] < curve[0]["total"]
    assert all("val_cider" in point for point in curve)
    assert (folder / "captioner.safetensors").exists() and not (folder / "last.safetensors").exists()


@pytest.mark.parametrize("stop_at", [1, 3, 4, 8])
def test_a_training_stopped_at_any_step_ends_in_the_same_bits(toy: ToyRun, stop_at: int) -> None:
    job = toy.seeded()
    files = ("captioner.safetensors", "curves.jsonl")
    whole = [(job.folder / name).read_bytes() for name in files]
    with interrupted_at(stop_at):
        job.execute(force=True)
    assert job.find_completion() is None
    job.execute()
    assert [(job.folder / name).read_bytes() for name in files] == whole


def test_a_captioner_is_refused_with_another_vocabulary(toy: ToyRun) -> None:
    job, features = toy.seeded(), toy.features()
    access = FeatureAccess.open(job.workspace, features.folder, ("scene",))
    path = job.folder / "captioner.safetensors"
    vocabulary = References(toy.text().folder).vocabulary
    assert load_captioner(path, access, vocabulary) is not None
    with pytest.raises(Mismatch, match="vocabulary"):
        load_captioner(path, access, Vocabulary((*vocabulary.words, "another")))


def test_seeding_weighs_captions_rebuilds_features_and_feeds_own_words(toy: ToyRun) -> None:
    sampling = ScheduledSampling(points=((0, 1.0), (1, 0.5)))
    seeding = SeedingOptions(
        epochs=2, batch_size=4, captions_per_video=4, loss="dxe", scheduled_sampling=sampling, reconstruction=0.1
    )
    job = toy.seeded(SeedOptions(captioner=RecNetOptions(base=CAPTIONER, attention=8), seeding=seeding, max_words=8))
    first, second = (json.loads(line) for line in (job.folder / "curves.jsonl").read_text().splitlines())
    assert {"dxe", "rebuild"} <= first.keys() and first["total"] == pytest.approx(first["dxe"] + 0.1 * first["rebuild"])
    assert second["dxe"] > 0
    plain = toy.seeded(SEED.model_copy(update={"seeding": SeedingOptions(epochs=1, batch_size=4, captions_per_video=4)}))
    weighed = SeedingOptions(epochs=1, batch_size=4, captions_per_video=4, loss="dxe")
    other = toy.seeded(SEED.model_copy(update={"seeding": weighed}))
    (xe,), (dxe,) = (read_jsonl(found.folder / "curves.jsonl") for found in (plain, other))
    assert abs(dxe["dxe"] / xe["xe"] - 1) > 0.05, "the same captions, but they do not count alike"


def test_vre_trains_its_first_step_then_both_and_refocuses(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.features()  # trains the tagger, which is not watched
    steps: list[tuple[int, int]] = []
    real = trainer.train

    def watched(folder, captioner, *args, **kwargs):
        for progress in real(folder, captioner, *args, **kwargs):
            steps.append((progress.epoch, captioner.active_steps))
            yield progress

    monkeypatch.setattr(trainer, "train", watched)
    folder = toy.seeded(VRE).folder
    assert dict(steps) == {0: 1, 1: 2, 2: 2, 3: 2}
    alone, *both = read_jsonl(folder / "curves.jsonl")
    assert "xe" in alone and "step1" not in alone
    assert all({"step1", "step2", "refocus"} <= point.keys() for point in both)
    assert both[0]["refocus"] == 0, "its first epoch has no reward to compare with"
    assert all(point["refocus"] > 0 for point in both[1:])
    point = both[-1]
    tokens = (point["step1"] + point["step2"] + 2.0 * point["refocus"]) / point["total"]
    assert 3 < tokens < 21 and alone["total"] < 2 * both[0]["total"] < 4 * alone["total"], "one scale for all epochs"
    assert Checkpoint.load(folder / "captioner.safetensors").values["epoch"] >= 1, "the best is one of both steps"


@pytest.mark.parametrize("stop_at", [2, 3, 5, 8, 11])
def test_vre_stopped_at_any_step_ends_in_the_same_bits(toy: ToyRun, stop_at: int) -> None:
    """3 steps an epoch: before, at and after the border of the phases, and where rewards are compared."""
    job = toy.seeded(VRE)
    files = ("captioner.safetensors", "curves.jsonl")
    whole = [(job.folder / name).read_bytes() for name in files]
    with interrupted_at(stop_at):
        job.execute(force=True)
    kept = Checkpoint.load(job.folder / "last.safetensors").values["rewards"]
    assert bool(kept) == (stop_at > 4), "what the last checkpoint knows of rewards"
    job.execute()
    assert [(job.folder / name).read_bytes() for name in files] == whole


def test_the_spread_of_videos_is_a_curve_and_a_dead_encoder_is_told(toy: ToyRun, capsys: pytest.CaptureFixture[str]) -> None:
    how = {"epochs": 3, "batch_size": 4, "captions_per_video": 2, "refocus_after": 1, "gradient_clip": 0}
    for alive, rate, net in ((False, 1.0, {}), (True, 0.01, {"batch_norm": True})):
        captioner = VreOptions(temporal="scene", hidden=8, dropout=0.0, **net)
        seeding = SeedingOptions.model_validate(how | {"learning_rate": rate})
        job = toy.seeded(SeedOptions(captioner=captioner, seeding=seeding, max_words=8))
        curve, completion = read_jsonl(job.folder / "curves.jsonl"), job.find_completion()
        assert completion is not None and all("spread" in point for point in curve)
        assert (curve[-1]["spread"] >= 0.01) == alive
        assert ("warning" in completion.summary) == ("warning" in curve[-1]) == (not alive)
        assert ("captioner.batch_norm" in "".join(capsys.readouterr())) == (not alive)


@pytest.mark.parametrize(
    ("seeding", "said"),
    [
        ({"epochs": 5}, "refocus_after is 5 of 5 epochs"),
        ({"loss": "dxe"}, "plain cross-entropy"),
        ({"label_smoothing": 0.1}, "plain cross-entropy"),
    ],
)
def test_a_schedule_that_cannot_train_both_steps_is_refused(seeding: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SeedOptions(captioner=VRE.captioner, seeding=SeedingOptions.model_validate(seeding))
    one = VreOptions(temporal="scene", steps=1)
    assert SeedOptions(captioner=one, seeding=SeedingOptions.model_validate(seeding)).first_whole_epoch == 0


def test_validation_captions_are_decoded_as_asked_for(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[SearchOptions] = []
    real = batches.rank_captions

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(args[4])
        return real(*args, **kwargs)

    monkeypatch.setattr(batches, "rank_captions", watched)
    how = {"epochs": 1, "batch_size": 4, "captions_per_video": 4}
    toy.seeded(
        SEED.model_copy(update={"seeding": SeedingOptions(**how, validation=ValidationSearch(width=3, length_penalty=1.0))})
    )
    assert [(search.width, search.length_penalty, search.max_length) for search in seen] == [(3, 1.0, 8)]
    toy.seeded(SEED.model_copy(update={"seeding": SeedingOptions(**how, seed=1)}))
    assert seen[-1].width == 1, "greedy, where nothing is said"


def test_an_epoch_of_a_training_has_all_captions(toy: ToyRun) -> None:
    """10 videos of 4 captions, 2 at a time: 20 visits, 4 in a batch."""
    how = {"epochs": 2, "batch_size": 4, "captions_per_video": 2}
    curves = [
        read_jsonl(toy.seeded(SEED.model_copy(update={"seeding": SeedingOptions(**how, **over)})).folder / "curves.jsonl")
        for over in ({}, {"epoch_over": "videos"})
    ]
    assert [[point["step"] for point in curve] for curve in curves] == [[5, 10], [3, 6]]
