"""Runs that people can tell apart: names, notes, settings, states; and what a plan says that it has understood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from storage.checkpoints import Checkpoint
from storage.files.garbage_collection import lock_name
from storage.runs import load_runs, new_run_id, save_run
from tests.flows.conftest import Longtake
from tests.flows.toy_place import TOY, Place


def toy(place: Place) -> Path:
    recipe = yaml.safe_load(TOY.read_text()) | {"dataset": {"kind": "folder", "name": "toy", "path": str(place.data)}}
    (place.root / "toy.yaml").write_text(yaml.safe_dump(recipe))
    return place.root / "toy.yaml"


def test_status_shows_names_notes_settings_and_warnings(longtake: Longtake, place: Place) -> None:
    answer = longtake("run", toy(place), "-w", place.workspace.root, "--name", "night cams", "--note", "the new lamps")
    assert answer.code == 0
    run = load_runs(place.workspace)[0]
    save_run(place.workspace, replace(run, settings=("seeding.epochs=5",), warnings=("all captions are the same",)))
    shown = longtake("status", "-w", place.workspace.root)
    assert f"{run.short_id}: 'night cams'; the new lamps; --set seeding.epochs=5" in shown.out
    assert f"{run.short_id}: all captions are the same" in shown.err
    found = longtake("status", "-w", place.workspace.root, "--json").json[0]
    assert (found["name"], found["settings"]) == ("night cams", ["seeding.epochs=5"])


def test_a_killed_run_is_interrupted_unless_a_process_is_at_it(longtake: Longtake, place: Place) -> None:
    run = load_runs(place.workspace)[0]
    save_run(place.workspace, replace(run, id=new_run_id(), state="running"))

    def state() -> str:
        return str(longtake("status", "-w", place.workspace.root, "--json").json[0]["state"])

    assert state() == "interrupted"
    with place.workspace.lock(lock_name(*run.stages["seed"])):
        assert state() == "running"


def test_an_interrupted_training_is_half_done(longtake: Longtake, place: Place) -> None:
    recipe, folder = toy(place), place.folder("seed")
    (folder / "done.json").unlink()
    values = {"training": {"step": 26}, "total_steps": 80}
    Checkpoint({}, values).save(folder / "last.safetensors")
    (step,) = (s for s in longtake("status", recipe, "-w", place.workspace.root, "--json").json["stages"] if s["stage"] == "seed")
    assert (step["state"], step["why"]) == ("partial", "half done: step 26 of 80")


def test_a_dry_run_says_what_was_understood(longtake: Longtake, place: Place) -> None:
    for command in ("run", "train", "evaluate", "extract"):
        shown = longtake(command, toy(place), "-w", place.workspace.root, "--dry-run")
        assert shown.code == 0 and f"data set 'toy' in {place.data}: " in shown.out.replace("\n", " ")
        assert "train, " in shown.out and "captions" in shown.out and "0 missing" in shown.out and "disk are free" in shown.out
    (place.data / place.clip("test")).unlink()
    assert "1 missing" in longtake("run", toy(place), "-w", place.workspace.root, "--dry-run").out


def test_a_wrong_setting_is_blamed_and_not_the_recipe(longtake: Longtake) -> None:
    answer = longtake("run", "demo", "--set", "seeding.epochs=many", "--set", "seeding.seed=1")
    assert answer.code == 2 and "error: --set seeding.epochs=many: seeding.epochs: input should be a valid integer" in answer.err
    assert "the recipe" not in answer.err


def test_the_version_is_printed_and_flags_have_no_type(longtake: Longtake) -> None:
    assert longtake("--version").out.startswith("longtake 0.")
    for command in ("run", "extract", "score", "gc"):
        assert "<bool>" not in longtake(command, "--help").out
    assert "[captions]" in longtake("score", "--help").out


def test_a_folder_and_names_of_nets_are_enough_to_plan_an_extraction(longtake: Longtake, place: Place) -> None:
    (place.data / "captions.csv").unlink(missing_ok=True)
    asked = ("extract", place.data, "--net", "log_mel", "--net", "tf_efficientnet_lite2", "-w", place.workspace.root, "--dry-run")
    plan = longtake(*asked, "--json").json
    assert [step["stage"] for step in plan["stages"]] == ["catalogue", "sample_frames[frames]", "extract_features"]
    by_time = longtake(*asked, "--net", "i3d", "--fps", "2", "--json").json
    assert "sample_frames[clips]" in [step["stage"] for step in by_time["stages"]]
    both = longtake(*asked, "--fps", "2", "--frames", "8")
    assert both.code == 2 and "choose one" in both.err
    unknown = longtake("extract", place.data, "--net", "resnet1", "-w", place.workspace.root)
    assert unknown.code == 2 and "resnet1" in unknown.err
    assert longtake("extract", "folder", "--net", "log_mel").code == 2
    wrong = longtake("extract", place.data, "--to", "zip", "out")
    assert wrong.code == 2 and "--to npy FOLDER" in wrong.err
