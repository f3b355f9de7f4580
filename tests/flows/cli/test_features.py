"""The commands about feature stores: importing, listing, showing, verifying, exporting, pushing and pulling."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.features.store import FeatureStore
from storage.workspace import Workspace
from tests.flows.conftest import Longtake


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_imported_features_are_listed_and_verified(longtake: Longtake, tmp_path: Path, form: str) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    extra: list[str] = []
    if form == "npz":
        np.savez(tmp_path / "rows.npz", a=rows[0], b=rows[1], c=rows[2])
    else:
        np.save(tmp_path / "rows.npy", rows)
        (tmp_path / "ids.txt").write_text("a\nb\nc\n")
        extra = ["--ids", "ids.txt"]
    told = longtake("features", "import", "vgg", f"rows.{form}", *extra, "--json")
    assert told.code == 0 and told.json["imported"] == 3 and told.json["problems"] == []
    assert longtake("features", "import", "vgg", f"rows.{form}", *extra, "--json").json["already"] == 3
    (row,) = longtake("features", "list", "--json").json
    assert (row["store"], row["videos"], row["shape"]) == ("imported/vgg", 3, ["L", 4]) and row["bytes"] > 0
    assert "imported/vgg" in longtake("features", "list").out
    assert "every row is as it was written" in longtake("features", "verify").out
    assert longtake("features", "verify", "--json").json == []
    (chunk,) = (path for path in (tmp_path / "longtake-workspace").rglob("c.*") if path.is_file())
    data = bytearray(chunk.read_bytes())
    data[3] ^= 0xFF
    chunk.write_bytes(data)
    spoilt = longtake("features", "verify", "vgg", "--json")
    assert spoilt.code == 1 and [(p["store"], p["item"]) for p in spoilt.json] == [("imported/vgg", "a")]
    told = longtake("features", "verify").out
    assert "imported/vgg: a: the features of a differ from their checksum" in told and "1 problem\n" in told
    mended = longtake("features", "verify", "imported/vgg", "--drop")
    assert mended.code == 0 and "1 problem; bad rows were taken out, 0 problems left" in mended.out
    assert longtake("features", "verify").code == 0
    assert longtake("features", "import", "vgg", f"rows.{form}", *extra, "--json").json["imported"] == 1


def test_an_import_that_leaves_something_out_exits_with_3(longtake: Longtake, world: Path, tmp_path: Path) -> None:
    (id, other) = (path.stem for path in sorted((world / "videos").glob("*.mp4"))[:2])
    rows: dict[str, Any] = {id: np.zeros((2, 4)), other: np.full((2, 4), np.nan), "stranger": np.zeros((2, 4))}
    np.savez(tmp_path / "rows.npz", **rows)
    told = longtake("features", "import", "vgg", "rows.npz", "--data", world, "--json")
    assert told.code == 3 and told.json["imported"] == 1 and told.json["unknown"] == ["stranger"]
    assert [problem["item"] for problem in told.json["problems"]] == [other] and len(told.json["missing"]) == 17


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["vgg", "nowhere.npz"], 1, "nowhere.npz"),
        (["vgg", "text.npz"], 1, "text.npz"),
        (["../vgg", "rows.npz"], 1, "cannot be the name of a folder"),
        (["vgg", "rows.npz", "--data", "nowhere"], 1, "nowhere does not exist"),
        (["vgg", "rows.npz", "--data", ".", "--kind", "youtube"], 2, "there is no kind of data set 'youtube'; kinds: msvd"),
    ],
)
def test_an_import_that_cannot_be_done_is_one_line(
    longtake: Longtake, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    np.savez(tmp_path / "rows.npz", a=np.zeros((2, 4)))
    (tmp_path / "text.npz").write_text("this is no archive")
    answer = longtake("features", "import", *arguments)
    assert answer.code == code and said in answer.err and len(answer.err.splitlines()) == 1
    assert not (tmp_path / "longtake-workspace" / "features").exists()


def test_no_features_are_no_error(longtake: Longtake, tmp_path: Path) -> None:
    Workspace.open(tmp_path / "longtake-workspace")
    assert longtake("features", "list", "--json").json == [] and "no features yet" in longtake("features", "list").out
    assert longtake("features", "verify").code == 0
    for command in (["show", "vgg"], ["verify", "vgg"], ["export", "vgg", "--to", "npy"], ["push", "vgg", "--to", "file:///x"]):
        answer = longtake("features", *command)
        assert answer.code == 2 and "there is no feature store 'vgg'; there are none yet" in answer.err


@pytest.fixture
def vgg(longtake: Longtake, tmp_path: Path) -> Path:
    """Features of three videos, imported as 'vgg' -> the folder of the store."""
    rows = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    np.savez(tmp_path / "rows.npz", a=rows[0], b=rows[1], silent=rows[2][:0])
    assert longtake("features", "import", "vgg", "rows.npz", "--dtype", "float32").code == 0
    return tmp_path / "longtake-workspace" / "features" / "imported" / "vgg"


def test_a_store_says_everything_about_itself(longtake: Longtake, vgg: Path) -> None:
    row = longtake("features", "show", "vgg", "--json").json
    assert (row["videos"], row["steps"], row["without_steps"], row["damaged"]) == (3, 4, 1, 0)
    assert (row["segments"], row["dtype"], row["shape"]) == (1, "float32", ["L", 4])
    assert row["files"] == sum(path.is_file() for path in vgg.rglob("*")) and row["imports"][0]["source"] == "rows.npz"
    told = longtake("features", "show", "imported/vgg").out
    assert "extractor key" in told and "imported:vgg" in told and "rows.npz" in told and "[L, 4]" in told
    assert "[L, 4] float32" in longtake("features", "list").out


def test_names_must_be_known_and_single(longtake: Longtake, vgg: Path) -> None:
    unknown = longtake("features", "show", "resnet")
    assert unknown.code == 2 and "there is no feature store 'resnet'; there are imported/vgg" in unknown.err
    shutil.copytree(vgg, vgg.parents[1] / "other" / "vgg")
    twice = longtake("features", "show", "vgg")
    assert twice.code == 2 and "several feature stores are called 'vgg': imported/vgg, other/vgg" in twice.err
    assert longtake("features", "show", "other/vgg").code == 0


@pytest.mark.parametrize(("form", "made"), [("npy", "vgg"), ("hdf5", "vgg.h5")])
def test_an_export_imports_back(longtake: Longtake, tmp_path: Path, vgg: Path, form: str, made: str) -> None:
    told = longtake("features", "export", "vgg", "--to", form, "--json")
    assert told.code == 0 and told.json == {"path": made, "written": 3, "already": 0, "problems": []}
    assert "nothing to do, 3 already there" in longtake("features", "export", "vgg", "--to", form).out
    assert longtake("features", "import", "again", made).code == 0
    back = FeatureStore.open(vgg.parent / "again")
    assert back.dtype == np.float32 and back.view().read("silent").shape == (0, 4)
    assert all(np.array_equal(back.view().read(i), FeatureStore.open(vgg).view().read(i)) for i in ("a", "b", "silent"))
    (tmp_path / "ids.txt").write_text("b\nnobody\n")
    some = longtake("features", "export", "vgg", "--to", form, "--ids", "ids.txt", "--out", "some")
    assert some.code == 3 and "some: 1 written, 1 left out" in some.out and "nobody: has no row in 'vgg'" in some.err
    assert longtake("features", "export", "vgg", "--to", "csv").code == 2


def test_a_store_travels_through_a_shared_place(longtake: Longtake, tmp_path: Path, vgg: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: the extra 's3'")
    there = f"file://{tmp_path}/shared"
    sent = longtake("features", "push", "vgg", "--to", there, "--json")
    assert sent.code == 0 and sent.json["store"] == "imported/vgg" and sent.json["segments"] == 1
    assert "imported/vgg: nothing to do" in longtake("features", "push", "vgg", "--to", there).out
    came = longtake("features", "pull", "vgg", "--from", there, "--workspace", "elsewhere")
    assert came.code == 0 and "imported/vgg: 1 segment fetched" in came.out
    copy = FeatureStore.open(tmp_path / "elsewhere" / "features" / "imported" / "vgg")
    assert copy.digest() == FeatureStore.open(vgg).digest() and copy.verify() == []
    unknown = longtake("features", "pull", "resnet", "--from", there)
    assert unknown.code == 2 and "no feature store 'resnet'; there are imported/vgg" in unknown.err
    assert "give s3://bucket/prefix" in longtake("features", "push", "vgg", "--to", "somewhere").err


def test_a_store_that_cannot_be_opened_is_a_problem_beside_the_others(longtake: Longtake, vgg: Path) -> None:
    (vgg.parent / "broken").mkdir()
    (vgg.parent / "broken" / "zarr.json").write_text("{")
    answer = longtake("features", "verify", "--json")
    assert answer.code == 1 and [(p["store"], p["kind"]) for p in answer.json] == [("imported/broken", "store")]
    assert longtake("features", "verify", "--drop").code == 1


def test_the_likeliest_classes_of_videos_are_named(longtake: Longtake, tmp_path: Path) -> None:
    folder = Workspace.open(tmp_path / "longtake-workspace").features / "clips"
    rows = np.zeros((2, 400), np.float16)
    rows[:, 6], rows[0, 378] = 0.5, 0.25
    for name, weights, output in (("actions", "pretrained", "classes"), ("own", "a.pth", "classes"), ("motion", "random", "")):
        provenance = {"extractor_key": name, "options": {"net": "i3d", "weights": weights, "output": output}}
        with FeatureStore.create(folder / name, provenance=provenance).writer() as writer:
            writer.add("dog", "k", rows, None, False)
            writer.add("empty", "k", rows[:0], None, False)
    (row,) = longtake("features", "classes", "actions", "--top", 2, "--json").json
    named = [{"class": "arm wrestling", "probability": 0.5}, {"class": "walking the dog", "probability": 0.125}]
    assert row == {"video": "dog", "classes": named}
    assert "dog  arm wrestling 50%, walking the dog 12%" in longtake("features", "classes", "actions", "dog", "--top", 2).out
    assert "class 6 50%" in longtake("features", "classes", "own").out, "whose classes these are is not known"
    nobody = longtake("features", "classes", "actions", "cat")
    assert nobody.code == 2 and "there is no video 'cat'" in nobody.err
    none = longtake("features", "classes", "motion")
    assert none.code == 2 and "'output: classes'" in none.err
