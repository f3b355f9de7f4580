"""Models of transformers in commands, recipes and plans: from a folder to named features, and what is said where files lack."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from flows.extraction import backbone_settings, recipe_for_nets
from flows.features import find_store, top_classes
from flows.pipeline import plan_pipeline
from flows.plan import Plan
from flows.recipe import check_recipe, load_recipe
from storage.errors import BadInput, UsageError
from storage.features.store import FeatureStore
from storage.weights import WeightsFolder
from storage.workspace import Workspace
from tasks.extraction.nets import check_fitting, open_net, spec_of
from tasks.extraction.pretrained import fetch_weights
from tests.flows.command import run_longtake
from tests.flows.conftest import Longtake
from tests.flows.toy_place import executed
from tests.models.backbones import tiny_transformers

QUICKLY = {"decoders": 0, "net_processes": 0, "engine": "torch", "device": "cpu"}


@pytest.fixture(autouse=True)
def _nobody_at_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: tiny_transformers.save(name, root / name) for name in ("clip", "vit", "videomae", "xclip")}


def planned(text: str, workspace: Path, **features: dict[str, str]) -> Plan:
    """The plan of an extraction, after its weights were brought."""
    values = yaml.safe_load(text) | {"runtime": QUICKLY}
    values["features"] |= features
    recipe = check_recipe(values, "of the test")
    fetch_weights(recipe.wanted_nets)
    return plan_pipeline(recipe, Workspace.open(workspace), until="extract_features")


def test_a_folder_of_videos_and_folders_of_models_are_enough(
    served: dict[str, str], world: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    nets = [part for name in ("clip", "videomae") for part in ("--net", f"hf:{models[name]}")]
    environment = served | {"LONGTAKE_WEIGHTS": str(tmp_path / "weights"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = ["--frames", 3, "-w", tmp_path / "w", "--set", "runtime.decoders=1", "--set", "runtime.net_processes=1"]
    run_longtake(environment, "extract", world / "videos", *nets, *options, "--to", "npy", tmp_path / "out")
    assert len(list((tmp_path / "out" / "hf-clip").glob("*.npy"))) == 18
    for name, shape in (("hf-clip", (3, 12)), ("hf-videomae", (3, 16))):
        rows = [np.load(file) for file in sorted((tmp_path / "out" / name).glob("*.npy"))]
        assert all(row.shape == shape for row in rows) and np.ptp(np.stack(rows), axis=0).max() > 0.01
    converted = [folder.name.rpartition("-")[0] for folder in (tmp_path / "cache" / "longtake" / "openvino").iterdir()]
    assert sorted(converted) == ["hf-clip", "hf-videomae"]


def test_features_of_a_video_are_those_of_its_frames(world: Path, models: dict[str, Path], tmp_path: Path) -> None:
    text = recipe_for_nets(world / "videos", [f"hf:{models['vit']}"], frames=2)
    net = {"kind": "backbone", "net": f"hf:{models['vit']}", "sampling": "frames"}
    plan = planned(text, tmp_path / "w", grid=net | {"output": "grid"}, animals=net | {"output": "classes", "over_time": "mean"})
    assert "extract_features" in executed(plan)
    workspace = Workspace.open(tmp_path / "w")
    stores = {name: find_store(workspace, name)[1] for name in ("hf-vit", "grid", "animals")}
    assert {name: store.feature_shape for name, store in stores.items()} == {"hf-vit": (16,), "grid": (16, 16), "animals": (3,)}
    assert stores["grid"].provenance["transformers"]
    for row in top_classes(stores["animals"], "animals", [], 3):
        assert {each["class"] for each in row["classes"]} == set(tiny_transformers.ANIMALS.values())
        assert sum(each["probability"] for each in row["classes"]) == pytest.approx(1, abs=0.01)


def test_the_key_is_of_the_weights_and_the_settings_and_not_of_the_place(
    world: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    def key(folder: Path) -> str:
        plan = planned(recipe_for_nets(world / "videos", [f"hf:{folder}"]), tmp_path / "w")
        step = plan.step("extract_features")
        assert step is not None
        return str(next(iter(step.prepared.values())).key)

    first = key(models["clip"])
    moved = Path(shutil.copytree(models["clip"], tmp_path / "moved"))
    assert key(moved) == first
    settings = json.loads((moved / "preprocessor_config.json").read_bytes())
    (moved / "preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.5, 0.5, 0.5]}))
    other = key(moved)
    assert other != first
    weights = load_file(moved / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, moved / "model.safetensors", {"format": "pt"})
    assert key(moved) not in (first, other)


def test_a_video_model_gets_clips_of_its_own_length(world: Path, models: dict[str, Path], tmp_path: Path) -> None:
    nets = [f"hf:{models['videomae']}", f"hf:{models['clip']}", "i3d"]
    recipe = yaml.safe_load(recipe_for_nets(world, nets))
    assert {name: feature["sampling"] for name, feature in recipe["features"].items()} == {
        "hf-videomae": "clips4",
        "hf-clip": "frames",
        "i3d": "clips",
    }
    assert [recipe["sampling"][name]["length"] for name in ("clips4", "clips")] == [4, 16]
    assert yaml.safe_load(recipe_for_nets(world, nets, fps=2))["sampling"]["clips4"] == {
        "kind": "windows",
        "seconds": 2.0,
        "length": 4,
    }
    assert backbone_settings("folder", f"hf:{models['xclip']}")[1] == "sampling.frames={kind: clips, positions: 12, length: 4}"
    assert len(backbone_settings("folder", f"hf:{models['clip']}")) == 1
    wrong = recipe_for_nets(world / "videos", [nets[0]]).replace("length: 4", "length: 8")
    with pytest.raises(
        BadInput, match=r"clips of 4 frames, not 8; give it a sampling of kind 'clips' or 'windows' with length 4"
    ):
        executed(planned(wrong, tmp_path / "w"))
    with pytest.raises(UsageError, match="would be called 'hf-clip'"):
        recipe_for_nets(world, [f"hf:{models['clip']}", f"hf:{models['clip']}/"])


def test_a_processor_that_does_more_than_its_settings_say_is_refused(models: dict[str, Path]) -> None:
    recipe = load_recipe("folder", backbone_settings("folder", f"hf:{models['clip']}"))
    fetch_weights(recipe.wanted_nets)
    backbone = open_net(spec_of(recipe.features["scene"], "", None, "cpu")).backbone
    check_fitting(backbone)
    backbone._mean = torch.zeros(3, 1, 1)  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="fits frames in a way that is not known here"):
        check_fitting(backbone)


def test_a_recipe_may_not_give_such_a_net_other_weights(models: dict[str, Path]) -> None:
    for setting, said in (
        ("features.scene={kind: backbone, net: 'hf:a/b', weights: random}", "leave 'weights' out"),
        ("features.scene={kind: backbone, net: 'hf:../../a b', weights: x}", "leave 'weights' out"),
    ):
        with pytest.raises(UsageError, match=said):
            load_recipe("folder", [setting])
    with pytest.raises(UsageError, match="names no model of transformers"):
        load_recipe("folder", ["features.scene={kind: backbone, net: 'hf:https://a/b/c'}"])


def test_without_the_hub_the_message_names_the_files_and_both_ways_out(longtake: Longtake, world: Path) -> None:
    for arguments in (
        ("run", "folder-siglip", "--data", world),
        ("extract", world, "--net", "hf:google/siglip2-base-patch16-224"),
    ):
        answer = longtake(*arguments)
        assert answer.code == 1
        said = " ".join(answer.err.split())
        assert "HF_HUB_OFFLINE is set" in said and "config.json, preprocessor_config.json" in said and "model.safetensors" in said
        assert "longtake weights import FOLDER --net hf:google/siglip2-base-patch16-224" in said and "hf:./FOLDER" in said


def test_a_folder_is_taken_in_for_a_repository(longtake: Longtake, models: dict[str, Path], world: Path, tmp_path: Path) -> None:
    net = "hf:google/siglip2-base-patch16-224"
    (row,) = longtake("weights", "list", "folder-siglip", "--json").json
    assert (row["net"], row["state"], row["file"]) == (net, "missing", "model.safetensors")
    assert row["source"] == f"https://huggingface.co/{net[3:]}"
    wrong = longtake("weights", "import", world, "--net", net)
    assert wrong.code == 1 and "has no model.safetensors" in wrong.err
    done = longtake("weights", "import", models["clip"], "--net", net)
    assert done.code == 0 and str(models["clip"]) in done.out
    (row,) = longtake("weights", "list", "folder-siglip", "--json").json
    assert (row["state"], row["path"]) == ("here", str(models["clip"] / "model.safetensors"))
    assert [known.net for known in WeightsFolder().registered().values()] == [net]
    checked = longtake("weights", "check", "--json")
    assert checked.code == 0 and checked.json["well"] == [net]
    planned(recipe_for_nets(world / "videos", [net]), tmp_path / "w")  # nothing is fetched


def test_stores_keep_the_names_when_the_model_is_gone(models: dict[str, Path], world: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(models["videomae"], tmp_path / "mae"))
    text = recipe_for_nets(world / "videos", [f"hf:{copy}"], frames=1).replace("net: hf:", "output: classes\n    net: hf:")
    executed(planned(text, tmp_path / "w"))
    shutil.rmtree(copy)
    store: FeatureStore = find_store(Workspace.open(tmp_path / "w"), "hf-mae")[1]
    assert {each["class"] for each in top_classes(store, "mae", [], 2)[0]["classes"]} == set(tiny_transformers.ACTIONS.values())
