"""Key frames saved as a feature: they are those that the captioner chooses, and a killed search goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from models.captioners.vre.captioner import VreOptions
from models.captioners.vre.encoder import RefocusEncoder
from storage.errors import BadInput
from storage.features.store import FeatureStore
from storage.results import read_jsonl
from storage.text.references import References
from tasks.find_key_frames import KEY_FRAMES, FindingOptions, find_key_frames
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageRun
from tasks.seed import SeedingOptions, SeedOptions, seed
from tasks.training.loading import load_captioner
from tests.tasks.toy_run import SEED, ToyRun

NET = VreOptions(temporal="scene", hidden=8, dropout=0.1)
HOW = SeedingOptions(epochs=2, batch_size=4, captions_per_video=4, refocus_after=1, learning_rate=0.01)
VRE = SeedOptions(captioner=NET, seeding=HOW, max_words=8)


def found(toy: ToyRun, seeding: SeedOptions = VRE) -> StageRun:
    inputs = {"features": toy.features().ref, "captioner": toy.seeded(seeding).ref, "text": toy.text().ref.part("train")}
    return toy.alone(find_key_frames, FindingOptions(), toy.data, **inputs)


def access_to(toy: ToyRun, job: StageRun, *names: str) -> FeatureAccess:
    return FeatureAccess.open(job.context().workspace, job.folder, names)


def test_they_are_the_frames_that_the_captioner_chooses_for_all_videos(toy: ToyRun) -> None:
    job = found(toy)
    both = access_to(toy, job, "scene", KEY_FRAMES)
    assert len(both.rows[KEY_FRAMES]) == 18 and job.find_completion() is not None
    vocabulary = References(toy.text().folder).vocabulary
    path = toy.seeded(VRE).folder / "captioner.safetensors"
    net = load_captioner(path, access_to(toy, job, "scene"), vocabulary)
    ids = sorted(both.rows["scene"])
    features, masks = both.read(ids)
    with torch.no_grad():
        wanted = net.encode(features, masks).extras["key_frame"]
    assert features[KEY_FRAMES].shape == (18, 1, 1) and masks[KEY_FRAMES].all()
    assert features[KEY_FRAMES][:, 0, 0].tolist() == wanted.tolist()
    view = both.views
    for id, frame in zip(ids, wanted.tolist(), strict=True):
        times = view["scene"].pts(id, both.rows["scene"][id])
        kept = view[KEY_FRAMES].pts(id, both.rows[KEY_FRAMES][id])
        assert times is not None and kept is not None and kept.tolist() == [times[frame]]


def test_a_captioner_is_trained_with_them_and_refocuses_no_more(toy: ToyRun) -> None:
    features, text = found(toy).ref, toy.text().ref
    names = ("scene/train", "scene/val", f"{KEY_FRAMES}/train", f"{KEY_FRAMES}/val")
    how = HOW.model_copy(update={"refocus_after": 0})
    options = SeedOptions(captioner=NET.model_copy(update={"key_frames": KEY_FRAMES}), seeding=how, max_words=8)
    job = toy.alone(seed, options, toy.data, text=text.part("train", "val"), features=features.part(*names))
    curve = read_jsonl(job.folder / "curves.jsonl")
    assert all({"step1", "step2"} <= point.keys() and "refocus" not in point for point in curve)
    access = access_to(toy, found(toy), "scene", KEY_FRAMES)
    vocabulary = References(toy.text().folder).vocabulary
    net = load_captioner(job.folder / "captioner.safetensors", access, vocabulary)
    assert isinstance(net.encoder, RefocusEncoder) and not hasattr(net.encoder, "refocus")
    features_read, masks = access.read(sorted(access.rows["scene"])[:3])
    with torch.no_grad():
        taken = net.encode(features_read, masks).extras["key_frame"]
    assert taken.tolist() == features_read[KEY_FRAMES][:, 0, 0].tolist()


def test_the_parts_of_the_extraction_keep_their_keys_and_new_ones_follow_the_captioner(toy: ToyRun) -> None:
    extraction, one = toy.features().ref, found(toy).ref
    assert {name: one.parts[name] for name in extraction.parts} == extraction.parts
    other = VRE.model_copy(update={"seeding": HOW.model_copy(update={"seed": 5})})
    two = found(toy, other).ref
    assert {name for name in one.parts if one.parts[name] != two.parts[name]} == {
        f"{KEY_FRAMES}/{split}" for split in ("train", "val", "test")
    }


def test_a_search_that_was_killed_goes_on(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    job = found(toy)
    folder = job.folder
    whole = (folder / "rows.parquet").read_bytes()
    before = access_to(toy, job, KEY_FRAMES).views[KEY_FRAMES].digest()
    real, count = FeatureAccess.read, 0

    def killed(*args, **kwargs):
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureStore.writer, "__defaults__", (64_000_000, 0.0, None))  # each row at once
        patch.setattr(FeatureAccess, "read", killed)
        with pytest.raises(KeyboardInterrupt):
            job.execute(force=True)
    assert job.find_completion() is None
    count = -100
    monkeypatch.setattr(FeatureAccess, "read", killed)
    job.execute()
    assert count == -100 + 18 - 7, "the seven that were written are not looked at again"
    assert (folder / "rows.parquet").read_bytes() == whole
    assert access_to(toy, job, KEY_FRAMES).views[KEY_FRAMES].digest() == before


def test_captioners_that_look_for_no_key_frames_are_refused(toy: ToyRun) -> None:
    with pytest.raises(BadInput, match="'sa_lstm' does not look for key frames"):
        found(toy, SEED)
    one_step = VRE.model_copy(update={"captioner": NET.model_copy(update={"steps": 1})})
    with pytest.raises(BadInput, match="'vre' does not look for key frames"):
        found(toy, one_step)


def test_the_summary_says_how_many_left_the_middle(toy: ToyRun) -> None:
    job = found(toy)
    access = access_to(toy, job, KEY_FRAMES)
    frames = access.read(sorted(access.rows[KEY_FRAMES]))[0][KEY_FRAMES].flatten().numpy()
    summary = json.loads((job.folder / "done.json").read_text())["summary"]
    assert summary["away_from_the_middle"] == pytest.approx(np.mean(frames != 2), abs=1e-6)
