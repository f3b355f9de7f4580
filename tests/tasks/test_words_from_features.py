"""Words from features: it learns, is validated by mAP, resumes to the same bits; W becomes a feature that a captioner reads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from models.captioners.glrg import GlRgOptions
from models.video_to_words import VideoToWordsOptions
from storage.checkpoints import Checkpoint
from storage.errors import BadInput
from storage.results import read_jsonl
from storage.text.references import References
from tasks.framework.feature_access import FeatureAccess, read_feature_metadata
from tasks.framework.stage import StageRun
from tasks.seed import SeedingOptions, SeedOptions, seed
from tasks.words_from_features import (
    PredictingOptions,
    WordsOptions,
    WordTraining,
    predict_words,
    train_video_to_words,
    word_targets,
)
from tests.tasks.toy_run import ToyRun
from tests.tasks.training.interruption import interrupted_at

OPTIONS = WordsOptions(
    net=VideoToWordsOptions(features=("scene",), words=12, hidden=16, dropout=0.1),
    training=WordTraining(epochs=12, batch_size=4, learning_rate=0.03, patience=12),
)


def trained(toy: ToyRun, options: WordsOptions = OPTIONS) -> StageRun:
    features = toy.features().ref.part("scene/train", "scene/val")
    return toy.alone(train_video_to_words, options, toy.data, features=features, text=toy.text().ref.part("train", "val"))


def predicted(toy: ToyRun) -> StageRun:
    return toy.alone(predict_words, PredictingOptions(), toy.data, features=toy.features().ref, net=trained(toy).ref)


def test_the_loss_falls_every_epoch_has_its_map_and_the_best_is_kept(toy: ToyRun) -> None:
    folder = trained(toy).folder
    curve = read_jsonl(folder / "curves.jsonl")
    assert curve[-1]["loss"] < 0.95 * curve[0]["loss"]
    maps = [point["val_map"] for point in curve]
    summary = json.loads((folder / "done.json").read_text())["summary"]
    assert summary["val_map"] == max(maps) and summary["best_epoch"] == 1 + maps.index(max(maps))
    assert 0 < summary["val_map"] <= 1 and summary["words"] == 12
    assert Checkpoint.load(folder / "words.safetensors").values["epoch"] == summary["best_epoch"] - 1


@pytest.mark.parametrize("stop_at", [1, 3, 7])  # 3 steps per epoch
def test_a_training_stopped_at_any_step_ends_in_the_same_bits(toy: ToyRun, stop_at: int) -> None:
    job = trained(toy)
    files = ("words.safetensors", "curves.jsonl")
    whole = [(job.folder / name).read_bytes() for name in files]
    with interrupted_at(stop_at):
        job.execute(force=True)
    job.execute()
    assert [(job.folder / name).read_bytes() for name in files] == whole


def test_a_word_counts_if_any_caption_has_it_or_by_the_share_that_have_it() -> None:
    captions = ["a red ball", "the ball ball falls", "a square"]
    assert word_targets(captions, ["ball", "red", "star"], "any") == [1.0, 1.0, 0.0]
    assert word_targets(captions, ["ball", "red", "star"], "share") == pytest.approx([2 / 3, 1 / 3, 0.0])


def test_w_is_one_more_feature_of_every_video_beside_those_that_were_extracted(toy: ToyRun) -> None:
    job = predicted(toy)
    about = read_feature_metadata(job.folder)
    assert set(about) == {"scene", "words"} and about["words"]["size"] == 12
    access = FeatureAccess.open(job.workspace, job.folder, ("scene", "words"))
    ids = access.usable(sorted(access.rows["scene"]))
    assert len(ids) == 18, "of all splits"
    features, masks = access.read(ids)
    assert features["words"].shape == (18, 1, 12) and masks["words"].all()
    assert ((features["words"] > 0) & (features["words"] < 1)).all()
    assert features["words"][:, 0].std(0).max() > 0, "videos differ"
    job.execute(force=True)
    again = FeatureAccess.open(job.workspace, job.folder, ("words",)).read(ids)[0]["words"]
    assert np.array_equal(again.numpy(), features["words"].numpy())


def test_a_captioner_reads_w(toy: ToyRun) -> None:
    parts = predicted(toy).ref.part("words/train", "words/val", "scene/train", "scene/val")
    net = GlRgOptions(features=("words", "scene"), projection=8, embedding=8, hidden=8, feed="every", dropout=0.0)
    how = SeedOptions(captioner=net, seeding=SeedingOptions(epochs=1, batch_size=4, captions_per_video=4), max_words=8)
    job = toy.alone(seed, how, toy.data, features=parts, text=toy.text().ref.part("train", "val"))
    assert read_jsonl(job.folder / "curves.jsonl")[0]["total"] > 0
    words = Checkpoint.load(trained(toy).folder / "words.safetensors").values["words"]
    assert words == References(toy.text().folder).tag_words[:12]


def test_a_net_for_other_features_is_refused(toy: ToyRun) -> None:
    job = trained(toy)
    path = job.folder / "words.safetensors"
    found = Checkpoint.load(path)
    Checkpoint(found.tensors, found.values | {"extractors": {"scene": "another"}}).save(path)
    with pytest.raises(BadInput, match="other 'scene' features"):
        toy.alone(predict_words, PredictingOptions(), toy.data, features=toy.features().ref, net=job.ref)
