"""Run records, results on disk, and garbage collection: what goes, what stays, and what is never touched."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.files.atomic import write_json, write_jsonl
from storage.files.garbage_collection import collect, find_garbage, lock_name
from storage.records import ArtifactRef
from storage.results import CaptionRow, read_captions, read_scores
from storage.runs import RunRecord, latest_runs, load_runs, new_run_id, save_run
from storage.workspace import Completion, Workspace

STAGES = ("catalogue", "seed", "report")


def result(workspace: Workspace, stage: str, key: str, size: int = 100) -> Path:
    """A finished result of one file."""
    folder = workspace.folder(stage, key)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").write_bytes(b"x" * size)
    ref = ArtifactRef(stage, f"artifacts/{stage}/{key}", key)
    workspace.finish(Completion(ref, stage, {}, 1.0, "2024-01-01T00:00:00Z"))
    return folder


def store(workspace: Workspace, name: str) -> Path:
    folder = workspace.features / name
    folder.mkdir(parents=True)
    (folder / "zarr.json").write_text("{}")
    return folder


def a_run(
    workspace: Workspace,
    key: str,
    stages: Iterable[str] = STAGES,
    recipe: str = "demo",
    dataset: str = "world",
    state: str = "done",
    stores: tuple[str, ...] = (),
    made: Iterable[str] | None = None,
) -> RunRecord:
    """A run that meant to use results of this key, with those that it made (all, unless told)."""
    keys = {stage: (stage, key) for stage in stages}
    for stage in stages if made is None else made:
        result(workspace, stage, key)
    run = RunRecord(new_run_id(), recipe, dataset, "/data", {"name": recipe}, keys, stores, "2024-01-01T00:00:00Z", state)
    save_run(workspace, run)
    return run


def doomed(workspace: Workspace, keep: int = 1) -> set[str]:
    return {str(item.path.relative_to(workspace.root)) for item in find_garbage(workspace, keep)}


def results_of(*keys: str, stages: Iterable[str] = STAGES) -> set[str]:
    return {f"artifacts/{stage}/{key}" for stage in stages for key in keys}


def test_a_run_survives_saving_and_the_newest_comes_first(workspace: Workspace) -> None:
    first = a_run(workspace, "a", stores=("demo/scene-1",))
    second = replace(a_run(workspace, "b"), scores={"CIDEr": 0.5}, report="größe.html", quarantined=2)
    save_run(workspace, second)
    assert load_runs(workspace) == [second, first]
    assert first.title == "demo on world"


def test_ids_given_out_in_a_row_sort_in_that_order() -> None:
    ids = []
    for _ in range(50):
        ids.append(new_run_id())
        time.sleep(0.00001)
    assert ids == sorted(ids) and len(set(ids)) == 50


@pytest.mark.parametrize("name", ["../../etc/cron", "a b/c", "...", "", "größe"])
def test_an_odd_recipe_name_stays_below_the_runs_folder(workspace: Workspace, name: str) -> None:
    a_run(workspace, "a", recipe=name)
    (path,) = (workspace.root / "runs").glob("*/*.json")
    assert path.resolve().is_relative_to(workspace.root / "runs")
    assert load_runs(workspace)[0].recipe_name == name


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"stages": []}', '{"stages": {"a": 1}, "stores": []}'])
def test_a_damaged_run_record_is_named(workspace: Workspace, content: str) -> None:
    a_run(workspace, "a")
    (path,) = (workspace.root / "runs").glob("*/*.json")
    path.write_text(content)
    with pytest.raises(StorageError, match=rf"{path.name} is damaged .*; remove it"):
        load_runs(workspace)


def test_what_the_newest_run_of_each_recipe_and_data_set_uses_stays(workspace: Workspace) -> None:
    for key in ("old", "new"):
        a_run(workspace, key)
    a_run(workspace, "other-recipe", recipe="glrg")
    a_run(workspace, "other-data", dataset="msvd")
    result(workspace, "seed", "orphan")
    assert doomed(workspace) == results_of("old") | {"artifacts/seed/orphan"}
    assert doomed(workspace, keep=2) == {"artifacts/seed/orphan"}
    collect(workspace, find_garbage(workspace))
    assert doomed(workspace) == set()
    assert {run.stages["seed"][1] for run in latest_runs(workspace, 1)} == {"new", "other-recipe", "other-data"}
    assert workspace.done("seed", "new") is not None and not workspace.folder("seed", "old").exists()


def test_a_result_that_two_runs_share_stays(workspace: Workspace) -> None:
    a_run(workspace, "old")
    run = a_run(workspace, "new")
    save_run(workspace, replace(run, stages={**run.stages, "catalogue": ("catalogue", "old")}))
    assert doomed(workspace) == results_of("old", stages=("seed", "report")) | {"artifacts/catalogue/new"}


def test_a_failed_or_killed_run_does_not_cost_the_last_good_one(workspace: Workspace) -> None:
    a_run(workspace, "older")
    a_run(workspace, "good")
    a_run(workspace, "failed", made=("catalogue", "seed"), state="failed")
    a_run(workspace, "killed", made=("catalogue",), state="running")
    assert doomed(workspace) == results_of("older")
    a_run(workspace, "next")
    assert doomed(workspace) == (
        results_of("older", "good")
        | results_of("failed", stages=("catalogue", "seed"))
        | results_of("killed", stages=("catalogue",))
    )


def test_a_run_that_stopped_earlier_does_not_cost_the_last_whole_one(workspace: Workspace) -> None:
    a_run(workspace, "whole")
    a_run(workspace, "short", stages=("catalogue",))
    assert doomed(workspace) == set()
    a_run(workspace, "shorter", stages=("catalogue",))
    assert doomed(workspace) == {"artifacts/catalogue/short"}


def test_nothing_kept_means_all_results_and_features_go_but_imported_ones(workspace: Workspace) -> None:
    a_run(workspace, "a", stores=("demo/scene-1",))
    store(workspace, "demo/scene-1")
    store(workspace, "imported/vgg")
    assert doomed(workspace, keep=0) == results_of("a") | {"features/demo/scene-1"}


def test_feature_stores_go_with_the_runs_that_read_them_and_imported_ones_never(workspace: Workspace) -> None:
    a_run(workspace, "old", stores=("demo/scene-1", "demo/shared"))
    a_run(workspace, "new", stores=("demo/scene-2", "demo/shared"))
    for name in ("demo/scene-1", "demo/scene-2", "demo/shared", "imported/vgg"):
        store(workspace, name)
    assert doomed(workspace) == results_of("old") | {"features/demo/scene-1"}
    collect(workspace, find_garbage(workspace))
    left = {str(path.relative_to(workspace.features)) for path in workspace.features.glob("*/*")}
    assert left == {"demo/scene-2", "demo/shared", "imported/vgg"}


def test_a_result_that_is_being_made_is_left_alone(workspace: Workspace) -> None:
    result(workspace, "seed", "a")
    garbage = find_garbage(workspace)
    with workspace.lock(lock_name("seed", "a")):
        assert find_garbage(workspace) == []
        collect(workspace, garbage)
        assert workspace.done("seed", "a") is not None, "somebody began to make it after it was found"
    assert [item.path.name for item in find_garbage(workspace)] == ["a"]


def test_looking_for_garbage_removes_nothing_and_tells_sizes(workspace: Workspace) -> None:
    folder = result(workspace, "seed", "a", size=5000)
    (item,) = find_garbage(workspace)
    assert item.reason == "no kept run uses this seed"
    assert item.nbytes == 5000 + (folder / "done.json").stat().st_size
    assert workspace.done("seed", "a") is not None


def test_a_removal_that_fails_half_way_leaves_nothing_that_looks_done(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    result(workspace, "seed", "a")

    def refuses(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuses)
    with pytest.raises(StorageError, match="read-only"):
        collect(workspace, find_garbage(workspace))
    assert workspace.done("seed", "a") is None


def test_old_temporary_files_go_and_young_ones_stay(workspace: Workspace) -> None:
    a_run(workspace, "a", stores=("demo/scene",))
    old_folder = store(workspace, "demo/scene") / "segment.tmp-2"
    old_folder.mkdir()
    (old_folder / "part.tmp-3").write_text("inside")
    old, young = workspace.folder("seed", "a") / "data.tmp-1", workspace.root / "ledger.tmp-4"
    for path in (old, young):
        path.write_text("half")
    for path in (old, old_folder / "part.tmp-3", old_folder):
        os.utime(path, (1, 1))
    found = find_garbage(workspace)
    assert {item.path for item in found} == {old, old_folder}
    assert {item.reason for item in found} == {"left over from a killed writer"}
    collect(workspace, found)
    assert young.exists() and not old.exists() and not old_folder.exists()
    assert workspace.done("seed", "a") is not None


def test_temporary_files_of_living_writers_may_vanish_meanwhile(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace.root / "here.tmp-1").write_text("half")
    walk = os.walk

    def walk_late(top: Path):
        for parent, folders, files in walk(top):
            yield parent, folders, [*files, "gone.tmp-2"]

    monkeypatch.setattr(os, "walk", walk_late)
    os.utime(workspace.root / "here.tmp-1", (1, 1))
    assert doomed(workspace) == {"here.tmp-1"}


def test_captions_and_scores_are_read_back(tmp_path: Path) -> None:
    rows = [CaptionRow("a", "ein großer\u2028ball", -1.5, [[0.5, 0.5]]), CaptionRow("b", "", -2.0)]
    write_jsonl(tmp_path / "captions.jsonl", [vars(row) for row in rows])
    write_json(tmp_path / "scores.json", {"videos": 2, "corpus": {"CIDEr": 0.5}})
    assert read_captions(tmp_path) == rows
    assert read_scores(tmp_path) == {"videos": 2, "corpus": {"CIDEr": 0.5}}


@pytest.mark.parametrize("content", ["{", '{"caption": "a"}', "[1]", None])
def test_captions_that_cannot_be_read_are_named_with_what_to_do(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "captions.jsonl").write_text(content)
    with pytest.raises(StorageError, match=r"cannot read .*captions\.jsonl.*--force"):
        read_captions(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "\xff", None])
def test_scores_that_cannot_be_read_are_named_with_what_to_do(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "scores.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(StorageError, match=r"cannot read .*scores\.json.*--force evaluate"):
        read_scores(tmp_path)


def test_the_best_run_stays_beside_the_newest_and_what_goes_is_named(workspace: Workspace) -> None:
    for key, score in (("worst", 0.1), ("best", 0.9), ("newest", 0.5)):
        save_run(workspace, replace(a_run(workspace, key), state="done", name=f"the {key}", scores={"CIDEr": score}))
    assert doomed(workspace) == results_of("worst")
    assert all("'the worst' (demo on world, CIDEr 10.0)" in item.reason for item in find_garbage(workspace))
