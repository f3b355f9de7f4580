"""A captioner that travels: exported to one file, it says the same in another workspace, and a crafted file runs no code."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from flows.caption import VideoCaptioner
from storage.checkpoints import Checkpoint
from storage.errors import BadInput
from tests.flows.conftest import Longtake
from tests.flows.toy_place import Place


@pytest.fixture
def exported(longtake: Longtake, place: Place, tmp_path: Path) -> Path:
    answer = longtake("export", "toy", tmp_path / "toy.captioner", "-w", place.workspace.root, "--note", "Shapes only.", "--json")
    assert answer.code == 0 and answer.json["bytes"] == (tmp_path / "toy.captioner").stat().st_size
    return tmp_path / "toy.captioner"


def captions(answer: dict) -> list[tuple[str, float]]:
    return [(row["caption"], row["log_prob"]) for row in answer["captions"]]


def test_another_workspace_gives_the_same_captions_to_the_bit(
    longtake: Longtake, place: Place, exported: Path, tmp_path: Path
) -> None:
    clips = [place.clip("test", n) for n in range(4)]
    here = longtake("caption", *clips, "-w", place.workspace.root, "--json")
    shutil.move(place.root, tmp_path / "gone")  # nothing of where it was made may be needed
    clips = [tmp_path / "gone" / clip.relative_to(place.root) for clip in clips]
    there = longtake("caption", *clips, "--captioner", exported, "-w", tmp_path / "elsewhere", "--json")
    assert captions(there.json) == captions(here.json) and len({p for _, p in captions(here.json)}) == 4
    assert there.json["run"] == here.json["run"] and there.json["extracted"] == 4
    again = longtake("caption", *clips, "--captioner", exported, "-w", tmp_path / "elsewhere", "--json")
    assert again.json["extracted"] == 0 and captions(again.json) == captions(here.json)


def test_in_float16_it_is_half_as_large_and_says_the_same_here(place: Place, exported: Path, tmp_path: Path) -> None:
    captioner = VideoCaptioner.load(exported, tmp_path / "one")
    captioner.export(tmp_path / "half.captioner", half=True)
    assert (tmp_path / "half.captioner").stat().st_size < 0.65 * exported.stat().st_size
    small = VideoCaptioner.load(tmp_path / "half.captioner", tmp_path / "two")
    clip = place.clip("test")
    assert small(clip) == captioner(clip)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"captioner_file": 2}, "cannot|can read"),
        ({"vocabulary": []}, "no vocabulary"),
        ({"parts": {}}, "holds no captioner"),
        ({"parts": {"captioner0": {}, "../../evil": {}}}, "holds no captioner"),
        ({"features": {"scene": {"kind": "nonsense"}}}, "is not understood"),
        ({"card": {"name": "x"}}, "is not understood"),
    ],
)
def test_a_changed_file_is_refused_in_words(exported: Path, tmp_path: Path, change: dict, said: str) -> None:
    found = Checkpoint.load(exported)
    Checkpoint(found.tensors, {**found.values, **change}).save(tmp_path / "changed.captioner")
    with pytest.raises(BadInput, match=said):
        VideoCaptioner.load(tmp_path / "changed.captioner", tmp_path / "elsewhere")
    assert not list(tmp_path.glob("evil*")) and not list(tmp_path.parent.glob("evil*"))


def test_a_pickle_is_not_opened(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "evil.captioner").write_bytes(pickle.dumps(Evil()))
    answer = longtake("caption", place.clip("test"), "--captioner", tmp_path / "evil.captioner", "-w", tmp_path / "new")
    assert answer.code == 1 and "is not a captioner that 'longtake export' wrote" in answer.err
    assert not (tmp_path / "ran").exists()


def test_other_weights_than_it_was_trained_on_are_named(exported: Path, tmp_path: Path) -> None:
    found = Checkpoint.load(exported)
    feature = {"kind": "backbone", "net": "timm:test_resnet", "weights": "random", "sampling": "clips"}
    values = {**found.values, "features": {"scene": feature}, "weights": {"scene": "0123456789abcdef"}}
    Checkpoint(found.tensors, values).save(tmp_path / "other.captioner")
    with pytest.raises(BadInput, match=r"weights of timm:test_resnet with sha256 0123456789abcdef.*longtake weights import"):
        VideoCaptioner.load(tmp_path / "other.captioner", tmp_path / "elsewhere")


def test_the_card_travels_along(exported: Path) -> None:
    values = Checkpoint.load(exported).values
    assert values["card"]["note"] == "Shapes only." and values["card"]["recipe"]["name"] == "toy"
    assert json.loads(json.dumps(values)) == values
    assert all(isinstance(tensor, np.ndarray) for tensor in Checkpoint.load(exported).tensors.values())


def test_wrong_usage_is_said(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    clip = place.clip("test")
    both = longtake("caption", clip, "--captioner", tmp_path / "x", "--run", "toy", "-w", place.workspace.root)
    missing = longtake("caption", clip, "--captioner", tmp_path / "x")
    folder = longtake("export", "toy", tmp_path, "-w", place.workspace.root)
    frames = longtake("export", "toy", tmp_path / "x", "--frames", "4", "-w", place.workspace.root)
    assert [answer.code for answer in (both, missing, folder, frames)] == [2, 2, 2, 2]
    assert "no sampling of this run takes frames evenly" in " ".join(frames.err.split())
    assert "choose one" in both.err and "there is no file" in missing.err and "is a folder" in folder.err
