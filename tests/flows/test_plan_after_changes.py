"""Plans after something happened to the data or the workspace: exactly what depends on it is stale, with the reason."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.status import feature_progress
from storage.errors import BadInput, StorageError
from storage.features.importing import import_features
from tests.flows.toy_place import AFTER_SEED, LABELS, TEST_VIDEOS, Place, executed


def test_touching_a_clip_makes_nothing_stale(place: Place) -> None:
    for clip in (place.clip("train"), place.clip("test")):
        os.utime(clip, (1, 1))
    assert place.to_do() == {}


def test_replacing_a_test_clip_leaves_training_alone_and_extracts_that_one(place: Place) -> None:
    shutil.copy(place.clip("test", 1), place.clip("test", 0))
    found = place.to_do()
    assert list(found) == TEST_VIDEOS
    assert found["catalogue"] == "1 video changed"
    assert "catalogue (videos/test)" in found["caption"]
    assert feature_progress(place.plan()) == [{"feature": "scene", "fresh": 17, "wanted": 18}]
    assert executed(place.plan()) == TEST_VIDEOS
    done = place.plan().steps[4].completion
    assert done is not None and done.summary["extracted"] == {"scene": 1}


def test_replacing_a_training_clip_trains_again(place: Place) -> None:
    shutil.copy(place.clip("test", 1), place.clip("train", 0))
    assert list(place.to_do()) == [label for label in LABELS if label != "prepare_text"]


def test_an_added_test_clip_is_counted_and_leaves_training_alone(place: Place) -> None:
    shutil.copy(place.clip("test"), place.data / "videos" / "added.mp4")
    with (place.data / "captions.jsonl").open("a") as file:
        file.write(json.dumps({"video": "added", "caption": "a red ball", "split": "test"}) + "\n")
    found = place.to_do()
    assert found["catalogue"] == "1 video added"
    assert set(found) == {*TEST_VIDEOS, "prepare_text"}


def test_a_removed_test_clip_is_counted_and_leaves_training_alone(place: Place) -> None:
    gone = place.clip("test")
    gone.unlink()
    lines = (place.data / "captions.jsonl").read_text().splitlines()
    (place.data / "captions.jsonl").write_text("\n".join(line for line in lines if f'"{gone.stem}' not in line))
    found = place.to_do()
    assert found["catalogue"] == "1 video removed"
    assert set(found) == {*TEST_VIDEOS, "prepare_text"}
    assert feature_progress(place.plan()) == [{"feature": "scene", "fresh": 17, "wanted": 17}]


def test_a_changed_caption_of_the_test_split_leaves_training_alone(place: Place) -> None:
    path, name = place.data / "captions.jsonl", place.clip("test").stem
    lines = path.read_text().splitlines()
    n = next(n for n, line in enumerate(lines) if f'"{name}' in line)
    lines[n] = json.dumps(json.loads(lines[n]) | {"caption": "something else entirely"})
    path.write_text("\n".join(lines))
    found = place.to_do()
    assert list(found) == ["catalogue", "prepare_text", "evaluate", "report"]
    assert found["catalogue"] == "1 video recaptioned"


@pytest.mark.parametrize(
    ("label", "name"),
    [("catalogue", "videos.parquet"), ("seed", "captioner.safetensors"), ("report", "report.html"), ("seed", "done.json")],
)
def test_a_result_that_lost_a_file_is_stale_alone(place: Place, label: str, name: str) -> None:
    (place.folder(label) / name).unlink()
    found = place.to_do()
    assert list(found) == [label] and "gone" in found[label]
    assert executed(place.plan()) == [label]
    assert place.to_do() == {}


def test_a_result_that_was_removed_is_gone_and_not_never_made(place: Place) -> None:
    shutil.rmtree(place.folder("caption"))
    found = place.to_do()
    assert list(found) == ["caption"] and "gone" in found["caption"]
    assert list(place.to_do(decoding__width=3)) == AFTER_SEED[1:], "a change beside a loss is told as well"


@pytest.mark.parametrize("what", ["store", "group", "segments"])
def test_a_feature_store_that_is_gone_makes_extraction_stale_alone(place: Place, what: str) -> None:
    (store,) = (place.workspace.features / "toy").iterdir()
    if what == "group":
        (store / "zarr.json").unlink()
    for path in {"store": [store], "group": [], "segments": [p for p in store.iterdir() if p.is_dir()]}[what]:
        shutil.rmtree(path)
    found = place.to_do()
    assert list(found) == ["extract_features"] and "gone" in found["extract_features"]
    assert feature_progress(place.plan())[0]["fresh"] == 0
    assert executed(place.plan()) == ["extract_features"]
    assert place.to_do() == {}
    done = place.plan().steps[4].completion
    assert done is not None and done.summary["extracted"] == ({} if what == "group" else {"scene": 18})


def test_imported_features_of_other_videos_do_no_harm(place: Place) -> None:
    np.savez(place.root / "mine.npz", somebody_else=np.zeros((2, 3), np.float16))
    import_features(place.workspace.feature_store("imported", "mine"), place.root / "mine.npz", name="mine")
    more: dict[str, Any] = {"features__mine": {"kind": "imported", "store": "mine"}}
    assert list(place.to_do(**more)) == ["extract_features", "report"]
    assert executed(place.plan(**more)) == ["extract_features", "report"]
    assert place.to_do(**more) == {}
    assert feature_progress(place.plan(**more))[1] == {"feature": "mine", "fresh": 0, "wanted": 18}


def test_data_that_moved_as_a_whole_makes_nothing_stale(place: Place, tmp_path: Path) -> None:
    place.data = place.data.rename(tmp_path / "moved")
    assert place.to_do() == {}


def test_files_that_could_not_be_read_are_tried_again_when_asked(place: Place) -> None:
    place.clip("test").write_text("this is not a video")
    executed(place.plan())
    assert place.to_do() == {}
    plan = place.plan(runtime__retry_quarantined=True)
    assert plan.steps[0].reason == "1 files that could not be read are tried again"
    assert [step.state for step in plan.steps if step.label in TEST_VIDEOS] == ["forced"] * len(TEST_VIDEOS)


def test_a_recipe_without_a_data_folder_and_a_folder_that_is_not_there_are_refused(untouched: Place, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not say where its data is; pass the data folder with --data"):
        untouched.plan(dataset__path=None)
    with pytest.raises(BadInput, match="nowhere does not exist"):
        untouched.plan(dataset__path=str(tmp_path / "nowhere"))


def test_a_damaged_marker_is_named(place: Place) -> None:
    (place.folder("seed") / "done.json").write_text("{")
    with pytest.raises(StorageError, match=r"done\.json is damaged"):
        place.plan()
