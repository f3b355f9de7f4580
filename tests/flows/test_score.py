"""`longtake score` without Java: scores, intervals, a comparison, and items that only one side has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.score import score_files
from storage.errors import BadInput

TRUTH = {
    "a": ["A red ball moves left.", "the ball goes left"],
    "b": ["A green box grows!"],
    "c": ["a star is spinning"],
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    truth, good, bad = tmp_path / "truth.json", tmp_path / "good.json", tmp_path / "bad.jsonl"
    truth.write_text(json.dumps(TRUTH))
    good.write_text(json.dumps({"a": "a red ball moves left", "b": "a green box grows", "z": "not asked for"}))
    bad.write_text("\n".join(json.dumps({"video_id": id, "caption": "a dog"}) for id in ("a", "b")))
    return truth, good, bad


def test_captions_equal_to_references_after_tokenising_are_perfect(files: tuple[Path, Path, Path]) -> None:
    truth, good, _ = files
    (scored,) = score_files(good, truth, None, meteor=False).scored
    assert scored.items == 2 and scored.missing == ["c"]
    assert scored.scores["BLEU-4"] == pytest.approx(1, abs=1e-6)
    assert scored.intervals["CIDEr"][0] <= scored.scores["CIDEr"] <= scored.intervals["CIDEr"][1]
    assert scored.not_computed == {"METEOR": "not asked for"}


def test_two_files_are_compared_on_the_items_they_share(files: tuple[Path, Path, Path]) -> None:
    truth, good, bad = files
    found = CliRunner().invoke(app, ["score", str(good), str(truth), "--against", str(bad), "--no-meteor", "--json"])
    assert found.exit_code == 0
    answer = json.loads(found.stdout)
    assert answer["differences"]["CIDEr"]["value"] > 0
    assert [scored["items"] for scored in answer["scored"]] == [2, 2]


def test_files_about_other_items_say_how_their_ids_look(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"video9": "a ball"}))
    with pytest.raises(BadInput, match="'video9' there and 'a' here"):
        score_files(other, files[0], None, meteor=False)


def test_an_item_whose_references_have_no_word_is_not_scored(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    truth = tmp_path / "wordless.json"
    truth.write_text(json.dumps({**TRUTH, "b": ["..."]}))
    (scored,) = score_files(files[1], truth, None, meteor=False).scored
    assert scored.items == 1 and scored.scores["BLEU-4"] == pytest.approx(1, abs=1e-6)
    truth.write_text(json.dumps({"a": ["?"]}))
    with pytest.raises(BadInput, match=r"no reference .* has a word"):
        score_files(files[1], truth, None, meteor=False)
