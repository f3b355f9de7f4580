"""The commands about weights: what is wanted and where from, bringing files, checking them again."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import timm
import torch
import yaml
from huggingface_hub import constants
from safetensors.torch import save_file
from torchvision.models import get_model

from flows.cli import printing
from models.backbones.hub import published_files
from models.backbones.zoo import BACKBONES, WEIGHTLESS
from storage.weights import WeightsFolder, hash_file
from tests.flows.conftest import Longtake

NET = "timm:test_resnet"
WITH_WEIGHTS = [net for net in BACKBONES if net not in WEIGHTLESS]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WeightsFolder:
    """An empty folder of weights and empty caches."""
    monkeypatch.setenv("LONGTAKE_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(printing.out, "width", 240)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return WeightsFolder()


def tiny(path: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    save_file(timm.create_model("test_resnet").state_dict(), path)
    return path


def test_the_list_names_every_net_its_file_and_where_it_is(longtake: Longtake, tmp_path: Path) -> None:
    rows = {row["net"]: row for row in longtake("weights", "list", "--json").json}
    assert list(rows) == WITH_WEIGHTS
    assert [net for net, row in rows.items() if row["state"] != "missing"] == ["tf_efficientnet_lite2"]  # a package has it
    assert rows["vggish"]["file"] == "vggish-10086976.pth" and rows["vggish"]["sha256"] == "10086976"
    assert not (tmp_path / "weights").exists()
    longtake("weights", "import", tiny(tmp_path / "mine.safetensors"), "--net", NET)
    (tmp_path / "torch" / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "torch" / "hub" / "checkpoints" / "r3d_18-b3b3357e.pth").write_bytes(b"fetched by torchvision")
    rows = {row["net"]: row for row in longtake("weights", "list", "--json").json}
    assert list(rows) == [*WITH_WEIGHTS, NET] and rows[NET]["state"] == rows["r3d_18"]["state"] == "here"
    assert rows[NET]["sha256"] == hash_file(tmp_path / "mine.safetensors")
    told = longtake("weights", "list").out
    assert "https://huggingface.co/timm/resnet101.a1h_in1k" in told and "longtake weights import FILE --net NET" in told


def test_the_list_of_a_recipe_is_what_its_features_want(longtake: Longtake, recipe: Path, tmp_path: Path) -> None:
    values = yaml.safe_load(recipe.read_text())
    values["features"] |= {
        "looks": {"kind": "backbone", "net": "timm:resnet101", "sampling": "clips"},
        "places": {"kind": "backbone", "net": "resnet101", "output": "grid", "sampling": "clips"},
        "tried": {"kind": "backbone", "net": "resnet152", "weights": "random", "sampling": "clips"},
        "own": {"kind": "backbone", "net": "r3d_18", "weights": str(tmp_path / "own.pth"), "sampling": "clips"},
    }
    recipe.write_text(yaml.safe_dump(values, sort_keys=False))
    rows = longtake("weights", "list", recipe, "--json").json
    assert [(row["net"], row["state"], row["wanted_by"]) for row in rows] == [
        ("resnet101", "missing", ["looks", "places"]),
        ("resnet152", "random", ["tried"]),
        ("r3d_18", "missing", ["own"]),
    ]
    (tmp_path / "own.pth").write_bytes(b"")
    assert [row["state"] for row in longtake("weights", "list", recipe, "--json").json] == ["missing", "random", "here"]
    told = longtake("weights", "list", recipe).out
    assert "looks, places" in told and "only to try the plumbing" in told


def test_a_recipe_without_nets_wants_nothing(longtake: Longtake, recipe: Path) -> None:
    assert longtake("weights", "list", recipe, "--json").json == []
    assert "wants no pretrained weights" in longtake("weights", "list", recipe).out


def test_an_import_is_checked_kept_and_says_what_it_replaces(longtake: Longtake, folder: WeightsFolder, tmp_path: Path) -> None:
    first = longtake("weights", "import", tiny(tmp_path / "a.safetensors"), "--net", NET, "--json")
    assert first.code == 0 and first.json["net"] == NET and first.json["replaced"] is None
    assert first.json["sha256"] == hash_file(tmp_path / "a.safetensors") and not first.json["published"]
    again = longtake("weights", "import", tmp_path / "a.safetensors", "--net", NET, "--json")
    assert again.json == first.json
    other = longtake("weights", "import", tiny(tmp_path / "b.safetensors", 1), "--net", NET)
    assert other.code == 0 and "they replace" in other.out and first.json["sha256"] in other.out
    known = folder.find(NET)
    assert known is not None and known.sha256 == hash_file(tmp_path / "b.safetensors")
    assert Path(first.json["path"]).read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_a_published_file_tells_its_net_and_must_have_its_hash(
    longtake: Longtake, folder: WeightsFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(get_model("mc3_18", weights=None).state_dict(), tmp_path / "mc3_18-a90a0ba3.pth")
    spoilt = longtake("weights", "import", "mc3_18-a90a0ba3.pth")
    assert spoilt.code == 1 and "not what its name says" in spoilt.err and "begins with a90a0ba3" in spoilt.err
    assert not folder.path.exists()
    # Published files cannot be had here: give one of ours the name that its hash makes right.
    right = f"mc3_18-{hash_file(tmp_path / 'mc3_18-a90a0ba3.pth')[:8]}.pth"
    wanted = published_files()["mc3_18-a90a0ba3.pth"]
    files = {right: type(wanted)(wanted.net, right, url=f"https://example.org/{right}", sha256=right[7:15])}
    monkeypatch.setattr("flows.weights.published_files", lambda: files)
    (tmp_path / "mc3_18-a90a0ba3.pth").rename(tmp_path / right)
    told = longtake("weights", "import", right, "--json")
    assert told.code == 0 and told.json["net"] == "tv:mc3_18" and told.json["published"]
    known = folder.find("tv:mc3_18")
    assert known is not None and known.source == f"https://example.org/{right}" and known.how == "imported"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["mine.safetensors"], 2, "the net is unknown; add --net NAME"),
        (["mine.safetensors", "--net", "resnet5000"], 2, "there is no backbone 'resnet5000'"),
        (["mine.safetensors", "--net", "../weights"], 2, "there is no backbone '../weights'"),
        (["mine.safetensors", "--net", "timm:test_vit"], 1, "does not fit 'timm:test_vit'"),
        (["nowhere.pth", "--net", NET], 1, "no weights file at nowhere.pth"),
        (["code.pth", "--net", NET], 1, "holds no plain weights"),
        (["half.safetensors", "--net", NET], 1, "holds no plain weights"),
        (["i3d-kinetics-400.ckpt"], 1, "damaged or of another version"),
        (["code.pth", "--net", "i3d"], 1, "holds no plain weights"),
    ],
)
def test_an_import_that_is_refused_is_one_line_and_leaves_nothing(
    longtake: Longtake, folder: WeightsFolder, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    whole = tiny(tmp_path / "mine.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    torch.save({"conv1.weight": print}, tmp_path / "code.pth")
    (tmp_path / "i3d-kinetics-400.ckpt").write_bytes(pickle.dumps(print))
    answer = longtake("weights", "import", *arguments)
    assert answer.code == code and said in answer.err and len(answer.err.splitlines()) == 1
    assert not folder.path.exists()


def test_the_check_finds_files_that_changed_or_are_gone(longtake: Longtake, tmp_path: Path) -> None:
    assert "no weights are registered yet" in longtake("weights", "check").out
    told = longtake("weights", "import", tiny(tmp_path / "a.safetensors"), "--net", NET, "--json")
    kept = Path(told.json["path"])
    assert longtake("weights", "check", "--json").json == {"well": [NET], "problems": []}
    assert f"✓ {NET}" in longtake("weights", "check").out
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    longtake("weights", "list")  # takes note of the change, and yet it is not forgotten
    for _ in range(2):
        found = longtake("weights", "check", "--json")
        assert found.code == 1 and [problem["kind"] for problem in found.json["problems"]] == ["changed"]
    kept.write_bytes(data[:1000])
    kinds = [problem["kind"] for problem in longtake("weights", "check", "--json").json["problems"]]
    assert kinds == ["changed", "unfit"]
    kept.unlink()
    gone = longtake("weights", "check")
    assert gone.code == 1 and "is gone; import it again" in gone.out
