"""Extraction alone: each video once, only what is stale, bad videos set aside, bits that do not depend on company."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.features.store import FeatureStore
from storage.media.frame_stream import DecodeJob, Event, stream_frames
from tasks import extract_features as module
from tasks.extract_features import ExtractOptions
from tasks.extraction import engine, shards
from tasks.extraction.extractors import BackboneFeature, TaggerFeature
from tasks.framework.feature_access import read_rows
from tasks.framework.quarantine import gather_problems
from tasks.framework.stage import StageRun
from tests.tasks.toy_run import SAMPLING, ToyRun


@pytest.fixture
def fixed(toy: ToyRun) -> ExtractOptions:
    """Features whose weights do not depend on the data: a tagger kept as a file."""
    path = toy.data.parent / f"tagger-{os.getpid()}.safetensors"
    shutil.copy(toy.tagger().folder / "tagger.safetensors", path)
    feature = TaggerFeature(sampling="clips", weights=str(path))
    return ExtractOptions(dataset="demo", features={"scene": feature}, sampling={"clips": SAMPLING})


def store_of(job: StageRun) -> FeatureStore:
    (source,) = job.prepared.values()
    return FeatureStore.open(job.workspace.features / source.store)


def extracted(job: StageRun) -> int:
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
    assert extracted(job) == 0 and len(read_rows(job.folder)["scene"]) == 17, "removed"
    count = len(store_of(job).view())
    shutil.copy(toy.data / "videos" / clips[3].name, clips[3])
    assert len(store_of(mine.features(fixed)).view()) == count == 19, "brought back: its row was never lost"


def look_and_note(job: DecodeJob) -> Iterator[Event]:
    """What a decoder does, with a note of each video it was given and the looks wanted of it."""
    with (job.path.parent / "notes.txt").open("a") as notes:
        notes.write(f"{job.path.name} {len(job.requests)}\n")
    yield from stream_frames(job)


def look_badly(job: DecodeJob) -> Iterator[Event]:
    """One video kills its decoder."""
    if job.path.name == min(path.name for path in job.path.parent.glob("*.mp4")):
        os.kill(os.getpid(), signal.SIGSEGV)
    yield from stream_frames(job)


def test_two_nets_decode_a_video_once_and_a_second_run_extracts_only_the_new_feature(
    toy: ToyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ToyRun(toy.alone, Path(shutil.copytree(toy.data, tmp_path / "copy")))
    mine.features()
    monkeypatch.setattr(engine, "stream_frames", look_and_note)
    net = {"net": "timm:test_resnet", "weights": "random", "sampling": "clips"}
    both = ExtractOptions(
        dataset="demo",
        features={
            "scene": TaggerFeature(sampling="clips"),
            "look": BackboneFeature(**net),
            "classes": BackboneFeature(output="classes", over_time="mean", **net),
            "other": BackboneFeature(**net | {"seed": 1}),
        },
        sampling={"clips": SAMPLING},
    )
    job = mine.features(both)
    notes = (mine.data / "videos" / "notes.txt").read_text().splitlines()
    assert len(notes) == len(set(notes)) == 18
    assert all(note.endswith(" 1") for note in notes), "nets that want the same frames share them"
    done = job.workspace.done("extract_features", job.ref.key)
    assert done is not None and done.summary["extracted"] == {"look": 18, "classes": 18, "other": 18}
    shapes = {name: source["shape"] for name, source in json.loads(features_json(job)).items()}
    assert shapes == {"scene": [16], "look": [96], "classes": [1000], "other": [96]}


def features_json(job: StageRun) -> bytes:
    return (job.folder / "features.json").read_bytes()


def test_a_video_that_kills_its_decoder_is_quarantined_and_not_tried_again(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    before = toy.features()
    shutil.rmtree(store_of(before).path)
    in_processes = before.runtime.model_copy(update={"decoders": 1})
    job = module.extract_features.bind(before.workspace, before.data, in_processes, before.options, before.inputs)
    monkeypatch.setattr(engine, "stream_frames", look_badly)
    job.execute()
    rows = read_rows(job.folder)["scene"]
    assert len(rows) == extracted(job) == 17
    (problem,) = gather_problems(job.workspace, [job.ref])
    assert problem.kind == "crashed" and problem.item not in rows and "SIGSEGV" in problem.reason
    monkeypatch.setattr(engine, "stream_frames", stream_frames)
    job.execute(force=True)
    assert extracted(job) == 0, "known to fail: left alone"
    retrying = job.runtime.model_copy(update={"retry_quarantined": True})
    again = module.extract_features.bind(job.workspace, job.data, retrying, job.options, job.inputs)
    assert module.extract_features.rerun_reason is not None and "1 quarantined" in module.extract_features.rerun_reason(
        again.context()
    )
    again.execute(force=True)
    assert len(read_rows(job.folder)["scene"]) == 18


def test_rows_do_not_depend_on_what_was_extracted_before(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    job = toy.features()
    whole = store_of(job).digest()
    shutil.rmtree(store_of(job).path)
    assert job.find_completion() is None, "the done-marker alone is not believed when the rows are gone"
    real = engine.extract

    def stops(features, videos, runtime):
        for n, outcome in enumerate(real(features, videos, runtime), 1):
            features[0].writer.flush()
            yield outcome
            if n == 7:
                raise KeyboardInterrupt

    monkeypatch.setattr(shards, "extract", stops)
    with pytest.raises(KeyboardInterrupt):
        job.execute()
    monkeypatch.setattr(shards, "extract", real)
    job.execute()
    assert extracted(job) <= 18 - 7
    assert store_of(job).digest() == whole


def test_rows_that_a_bucket_has_are_not_extracted_again(
    toy: ToyRun, fixed: ExtractOptions, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("obstore", reason="the extra 's3' is not installed")
    first = toy.features(fixed)
    shutil.rmtree(store_of(first).path)
    bucket = (tmp_path / "bucket").as_uri()
    (tmp_path / "bucket").mkdir()
    kept = first.runtime.model_copy(update={"feature_bucket": bucket})
    here = module.extract_features.bind(first.workspace, first.data, kept, first.options, first.inputs)
    here.execute(force=True)
    assert extracted(here) == 18
    whole = store_of(here).digest()
    shutil.rmtree(store_of(here).path)
    elsewhere = module.extract_features.bind(first.workspace, first.data, kept, first.options, first.inputs)
    elsewhere.execute(force=True)
    assert extracted(elsewhere) == 0 and store_of(elsewhere).digest() == whole
