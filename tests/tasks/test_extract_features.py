"""Extraction alone: each video once, only what is stale, bad videos set aside, bits that do not depend on company."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from storage.errors import BadMedia
from storage.features import FeatureStore
from tasks import extract_features as module
from tasks.extract_features import ExtractOptions, read_rows
from tasks.extractors import ImageFeature, TaggerFeature
from tasks.stage import Job
from tests.tasks.toy_run import SAMPLING, ToyRun


@pytest.fixture
def fixed(toy: ToyRun) -> ExtractOptions:
    """Features whose weights do not depend on the data: a tagger kept as a file."""
    path = toy.data.parent / f"tagger-{os.getpid()}.safetensors"
    shutil.copy(toy.tagger().work().folder / "tagger.safetensors", path)
    feature = TaggerFeature(sampling="clips", weights=str(path))
    return ExtractOptions(dataset="demo", features={"scene": feature}, sampling={"clips": SAMPLING})


def store_of(job: Job) -> FeatureStore:
    (source,) = job.memo.values()
    return FeatureStore.open(job.workspace.features / source.store)


def extracted(job: Job) -> int:
    done = job.workspace.done("extract_features", job.ref.key)
    assert done is not None
    return sum(done.summary["extracted"].values())


def test_every_video_gets_a_row_a_position(toy: ToyRun) -> None:
    job = toy.features()
    view = store_of(job).view()
    assert set(view.lengths().values()) == {4} and len(view) == 18
    assert store_of(job).verify() == []
    assert store_of(job).provenance["words"].startswith("a small net")


def test_adding_replacing_and_removing_one_video_extracts_only_that_one(
    toy: ToyRun, fixed: ExtractOptions, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(toy.data, tmp_path / "copy"))
    mine = ToyRun(toy.alone, root)
    assert extracted(mine.features(fixed)) == 18
    clips = sorted((root / "videos").glob("*.mp4"))

    shutil.copy(clips[1], clips[0])
    assert extracted(mine.features(fixed)) == 1, "replaced"
    os.utime(clips[2], (5, 5))
    assert extracted(mine.features(fixed)) == 1, "touched: still the extraction of before"
    clips[3].unlink()
    job = mine.features(fixed)
    assert extracted(job) == 0 and len(read_rows(job.work().folder)["scene"]) == 17, "removed"
    count = store_of(job).count
    shutil.copy(toy.data / "videos" / clips[3].name, clips[3])
    assert store_of(mine.features(fixed)).count == count == 19, "brought back: its row was never lost"


def test_two_features_decode_a_video_once_and_a_second_run_extracts_only_the_new_feature(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.features()
    opened: list[str] = []
    real = module.read_frames

    def counting(work, catalogue, wanted, size):
        opened.extend(wanted)
        assert all(set(samplings) == {"clips"} for samplings in wanted.values())
        return real(work, catalogue, wanted, size)

    monkeypatch.setattr(module, "read_frames", counting)
    both = ExtractOptions(
        dataset="demo",
        features={
            "scene": TaggerFeature(sampling="clips"),
            "look": ImageFeature(model="test_resnet", weights="random", sampling="clips"),
        },
        sampling={"clips": SAMPLING},
    )
    job = toy.features(both)
    assert len(opened) == len(set(opened)) == 18
    done = job.workspace.done("extract_features", job.ref.key)
    assert done is not None and done.summary["extracted"] == {"look": 18}


def test_a_video_that_cannot_be_decoded_is_quarantined_and_not_tried_again(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.read_frames
    victim: list[str] = []

    def failing(work, catalogue, wanted, size):
        for id, answer in real(work, catalogue, wanted, size):
            victim.append(id)
            yield id, BadMedia("crashed", "the decoder died") if id == victim[0] else answer

    monkeypatch.setattr(module, "read_frames", failing)
    job = toy.features()
    rows = read_rows(job.work().folder)["scene"]
    assert len(rows) == 17 and victim[0] not in rows
    monkeypatch.setattr(module, "read_frames", real)
    job.carry_out(force=True)
    assert extracted(job) == 0, "known to fail: left alone"
    retrying = job.runtime.model_copy(update={"retry_quarantined": True})
    again = module.extract_features.job(job.workspace, job.data, retrying, job.options, job.inputs)
    assert module.extract_features.again is not None and "1 quarantined" in module.extract_features.again(again.work())
    again.carry_out(force=True)
    assert len(read_rows(job.work().folder)["scene"]) == 18


def test_rows_do_not_depend_on_what_was_extracted_before(toy: ToyRun, tmp_path: Path) -> None:
    job = toy.features()
    whole = store_of(job).digest()
    shutil.rmtree(store_of(job).path)
    assert job.done() is None, "the done-marker alone is not believed when the rows are gone"
    real_add = module._write_row
    written = []

    def stops(running, id, sampled):
        if len(written) == 7:
            raise KeyboardInterrupt
        written.append(id)
        real_add(running, id, sampled)
        running.writer.flush()

    module._write_row = stops
    try:
        with pytest.raises(KeyboardInterrupt):
            job.carry_out()
    finally:
        module._write_row = real_add
    job.carry_out()
    assert extracted(job) == 18 - 7
    assert store_of(job).digest() == whole
