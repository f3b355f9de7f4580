"""Boosting alone: it starts from the seeded captioner, earns more, never ends worse, and resumes to the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.captioners.recnet.captioner import RecNetOptions
from models.losses.policy_gradient import PolicyGradient
from models.rewards.baselines import (
    BaselineOptions,
    GreedyBaseline,
    NoBaseline,
    SampleBaseline,
    SecondSampleBaseline,
    TruthBaseline,
)
from models.rewards.consensus import ConsensusOptions
from models.rewards.global_discriminative import GlobalOptions
from models.rewards.local_discriminative import LocalOptions
from models.vse import VseOptions
from storage.checkpoints import Checkpoint
from storage.errors import LongtakeError, Mismatch, UsageError
from storage.results import read_jsonl
from storage.text.references import References
from storage.text.vocabulary import TextOptions
from tasks.boost import BoostingOptions, BoostOptions, boost, policy_gradient
from tasks.caption import CaptionOptions, caption
from tasks.find_neighbours import NeighbourOptions, find_neighbours
from tasks.framework.stage import StageRun
from tasks.prepare_text import prepare_text
from tasks.seed import SeedingOptions, SeedOptions
from tasks.train_embedding import EmbeddingOptions, EmbeddingTraining, train_embedding
from tasks.training.batches import CaptionData
from tests.tasks.toy_run import CAPTIONER, SEED, ToyRun
from tests.tasks.training.interruption import interrupted_at

FILES = ("captioner.safetensors", "curves.jsonl")
BOOST = BoostOptions(boosting=BoostingOptions(epochs=3, batch_size=4, samples=3, learning_rate=3e-3, patience=9), max_words=8)

EMBEDDING = EmbeddingOptions(
    net=VseOptions(features=("scene",), size=12, embedding=8),
    training=EmbeddingTraining(epochs=2, batch_size=4, captions_per_video=4, learning_rate=5e-3),
)


def boosted(toy: ToyRun, options: BoostOptions = BOOST, seeding: SeedOptions = SEED) -> StageRun:
    text, features = toy.text().ref, toy.features().ref
    inputs = {"features": features.part("scene/train", "scene/val")}
    inputs |= {"text": text.part("train", "val")}
    return toy.alone(boost, options, toy.data, seeded=toy.seeded(seeding).ref, **inputs)


def changed(**values: Any) -> BoostOptions:
    return BoostOptions(boosting=BoostingOptions(**BOOST.boosting.model_dump() | values), max_words=BOOST.max_words)


def summary(job: StageRun) -> dict[str, Any]:
    return json.loads((job.folder / "done.json").read_text())["summary"]


def test_the_reward_rises_and_the_curves_tell_of_it(toy: ToyRun) -> None:
    how = {"epochs": 15, "samples": 10, "learning_rate": 1e-2, "gradient_clip": 5.0, "patience": 15}
    # ROUGE-L, because a captioner seeded for three epochs says hardly two words in the right order
    job = boosted(toy, changed(**how, reward={"cider_d": 0.0, "rouge_l": 1.0}))
    start, *curve = read_jsonl(job.folder / "curves.jsonl")
    assert [point["epoch"] for point in curve] == list(range(1, 16))
    assert np.mean([point["reward"] for point in curve[-3:]]) > 1.25 * curve[0]["reward"] > 0
    figures = {"policy", "total", "reward_std", "baseline", "zero_advantages", "entropy", "unique", "length", "val_cider"}
    assert all(figures <= point.keys() for point in curve)
    assert summary(job)["val_cider"] == max(point["val_cider"] for point in [start, *curve])
    assert not (job.folder / "last.safetensors").exists()


@pytest.mark.parametrize("loss", ["xe", "dxe"])
def test_it_begins_with_the_seeded_captioner_and_keeps_it_where_nothing_is_better(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    seeding = SEED.model_copy(update={"seeding": SeedingOptions(epochs=1, batch_size=4, captions_per_video=4, loss=loss)})
    seeded = toy.seeded(seeding)
    real = CaptionData.validation
    worse = iter([0.0, 9.0, 9.0, 9.0])

    def worsening(*args: Any) -> Any:
        validate = real(*args)
        assert validate is not None
        return lambda: (cider := validate()[0] - next(worse), {"val_cider": cider})

    monkeypatch.setattr(CaptionData, "validation", worsening)
    job = boosted(toy, changed(patience=2), seeding)
    found = summary(job)
    assert found["start_cider"] == found["val_cider"] == summary(seeded)["val_cider"]
    assert found["best_epoch"] == 0 and found["epochs"] == 2, "two epochs were worse: patience is at its end"
    before, after = (Checkpoint.load(each.folder / FILES[0]) for each in (seeded, job))
    assert before.tensors.keys() == after.tensors.keys()
    assert all(np.array_equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


@pytest.mark.parametrize("stop_at", [1, 3, 5, 8])
def test_a_boosting_stopped_at_any_step_ends_in_the_same_bits(toy: ToyRun, stop_at: int) -> None:
    options = changed(baseline={"kind": "scst"}, xe=0.3)
    job = boosted(toy, options)
    whole = [(job.folder / name).read_bytes() for name in FILES]
    with interrupted_at(stop_at):
        job.execute(force=True)
    assert job.find_completion() is None
    torch.manual_seed(stop_at)  # another process would have another random state
    job.execute()
    assert [(job.folder / name).read_bytes() for name in FILES] == whole


BASELINES: list[BaselineOptions] = [
    NoBaseline(),
    GreedyBaseline(),
    TruthBaseline(),
    SampleBaseline(top=2),
    SampleBaseline(leave_one_out=True),
    SecondSampleBaseline(),
]


def test_every_baseline_runs_with_rewards_of_captions_and_of_words(toy: ToyRun) -> None:
    weights = set()
    for baseline in BASELINES:
        for word_rewards in (None, LocalOptions(phrase_threshold=1.0, word_threshold=0.1)):
            job = boosted(toy, changed(epochs=1, baseline=baseline.model_dump(), word_rewards=word_rewards))
            point = read_jsonl(job.folder / "curves.jsonl")[1]
            assert all(np.isfinite(value) for name, value in point.items() if name != "warning")
            assert (point["baseline"] == 0) == (baseline.kind == "none")
            weights.add(point["policy"])
    assert len(weights) == 2 * len(BASELINES), "no two of them are the same training"


def boosted_globally(toy: ToyRun, options: BoostOptions, **left_out: None) -> StageRun:
    """With the tables that the global reward compares by; `embedding=None` leaves one out."""
    text, features = toy.text().ref, toy.features().ref
    read = {"features": features.part("scene/train", "scene/val")}
    texts = {"text": text.part("train", "val")}
    videos = toy.catalogue().ref.part("videos/train")
    near = toy.alone(find_neighbours, NeighbourOptions(feature="scene", k=1), toy.data, videos=videos, **read)
    trained = toy.alone(train_embedding, EMBEDDING, toy.data, **read, **texts)
    tables: dict[str, Any] = {"embedding": (trained.ref,), "neighbours": near.ref}
    given = {name: ref for name, ref in tables.items() if name not in left_out}
    return toy.alone(boost, options, toy.data, seeded=toy.seeded().ref, **read, **texts, **given)


@pytest.mark.parametrize("kind", ["second_sample", "scst"])
def test_the_global_reward_is_added_to_captions_and_to_words(toy: ToyRun, kind: str) -> None:
    """With no chance to learn, the same captions are drawn, and earn what R_GD takes from them."""
    how: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-12, "baseline": {"kind": kind}, "batch_size": 10}
    words = LocalOptions(phrase_threshold=1.0, word_threshold=0.1)
    found = {}
    for word_rewards in (None, words):
        for reward in (None, GlobalOptions(), GlobalOptions(neighbour=0.0), GlobalOptions(batch=0.0)):
            job = boosted_globally(toy, changed(**how, word_rewards=word_rewards, global_reward=reward))
            found[word_rewards is None, reward] = read_jsonl(job.folder / "curves.jsonl")[1]
    for sentence in (True, False):
        none, both, batch, near = (point["reward"] for (s, _), point in found.items() if s == sentence)
        assert both < batch < none and both < near < none, "R_H and R_B are at most 0"
        if sentence:
            assert both - none == pytest.approx((batch - none) + (near - none), abs=1e-5)
    policies = {point["policy"] for point in found.values()}
    assert len(policies) == len(found), "no two of them are the same training"


def test_other_weights_of_scores_go_with_the_global_reward(toy: ToyRun) -> None:
    mixture = {"cider_d": 0.5, "rouge_l": 1.0}
    job = boosted_globally(toy, changed(epochs=1, reward=mixture, global_reward={}))
    assert np.isfinite(read_jsonl(job.folder / "curves.jsonl")[1]["reward"])


def test_a_global_reward_without_its_tables_is_refused(toy: ToyRun) -> None:
    with pytest.raises(UsageError, match="sections 'embedding' and 'neighbours'"):
        boosted_globally(toy, changed(global_reward={}), embedding=None)
    with pytest.raises(UsageError, match="sections 'embedding' and 'neighbours'"):
        boosted_globally(toy, changed(global_reward={}), neighbours=None)
    job = boosted_globally(toy, changed(epochs=1, global_reward={"neighbour": 0}), neighbours=None)
    assert job.find_completion() is not None


def test_true_captions_and_reconstruction_can_be_kept_on(toy: ToyRun) -> None:
    net = RecNetOptions(base=CAPTIONER, attention=8)
    seeding = SEED.model_copy(update={"captioner": net, "seeding": SeedingOptions(epochs=1, batch_size=4, captions_per_video=4)})
    job = boosted(toy, changed(epochs=1, xe=0.5, reconstruction=0.1), seeding)
    point = read_jsonl(job.folder / "curves.jsonl")[1]
    assert point["total"] == pytest.approx(point["policy"] + 0.5 * point["xe"] + 0.1 * point["rebuild"], abs=1e-5)


def test_b1_compares_with_the_scores_of_the_true_captions(toy: ToyRun) -> None:
    references = References(toy.text().folder)
    mixture = ConsensusOptions(cider_d=1.0, rouge_l=2.0)
    how = BoostingOptions(baseline=TruthBaseline(), reward=mixture)
    policy = policy_gradient(references, how, 8)
    assert policy.truth is not None and len(policy.truth) == len(policy.video_indices) == 10
    captions = {id: [numbers[1:] for numbers in rows] for id, rows in references.token_ids("train").items()}
    # Every caption against all of its video's, itself among them, cannot be less than against the others alone.
    width = max(len(words) for rows in captions.values() for words in rows)
    for id, number in policy.video_indices.items():
        rows = torch.tensor([words + [0] * (width - len(words)) for words in captions[id]])
        with_itself = policy.reward(rows, torch.full((len(rows),), number)).mean().item()
        assert 0 < policy.truth[number].item() < with_itself


def test_a_collapse_is_told_in_the_log_the_curves_and_the_summary(toy: ToyRun, capsys: pytest.CaptureFixture[str]) -> None:
    job = boosted(
        toy, changed(epochs=2, temperature=1e-4, dropout="none")
    )  # as good as greedy: all samples of a video are the same
    found = summary(job)
    assert "first in 1" in found["warning"] and "compared with" in found["warning"]
    assert all("warning" in point for point in read_jsonl(job.folder / "curves.jsonl")[1:])
    assert "boosting collapses in epoch 1" in capsys.readouterr().err.replace("\n", " ")
    assert "warning" not in summary(boosted(toy))


def test_a_reward_that_is_not_finite_stops_with_the_videos(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PolicyGradient.__call__
    monkeypatch.setattr(PolicyGradient, "__call__", lambda *args: real(*args) * float("nan"))
    with pytest.raises(LongtakeError, match=r"not finite at step 1 .* on videos .*train-000"):
        boosted(toy)


def test_boosted_captioners_are_taken_where_seeded_ones_are(toy: ToyRun) -> None:
    inputs = {"text": toy.text().ref.part("train"), "videos": toy.catalogue().ref.part("videos/test")}
    inputs |= {"features": toy.features().ref.part("scene/test"), "captioners": (boosted(toy).ref,)}
    job = toy.alone(caption, CaptionOptions(search={"width": 2, "max_length": 8}), toy.data, **inputs)
    assert job.find_completion() is not None


def test_texts_of_another_vocabulary_are_refused(toy: ToyRun) -> None:
    other = toy.alone(prepare_text, TextOptions(min_count=2), toy.data, captions=toy.catalogue().ref.part("captions"))
    features = toy.features().ref.part("scene/train")
    texts = {"text": other.ref.part("train", "val")}
    with pytest.raises(Mismatch, match="vocabulary"):
        toy.alone(boost, BOOST, toy.data, seeded=toy.seeded().ref, features=features, **texts)


def test_tables_made_for_another_vocabulary_are_refused(toy: ToyRun, tmp_path: Path) -> None:
    other = toy.alone(prepare_text, TextOptions(min_count=2), toy.data, captions=toy.catalogue().ref.part("captions"))
    for file in toy.text().folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    name = "references-train.parquet"
    (tmp_path / name).write_bytes((other.folder / name).read_bytes())
    with pytest.raises(Mismatch, match="its token ids mean other words"):
        policy_gradient(References(tmp_path), BOOST.boosting, 8)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"samples": 1}, "samples to 2"),
        ({"word_rewards": {"kind": "local"}, "reward": {"rouge_l": 1.0}}, "leave one of them out"),
        ({"global_reward": {}, "baseline": {"kind": "b1"}}, "choose second_sample"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        BoostingOptions(**values)
    kept: BaselineOptions = SecondSampleBaseline()
    assert BoostingOptions(samples=1, baseline=kept).baseline == kept
