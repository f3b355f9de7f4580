"""A folder's data set is called as the folder, and two folders never share a name."""

from dataclasses import replace
from pathlib import Path

from flows.for_data.dataset_name import with_dataset_name
from flows.recipe import load_recipe
from storage.runs import RunRecord, new_run_id, save_run
from storage.workspace import Workspace


def name_of(space: Workspace, folder: Path, *settings: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    recipe = with_dataset_name(load_recipe("folder", settings, folder), space)
    record = RunRecord(new_run_id(), "folder", recipe.dataset.name, str(folder), {}, {}, (), "2024-01-01T00:00:00Z")
    save_run(space, record)
    return recipe.dataset.name


def test_two_folders_of_one_name_are_told_apart_and_keep_their_names(tmp_path: Path) -> None:
    space = Workspace.open(tmp_path / "workspace")
    first, second = tmp_path / "a" / "My clips", tmp_path / "b" / "My clips"
    assert [name_of(space, folder) for folder in (first, second, first, second)] == ["My-clips", "My-clips-2"] * 2


def test_a_folder_that_moved_away_leaves_its_name(tmp_path: Path) -> None:
    space = Workspace.open(tmp_path / "workspace")
    assert name_of(space, tmp_path / "a" / "clips") == "clips"
    (tmp_path / "a").rename(tmp_path / "b")
    assert name_of(space, tmp_path / "b" / "clips") == "clips"


def test_a_stated_name_stays_and_so_does_the_name_of_earlier_runs(tmp_path: Path) -> None:
    space, folder = Workspace.open(tmp_path / "workspace"), tmp_path / "clips"
    assert name_of(space, folder, "dataset.name=mine") == "mine"
    legacy = RunRecord(new_run_id(), "folder", "folder", str(folder), {}, {}, (), "2024-01-01T00:00:00Z")
    save_run(space, replace(legacy, data=str(folder)))
    assert name_of(space, folder) == "folder"  # its features and results are stored under that name


def test_names_that_feature_stores_need_for_themselves_are_not_given(tmp_path: Path) -> None:
    assert name_of(Workspace.open(tmp_path / "workspace"), tmp_path / "imported") == "imported-2"
