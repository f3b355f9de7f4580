"""Checkpoints, weights, results and workspaces of strangers, through the commands that load them: wrong at worst, never run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from storage.errors import LongtakeError, StorageError
from storage.features.store import FeatureStore
from storage.runs import load_runs, save_run
from storage.workspace import Workspace, read_done
from tests.flows.conftest import Longtake
from tests.flows.toy_place import TOY, Place
from tests.flows.traps import nothing_springs, replace_file, trap_bytes, trap_file


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "sprung"


def pickled(form: str, mark: Path, folder: Path) -> bytes:
    return trap_bytes(mark) if form == "pickle" else trap_file(mark, folder / "crafted.pth").read_bytes()


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_crafted_captioner_is_refused_by_the_command_that_captions(
    longtake: Longtake, place: Place, tmp_path: Path, mark: Path, form: str
) -> None:
    replace_file(place.folder("seed") / "captioner.safetensors", pickled(form, mark, tmp_path))
    with nothing_springs(mark):
        answer = longtake("caption", place.clip("test"), "-w", place.workspace.root)
    assert answer.code == 1 and "captioner.safetensors is damaged" in " ".join(answer.err.split())


def test_a_training_does_not_resume_from_a_crafted_checkpoint(place: Place, mark: Path) -> None:
    folder = place.folder("seed")
    (folder / "done.json").unlink()
    (folder / "last.safetensors").write_bytes(trap_bytes(mark))
    step = place.plan().step("seed")
    assert step is not None
    with nothing_springs(mark), pytest.raises(StorageError, match=r"last\.safetensors is damaged"):
        step.execute()


def test_boosting_does_not_start_from_a_crafted_captioner(place: Place, mark: Path) -> None:
    replace_file(place.folder("seed") / "captioner.safetensors", trap_bytes(mark))
    step = place.plan(boosting={"epochs": 1, "batch_size": 4, "samples": 2}).step("boost")
    assert step is not None
    with nothing_springs(mark), pytest.raises(StorageError, match=r"captioner\.safetensors is damaged"):
        step.execute()


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_weights_named_by_a_recipe_are_read_and_not_run(place: Place, tmp_path: Path, mark: Path, form: str) -> None:
    file = tmp_path / "tagger.safetensors"
    file.write_bytes(pickled(form, mark, tmp_path))
    recipes = [
        {"kind": "tagger", "weights": str(file), "sampling": "clips"},
        {"kind": "backbone", "net": "timm:test_resnet", "weights": str(file), "sampling": "clips"},
        {"kind": "backbone", "net": "timm:test_resnet", "weights": str(file.with_suffix(".pth")), "sampling": "clips"},
    ]
    shutil.copy(file, file.with_suffix(".pth"))
    for feature in recipes:
        step = place.plan(features__scene=feature).step("extract_features")
        assert step is not None
        with nothing_springs(mark), pytest.raises(LongtakeError, match=r"damaged|holds no plain weights"):
            step.execute()


@pytest.mark.parametrize("form", ["pickle", "torch"])
@pytest.mark.parametrize("ending", [".pth", ".safetensors", ".bin"])
def test_imported_weights_are_read_and_not_run(
    longtake: Longtake, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, form: str, ending: str
) -> None:
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(tmp_path / "weights"))
    file = tmp_path / f"stranger{ending}"
    file.write_bytes(pickled(form, mark, tmp_path))
    with nothing_springs(mark):
        answer = longtake("weights", "import", file, "--net", "timm:test_resnet")
    assert answer.code == 1 and "holds no plain weights" in " ".join(answer.err.split())
    assert not list((tmp_path / "weights").glob("files/*")), "and it is not kept"


def test_pickled_objects_in_imported_features_are_refused(longtake: Longtake, place: Place, mark: Path) -> None:
    folder = place.root / "mine"
    folder.mkdir()
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1, 1), }".ljust(127) + b"\n"
    (folder / "test-0000.npy").write_bytes(header + trap_bytes(mark))
    with nothing_springs(mark):
        answer = longtake("features", "import", "mine", folder, "-w", place.workspace.root)
    assert answer.code != 0 and "pickled Python objects" in " ".join((answer.out + answer.err).split())


def test_a_feature_store_of_another_make_is_opened_as_zarr_3_alone(place: Place, mark: Path) -> None:
    """zarr's older format knows a codec that unpickles. A segment that pretends to be of it is read as what it is, or not."""
    (store,) = place.workspace.features.glob("toy/*")
    digest = FeatureStore.open(store).digest()
    data = next(path for path in store.glob("*/data") if (path / "zarr.json").is_file())
    layout = json.loads((data / "zarr.json").read_bytes())
    chunk = [int(n) for n in layout["chunk_grid"]["configuration"]["chunk_shape"]]
    old = {"zarr_format": 2, "shape": layout["shape"], "chunks": chunk, "dtype": "|O", "compressor": None, "order": "C"}
    (data / ".zarray").write_text(json.dumps(old | {"fill_value": 0, "filters": [{"id": "pickle", "protocol": 5}]}))
    (data / ".".join("0" for _ in chunk)).write_bytes(trap_bytes(mark))
    (data / "zarr.json").write_text(json.dumps(layout | {"zarr_format": 2}))
    with nothing_springs(mark):
        assert FeatureStore.open(store).digest() == digest


def test_a_done_marker_that_points_elsewhere_is_refused(place: Place) -> None:
    folder = place.folder("catalogue")
    marker = folder / "done.json"
    said = json.loads(marker.read_bytes())
    for uri in ("../../elsewhere", "/etc", f"artifacts/seed/{folder.name}"):
        marker.write_text(json.dumps(said | {"ref": said["ref"] | {"uri": uri}}))
        with pytest.raises(StorageError, match=r"done\.json is damaged"):
            read_done(folder)


def test_a_run_record_names_nothing_outside_its_workspace(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    crafted = replace(
        load_runs(place.workspace)[0],
        id="99999999-000000-000000-ffffff",
        stages={"seed": ("../../outside", "..")},
        stores=("../../../outside",),
    )
    save_run(place.workspace, replace(crafted, recipe_name="../../outside"))
    assert not list(tmp_path.glob("outside/*.json"))
    longtake("caption", place.clip("test"), "-w", place.workspace.root)
    longtake("gc", "-w", place.workspace.root, "--keep", "0")
    longtake("status", "-w", place.workspace.root)
    assert (outside / "precious").read_text() == "kept" and [path.name for path in outside.iterdir()] == ["precious"]


def test_what_a_workspace_brings_is_never_taken_for_a_result_of_prefect(tmp_path: Path) -> None:
    """A record of Prefect's own says how it is to be unpickled. So results lie in Prefect's folder, not in workspaces."""
    from flows.orchestration import embedded_server as orchestrator

    set_by_us = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("PREFECT_LOCAL_STORAGE_PATH", raising=False)
        patched.setattr("os.environ", set_by_us)
        orchestrator.configure()
    assert "DO_NOT_TRACK" in set_by_us and "PREFECT_LOCAL_STORAGE_PATH" not in set_by_us
    assert not list(Workspace.open(tmp_path / "w").root.glob("prefect*"))


def test_jars_are_chosen_by_the_machine_and_not_by_a_recipe(place: Place, tmp_path: Path) -> None:
    values = yaml.safe_load(TOY.read_text())
    assert "spice_jars" not in values["evaluation"]
    with pytest.raises(LongtakeError, match="spice_jars: there is no such key"):
        place.plan(evaluation__spice_jars=str(tmp_path))
    step = place.plan(evaluation__spice=True).step("evaluate")
    assert step is not None
    with pytest.raises(LongtakeError, match="LONGTAKE_SPICE_JARS does not name the folder"):
        step.execute()
