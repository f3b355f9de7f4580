"""VRE's third phase in a recipe: a stage that finds key frames, a second seeding with them, and captions of that one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benches.key_frames import chosen_run, shares
from flows.recipe import check_recipe, load_recipe
from storage.checkpoints import Checkpoint
from storage.errors import UsageError
from storage.files.garbage_collection import find_garbage
from storage.results import read_captions, read_jsonl
from storage.runs import RunRecord
from tasks.framework.feature_access import FeatureAccess
from tests.flows.conftest import Longtake
from tests.flows.toy_place import LABELS, TOY, Place, executed

VRE: dict[str, Any] = {
    "captioner": {"kind": "vre", "temporal": "scene", "hidden": 8},
    "seeding": {"epochs": 2, "batch_size": 5, "captions_per_video": 4, "refocus_after": 1},
}
PHASES = ["seed", "find_key_frames", "seed[key_frames]"]


def test_a_run_seeds_finds_key_frames_and_seeds_again(place: Place) -> None:
    plan = place.plan(**VRE, key_frames={"epochs": 3})
    assert executed(plan) == [*PHASES, *LABELS[-3:]]
    folders = {step.label: step.folder for step in plan.steps}
    first, again = (read_jsonl(folders[label] / "curves.jsonl") for label in (PHASES[0], PHASES[2]))
    assert ["step2" in point for point in first] == [False, True]
    assert ["step2" in point for point in again] == [True] * 3 and "refocus" not in again[-1]
    used = plan.step("caption")
    assert used is not None and used.inputs["captioners"][0].uri.endswith(folders[PHASES[2]].name)
    assert Checkpoint.load(folders[PHASES[2]] / "captioner.safetensors").values["captioner"]["key_frames"] == "key_frames"
    assert json.loads((folders["evaluate"] / "scores.json").read_text())["self_retrieval"] is not None
    assert not place.plan(**VRE, key_frames={"epochs": 3}).to_do
    assert not [item for item in find_garbage(place.workspace, keep=9) if "key_frames" in str(item.path)]


def test_own_files_get_key_frames_too_and_the_report_is_found(place: Place, longtake: Longtake) -> None:
    plan = place.plan(**VRE, key_frames={})
    executed(plan)
    used = plan.step("caption")
    assert used is not None
    expected = {row.video_id: row for row in read_captions(used.folder)}
    answer = longtake("caption", place.data / "videos", "-w", place.workspace.root, "--json")
    found = {Path(row["file"]).stem: row for row in answer.json["captions"]}
    assert answer.code == 0 and expected and expected.keys() <= found.keys()
    for id, row in expected.items():
        assert (found[id]["caption"], found[id]["log_prob"]) == (row.caption, row.log_prob)
    assert longtake("report", "-w", place.workspace.root, "--json").json["made"] is False


def test_the_first_seeding_is_the_one_without_the_section(untouched: Place) -> None:
    bare, whole = untouched.plan(**VRE).keys, untouched.plan(**VRE, key_frames={}).keys
    assert bare["seed"] == whole["seed"] and bare["caption"] != whole["caption"]
    boosting = {"boosting": {"epochs": 1, "samples": 2}}
    keys = untouched.plan(**VRE, key_frames={}, **boosting)
    step = keys.step("boost")
    assert step is not None and step.inputs["seeded"].key == whole["seed[key_frames]"][1]


@pytest.mark.parametrize(
    ("until", "last"),
    [("seed", PHASES[2]), ("find_key_frames", PHASES[1]), ("seed[key_frames]", PHASES[2]), ("caption", "caption")],
)
def test_until_seed_means_all_of_it(untouched: Place, until: str, last: str) -> None:
    assert untouched.plan(until=until, **VRE, key_frames={}).steps[-1].label == last


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "for a captioner of kind 'vre'"),
        ({"captioner": VRE["captioner"] | {"steps": 1}}, "with two steps"),
        (VRE | {"ensemble": {"seeds": [0, 1]}}, "leave one of the two out"),
    ],
)
def test_key_frames_that_nobody_looks_for_are_refused(changes: dict[str, Any], said: str) -> None:
    values = load_recipe(str(TOY)).model_dump(mode="json") | changes
    with pytest.raises(UsageError, match=said):
        check_recipe(values | {"key_frames": {}}, "of the test")


def test_the_share_of_key_frames_inside_the_event_is_counted(place: Place) -> None:
    run = planned_run(place)
    found = shares(place.workspace, run)
    assert {split: each.videos for split, each in found.items()} == {"train": 10, "val": 4, "test": 4}
    folder = place.workspace.folder(*run.stages["find_key_frames"])
    access = FeatureAccess.open(place.workspace, folder, ("scene", "key_frames"))
    truth = {row["video"]: row for row in read_jsonl(place.data / "truth.jsonl") if row["split"] == "train"}
    key, middle = 0, 0
    for id, row in truth.items():
        times = access.views["scene"].pts(id)
        assert times is not None and len(times) == 4
        frames = [round(12 * time) for time in times]
        key += row["start"] <= frames[int(access.read([id])[0]["key_frames"])] < row["end"]
        middle += row["start"] <= frames[2] < row["end"]
    assert (found["train"].key, found["train"].middle) == pytest.approx((key / 10, middle / 10))
    assert 0 < found["train"].any < 1


def planned_run(place: Place) -> RunRecord:
    """A run with key frames, noted as runs are, of the recipe on a drawn world."""
    plan = place.plan(until="find_key_frames", **VRE, key_frames={})
    executed(plan)
    run = chosen_run(place.workspace, "toy")
    recipe = plan.recipe.model_dump(mode="json") | {"dataset": {"kind": "demo"}}
    return replace(run, recipe=recipe, data=str(place.data))
