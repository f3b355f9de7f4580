"""The word tagger's stage alone: it learns, an interrupted training ends in the same bits; and what is taken from its net."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.range_tagger import LongRangeOptions
from models.tagger import TaggerOptions, WordTagger
from storage.checkpoints import Checkpoint
from storage.errors import BadInput
from storage.features.store import FeatureStore
from storage.files.hashing import digest, digest_file
from storage.media.frame_sampling import Clips, Keyframes
from storage.media.probe import probe
from storage.results import read_jsonl
from storage.workspace import Workspace
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction.engine import Feature, Video, extract
from tasks.extraction.extractors import TaggerFeature, find_source
from tasks.extraction.nets import open_net, spec_of
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageRun
from tasks.sample_frames import SamplingOptions, sample_frames
from tasks.train_tagger import StreamedBatches, TaggerTraining, TrainTaggerOptions, tag_targets, train_tagger
from tasks.training.loading import load_tagger
from tests.storage.clips import make_clip
from tests.tasks.toy_run import SAMPLING, ToyRun
from tests.tasks.training.interruption import interrupted_at

EVERY_FIFTH = Clips(stride=5, length=3)


def test_targets_are_the_share_of_captions_that_use_a_word() -> None:
    assert tag_targets([["a", "red", "ball"], ["a", "ball"]], ["red", "ball", "cat"]) == [0.5, 1.0, 0.0]


def test_the_loss_falls_and_the_weights_are_kept(toy: ToyRun) -> None:
    folder = toy.tagger().folder
    curve = read_jsonl(folder / "curves.jsonl")
    assert len(curve) == 2 and curve[1]["loss"] < curve[0]["loss"]
    assert sorted(path.name for path in folder.iterdir()) == ["curves.jsonl", "done.json", "tagger.safetensors"]


@pytest.mark.parametrize("stop_at", [1, 2, 3])  # of 2 epochs of 2 steps
def test_a_training_stopped_at_any_step_ends_in_the_same_bits(toy: ToyRun, stop_at: int) -> None:
    job = toy.tagger()
    whole = (job.folder / "tagger.safetensors").read_bytes()
    with interrupted_at(stop_at):
        job.execute(force=True)
    assert job.find_completion() is None and (job.folder / "last.safetensors").exists()
    job.execute()
    assert (job.folder / "tagger.safetensors").read_bytes() == whole


def rows_of(job: StageRun, name: str) -> dict[str, np.ndarray]:
    view = FeatureStore.open(job.workspace.features / job.prepared[name].store).view()
    return {id: view.read(id) for id in view.lengths()}


def test_the_words_of_a_video_are_those_of_its_stored_rows(toy: ToyRun) -> None:
    """Rows, words and cells come from one pass; a store of its own, under another name, has the same words."""
    features = {
        "scene": TaggerFeature(sampling="clips"),
        "words": TaggerFeature(output="words", sampling="clips"),
        "cells": TaggerFeature(output="grid", over_time="mean", sampling="clips"),
        "tags": TaggerFeature(output="tags", sampling="clips"),
    }
    job = toy.features(ExtractOptions(dataset="demo", features=features, sampling={"clips": SAMPLING}))
    net = load_tagger(Checkpoint.load(toy.tagger().folder / "tagger.safetensors"))
    scene, words, cells, tags = (rows_of(job, name) for name in features)
    assert len(words) == 18 and {row.shape for row in words.values()} == {(1, 20)}
    assert {row.shape for row in cells.values()} == {(16, 16)}
    with torch.inference_mode():
        for id, rows in scene.items():
            by_hand = torch.sigmoid(net.word_logits(torch.tensor(rows).float().unsqueeze(0))).half().numpy()
            assert np.array_equal(words[id], by_hand)
            each = [net.words_of_video(row.unsqueeze(0)).numpy() for row in torch.tensor(rows).float()]
            assert tags[id].shape == (len(rows), 20) and np.allclose(tags[id], each, atol=2e-3)
    assert len({row.tobytes() for row in words.values()}) > 9, "all but near-twins have words of their own"
    again = {"tags": TaggerFeature(output="words", sampling="clips")}
    alone = toy.features(ExtractOptions(dataset="demo", features=again, sampling={"clips": SAMPLING}))
    assert all(np.array_equal(row, words[id]) for id, row in rows_of(alone, "tags").items())


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagger that was not trained."""
    torch.manual_seed(0)
    net = WordTagger(TaggerOptions(words=9, size=32, channels=(8, 8), feature_size=12))
    path = tmp_path_factory.mktemp("tagger") / "tagger.safetensors"
    tensors = {f"model.{name}": tensor.numpy() for name, tensor in net.state_dict().items()}
    Checkpoint(tensors, {"net": net.options.model_dump(mode="json"), "words": list("abcdefghi")}).save(path)
    return path


def extracted(
    folder: Path,
    weights: Path,
    videos: list[Video],
    batch: int,
    only: tuple[str, ...] = (),
    output: Literal["words", "tags"] = "words",
    without: tuple[str, ...] = (),
) -> dict[str, np.ndarray]:
    """The words of videos, extracted in this order, with so much in a batch."""
    options = TaggerFeature(output=output, weights=str(weights), only=only, without=without)
    net = open_net(spec_of(options, "some hash", None, "cpu"))
    store = FeatureStore.create(folder, provenance={"extractor_key": "words"})
    pending = {video.id: f"key of {video.id}" for video in videos}
    with store.writer() as writer:
        feature = Feature("words", net, net.request(EVERY_FIFTH, "words"), options.output_name, False, writer, pending)
        results = list(extract([feature], videos, Runtime(decoders=0, device="cpu", batch=batch)))
    assert [result.bad for result in results] == [None] * len(videos)
    view = store.view()
    return {video.id: view.read(video.id) for video in videos}


def test_the_words_of_a_video_do_not_depend_on_company_order_or_length(tmp_path: Path, weights: Path) -> None:
    paths = [make_clip(tmp_path / f"v{n}.mp4", 1 + 12 * n) for n in range(4)]  # 1 to 8 positions
    videos = [Video(path.stem, path, None, probe(path)) for path in paths]
    together = extracted(tmp_path / "together", weights, videos, batch=1)
    backwards = extracted(tmp_path / "backwards", weights, videos[::-1], batch=1)
    for video in videos:
        alone = extracted(tmp_path / f"alone-{video.id}", weights, [video], batch=1)
        assert together[video.id].shape == (1, 9)
        assert np.array_equal(together[video.id], alone[video.id])
        assert np.array_equal(together[video.id], backwards[video.id])
    in_one_batch = extracted(tmp_path / "one", weights, videos, batch=4)
    assert all(np.allclose(row, in_one_batch[id], atol=2e-3) for id, row in together.items())


def test_only_some_of_the_words_in_the_order_asked_for(tmp_path: Path, weights: Path) -> None:
    path = make_clip(tmp_path / "v.mp4", 30)
    videos = [Video("v", path, None, probe(path))]
    all_words = extracted(tmp_path / "all", weights, videos, batch=1)["v"]
    some = extracted(tmp_path / "some", weights, videos, batch=1, only=("h", "b"))["v"]
    assert np.array_equal(some, all_words[:, [7, 1]])
    tags = extracted(tmp_path / "tags", weights, videos, 1, output="tags")["v"]
    assert tags.shape == (6, 9) and len(np.unique(tags, axis=0)) > 1
    assert np.array_equal(extracted(tmp_path / "two", weights, videos, 1, ("h", "b"), "tags")["v"], tags[:, [7, 1]])
    others = extracted(tmp_path / "others", weights, videos, 1, output="tags", without=("x", "b", "h", "a"))["v"]
    assert np.array_equal(others, tags[:, [2, 3, 4, 5, 6, 8]]), "all others, in the tagger's order"
    with pytest.raises(BadInput, match="leaves no word"):
        extracted(tmp_path / "silent", weights, videos, 1, output="tags", without=tuple("abcdefghi"))
    with pytest.raises(BadInput, match="does not know 'x', 'y'; it knows a, b, c"):
        extracted(tmp_path / "none", weights, videos, batch=1, only=("a", "x", "y"))
    with pytest.raises(ValidationError, match="'only' chooses words and the output is 'rows'"):
        TaggerFeature(only=("a",))
    with pytest.raises(ValidationError, match="'without' chooses words and the output is 'grid'"):
        TaggerFeature(output="grid", without=("a",))
    with pytest.raises(ValidationError, match="leave one of them out"):
        TaggerFeature(output="tags", only=("a",), without=("b",))
    with pytest.raises(ValidationError, match="names a word twice"):
        TaggerFeature(output="words", only=("a", "a"))


def test_a_cell_answers_for_its_part_of_the_frames(weights: Path) -> None:
    net = load_tagger(Checkpoint.load(weights))
    clips = torch.randint(0, 256, (2, 3, 32, 32, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    changed = clips.clone()
    changed[:, :, :6, :6] = 255 - changed[:, :, :6, :6]
    with torch.inference_mode():
        (rows, cells), (_, other) = net.features_and_cells(clips), net.features_and_cells(changed)
        assert torch.equal(rows, net.features(clips))
    assert cells.shape == (2, 16, 12)
    differs = (cells != other).any(-1).any(0).view(4, 4)
    assert differs[0, 0] and not differs[2:].any() and not differs[:, 2:].any()


def test_words_have_a_store_of_their_own_and_rows_keep_theirs(workspace: Workspace, weights: Path) -> None:
    def source(**options: str) -> tuple[str, str]:
        feature = TaggerFeature.model_validate({"weights": str(weights), "sampling": "clips", **options})
        found = find_source(workspace, "demo", "x", feature, {"clips": SAMPLING}, None)
        return found.key, found.description

    rows, _ = source()
    how = SAMPLING.model_dump(mode="json")
    assert rows == digest("tagger", 2, digest_file(weights), how), "rows of earlier versions stay fresh"
    kinds = [source(output="words"), source(output="grid"), source(output="grid", over_time="mean"), source(output="tags")]
    assert len({rows, *(key for key, _ in kinds)}) == 5
    assert kinds[2][1].endswith("(grid, averaged over time)")
    chosen = TaggerFeature(output="words", weights=str(weights), sampling="clips", only=("a", "b"))
    some = find_source(workspace, "demo", "x", chosen, {"clips": SAMPLING}, None)
    assert some.key != kinds[0][0] and some.description.endswith("(words), 2 of its words")
    others = [chosen.model_copy(update={"only": (), "without": words}) for words in (("a", "b"), ("b", "a"), ("a",))]
    found = [find_source(workspace, "demo", "x", feature, {"clips": SAMPLING}, None) for feature in others]
    assert len({some.key, kinds[0][0], *(source.key for source in found)}) == 4 and found[0].key == found[1].key
    assert found[0].description.endswith("(words), without 2 words")
    with pytest.raises(ValidationError, match="of the whole video already"):
        TaggerFeature(output="words", over_time="mean")


LONG = TrainTaggerOptions(
    net=LongRangeOptions(words=8, size=32, net="timm:test_resnet", weights="random", channels=8, blocks=1, hidden=8),
    training=TaggerTraining(epochs=2, batch_size=4, learning_rate=0.01),
    sampling=Keyframes(count=2, near=2),
)


def long_range(toy: ToyRun) -> StageRun:
    inputs = {"videos": toy.catalogue().ref.part("videos/train"), "text": toy.text().ref.part("train")}
    return toy.alone(train_tagger, LONG, toy.data, **inputs)


def test_the_long_range_encoder_draws_other_keyframes_every_epoch_and_streams_them(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, int]] = []
    module = sys.modules["tasks.train_tagger"]
    real = module.read_frames

    def watched(context, catalogue, wanted, transform):  # type: ignore[no-untyped-def]
        asked.append({id: how["tagger"].seed for id, how in wanted.items()})
        assert all(how["tagger"].drawn for how in wanted.values())
        yield from real(context, catalogue, wanted, transform)

    monkeypatch.setattr(module, "read_frames", watched)
    job = long_range(toy)
    assert len(asked) == 2 and len(asked[0]) == 10, "one pass over the files per epoch"
    assert asked[0].keys() == asked[1].keys() and list(asked[0]) != list(asked[1])
    assert all(asked[0][id] != asked[1][id] for id in asked[0])
    assert len(read_jsonl(job.folder / "curves.jsonl")) == 2


def test_a_batch_is_there_before_the_videos_behind_it_are_read() -> None:
    read: list[str] = []

    def one_by_one(draws: dict[str, int]) -> Generator[tuple[str, np.ndarray | None], None, None]:
        for id in draws:
            read.append(id)
            yield id, None if id == "c" else np.zeros((1, 5, 2, 2, 3), np.uint8)

    batches = StreamedBatches(one_by_one, list("abcdefghij"), np.eye(10, dtype=np.float32), 3, seed=0)
    found = []
    for step, batch in enumerate(batches(0, 0)):
        found.append(batch.video_ids)
        assert len(read) <= 3 * (step + 1) + 1, "the first of the next batch, and no more"
        assert torch.equal(batch.targets, torch.eye(10)[["abcdefghij".index(id) for id in batch.video_ids]])
    assert len(found) == batches.steps_per_epoch == 4
    assert sorted(id for ids in found for id in ids) == list("abdefghij"), "one cannot be decoded"
    assert [batch.video_ids for batch in batches(0, 2)] == found[2:]


@pytest.mark.parametrize("stop_at", [1, 2, 4])  # of 2 epochs of 3 steps
def test_the_long_range_encoder_stopped_at_any_step_ends_in_the_same_bits(toy: ToyRun, stop_at: int) -> None:
    job = long_range(toy)
    files = ("tagger.safetensors", "curves.jsonl")
    whole = [(job.folder / name).read_bytes() for name in files]
    with interrupted_at(stop_at):
        job.execute(force=True)
    job.execute()
    assert [(job.folder / name).read_bytes() for name in files] == whole


def test_w_of_the_long_range_encoder_is_the_mean_over_fixed_keyframes(toy: ToyRun) -> None:
    feature = {name: TaggerFeature(output=name, sampling="keyframes") for name in ("words", "tags")}
    options = ExtractOptions(dataset="demo", features=feature, sampling={"keyframes": LONG.sampling})
    frames = toy.alone(
        sample_frames, SamplingOptions(sampling=LONG.sampling), toy.data, videos=toy.catalogue().ref.part("videos")
    )
    inputs = {"videos": toy.catalogue().ref.part("videos"), "tagger": long_range(toy).ref}
    job = toy.alone(extract_features, options, toy.data, **inputs, frame_plans=(frames.ref,))
    access = FeatureAccess.open(job.workspace, job.folder, ("words", "tags"))
    features, _ = access.read(access.usable(sorted(access.rows["tags"])))
    assert features["tags"].shape == (18, 2, 8) and features["words"].shape == (18, 1, 8)
    assert torch.allclose(features["tags"].mean(1), features["words"][:, 0], atol=2e-3)
