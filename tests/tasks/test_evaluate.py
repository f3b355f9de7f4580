"""Evaluation alone: perfect captions score highest, and videos without captions are named."""

from __future__ import annotations

import pytest

from models.scores.java import NoJava
from storage.atomic import write_jsonl
from storage.references import References
from storage.results import read_captions, read_scores
from tests.tasks.toy_run import ToyRun


def test_scores_cover_every_captioned_video(toy: ToyRun) -> None:
    scores = read_scores(toy.scores().work().folder)
    assert scores["videos"] == 4 and len(scores["per_video"]) == 4 and scores["not_captioned"] == []
    assert set(scores["corpus"]) == {"BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"}


def test_captions_equal_to_references_score_highest_and_a_missing_one_is_named(toy: ToyRun) -> None:
    job, captions = toy.scores(), toy.captions()
    before = read_scores(job.work().folder)["corpus"]
    references = References(toy.text().work().folder).sentences("test")
    rows = read_captions(captions.work().folder)
    perfect = [{"video_id": row.video_id, "caption": references[row.video_id][0], "log_prob": 0.0} for row in rows[1:]]
    write_jsonl(captions.work().folder / "captions.jsonl", perfect)
    job.carry_out(force=True)
    scores = read_scores(job.work().folder)
    assert scores["not_captioned"] == [rows[0].video_id]
    assert scores["corpus"]["BLEU-4"] > 0.99 > before["BLEU-4"]


def test_meteor_is_computed_with_java_and_explained_without(toy: ToyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with_java = read_scores(toy.scores(meteor=True).work().folder)
    assert with_java["not_computed"] == {} and 0 <= with_java["corpus"]["METEOR"] < 1
    job = toy.scores(meteor=True)

    def none() -> None:
        raise NoJava("there is no Java here")

    monkeypatch.setattr("models.scores.java.find_java", none)
    job.carry_out(force=True)
    without = read_scores(job.work().folder)
    assert without["not_computed"] == {"METEOR": "there is no Java here"}
    assert {**without["corpus"], "METEOR": 0} == {**with_java["corpus"], "METEOR": 0}, "all the others are the same"
