"""The embedding's stage alone: it learns, an interrupted training ends in the same bits, what does not fit is refused."""

from __future__ import annotations

import pytest
import torch

from models.vse import VseOptions
from storage.errors import BadInput, Mismatch
from storage.results import read_jsonl
from storage.text.references import References
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageRun
from tasks.train_embedding import EmbeddingOptions, EmbeddingTraining, embed_videos, retrieval, train_embedding
from tasks.training import trainer
from tasks.training.loading import load_embedding
from tests.tasks.toy_run import ToyRun
from tests.tasks.training.interruption import interrupted_at

OPTIONS = EmbeddingOptions(
    net=VseOptions(features=("scene",), size=12, embedding=8),
    training=EmbeddingTraining(epochs=3, batch_size=4, captions_per_video=4, learning_rate=5e-3),
)


def embedded(toy: ToyRun, options: EmbeddingOptions = OPTIONS) -> StageRun:
    text, features = toy.text().ref, toy.features().ref
    inputs = {"features": features.part("scene/train", "scene/val")}
    texts = {"text": text.part("train", "val")}
    return toy.alone(train_embedding, options, toy.data, **inputs, **texts)


def test_the_loss_falls_and_every_epoch_is_validated_in_both_directions(toy: ToyRun) -> None:
    job = embedded(toy)
    folder = job.folder
    assert sorted(path.name for path in folder.iterdir()) == ["curves.jsonl", "done.json", "embedding.safetensors"]
    curve = read_jsonl(folder / "curves.jsonl")
    assert [point["epoch"] for point in curve] == [1, 2, 3] and curve[2]["loss"] < curve[0]["loss"]
    names = {f"{what} R@{k}" for what in ("video", "caption") for k in (1, 5, 10)}
    assert all(set(point["val"]) == names for point in curve)
    assert all(point["val"]["video R@5"] == 1 for point in curve)  # there are four videos
    done = job.find_completion()
    assert done is not None
    best = max(curve, key=lambda point: sum(point["val"].values()))
    assert done.summary["best_epoch"] == best["epoch"]
    assert done.summary["val video R@1"] == best["val"]["video R@1"]


def test_an_embedding_that_lies_in_one_point_is_told(toy: ToyRun, capfd: pytest.CaptureFixture[str]) -> None:
    idle = OPTIONS.training.model_copy(update={"learning_rate": 1e-9, "easy_epochs": 0, "epochs": 1})
    wide = OPTIONS.net.model_copy(update={"margin": 1e6})  # beside it all scores are the same
    done = embedded(toy, EmbeddingOptions(net=wide, training=idle)).find_completion()
    assert done is not None and "hardly tells videos apart" in done.summary["warning"]
    assert "easy_epochs" in capfd.readouterr().err
    well = embedded(toy).find_completion()
    assert well is not None and "warning" not in well.summary


@pytest.mark.parametrize("stop_at", [1, 3, 8])
def test_a_training_stopped_at_any_step_ends_in_the_same_bits(toy: ToyRun, stop_at: int) -> None:
    job = embedded(toy)
    files = ("embedding.safetensors", "curves.jsonl")
    whole = [(job.folder / name).read_bytes() for name in files]
    with interrupted_at(stop_at):
        job.execute(force=True)
    assert job.find_completion() is None
    job.execute()
    assert [(job.folder / name).read_bytes() for name in files] == whole


def test_a_training_that_ended_but_was_not_written_up_is_written_up_alone(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    job = embedded(toy)
    whole = (job.folder / "curves.jsonl").read_bytes()

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trainer.LastCheckpoints, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            job.execute(force=True)
    monkeypatch.setattr(trainer, "train", killed)  # nothing may be trained again
    job.execute()
    assert (job.folder / "curves.jsonl").read_bytes() == whole


def test_a_trained_embedding_is_read_back_and_refused_where_it_does_not_belong(toy: ToyRun) -> None:
    job = embedded(toy)
    path = job.folder / "embedding.safetensors"
    access = FeatureAccess.open(job.workspace, toy.features().folder, ("scene",))
    references = References(toy.text().folder)
    vocabulary = references.vocabulary
    net = load_embedding(path, access, vocabulary)
    validation = references.token_ids("val")
    curve = read_jsonl(job.folder / "curves.jsonl")
    assert retrieval(net, access, validation, "cpu") in [point["val"] for point in curve]
    vectors = embed_videos(net, access, sorted(validation), "cpu")
    assert vectors.shape == (4, 12) and torch.allclose(vectors.norm(dim=1), torch.ones(4))
    with pytest.raises(Mismatch, match="vocabulary"):
        load_embedding(path, access, Vocabulary((*vocabulary.words, "another")))
    access.about["scene"]["key"] = "another extractor"
    with pytest.raises(BadInput, match="trained on other 'scene' features"):
        load_embedding(path, access, vocabulary)
