"""The commands about feature stores: importing, listing, verifying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
    spoilt = longtake("features", "verify", "--json")
    assert spoilt.code == 1 and [problem["item"] for problem in spoilt.json] == ["a"]


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
        (
            ["vgg", "rows.npz", "--data", ".", "--kind", "youtube"],
            2,
            "there is no kind of data set 'youtube'; kinds: msvd",
        ),
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
