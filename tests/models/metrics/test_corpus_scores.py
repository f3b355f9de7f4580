"""Corpus scores on toys whose values can be worked out by hand."""

from __future__ import annotations

import math
import random

import pytest

from models.metrics.corpus import METRICS, SCORES, CaptionScorer, score_corpus

TRUTH = {
    "a": ["a red ball moves left", "the ball goes left"],
    "b": ["a green star spins fast", "a star is spinning"],
    "c": ["the blue box grows", "a box gets bigger"],
}


def test_the_first_reference_itself_has_a_perfect_bleu_and_rouge() -> None:
    scores = score_corpus({video: references[0] for video, references in TRUTH.items()}, TRUTH)
    assert tuple(scores.corpus) == METRICS
    for name in ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L"):
        assert scores.corpus[name] == pytest.approx(1.0, abs=1e-6)
    assert scores.corpus["CIDEr"] > 4


def test_bleu_and_rouge_of_one_caption_equal_their_formulas() -> None:
    scores = score_corpus({"a": "a red ball"}, {"a": ["a red ball moves left"]})
    brevity = math.exp(1 - 5 / 3)
    assert scores.corpus["BLEU-1"] == pytest.approx(brevity, rel=1e-6)
    assert scores.corpus["BLEU-2"] == pytest.approx(brevity, rel=1e-6)
    precision, recall, beta = 1.0, 3 / 5, 1.2
    assert scores.corpus["ROUGE-L"] == pytest.approx(
        (1 + beta**2) * precision * recall / (recall + beta**2 * precision), rel=1e-9
    )


def test_cider_of_one_shared_word_equals_its_formula() -> None:
    # Unigrams only can match. idf = ln(2 videos / df): "cat" and "dog" ln 2 each, "a" 0. Without bigrams in common and
    # with the same length, CIDEr = 10 * mean over n of the cosines = 10 / 4 * cosine of the unigrams.
    scores = score_corpus({"x": "a cat", "y": "a dog"}, {"x": ["cat a"], "y": ["dog a"]})
    assert scores.corpus["CIDEr"] == pytest.approx(10 / 4, rel=1e-9)
    assert scores.per_video["x"]["CIDEr"] == pytest.approx(10 / 4, rel=1e-9)


def test_per_video_scores_go_with_their_videos_in_any_order() -> None:
    hypotheses = {"c": "the blue box grows", "a": "nothing of it", "b": "a star spins"}
    scores = score_corpus(hypotheses, TRUTH)
    again = score_corpus(dict(sorted(hypotheses.items())), TRUTH)
    assert scores == again and sorted(scores.per_video) == ["a", "b", "c"]
    assert scores.per_video["c"]["BLEU-4"] == pytest.approx(1.0, abs=1e-6)
    assert scores.per_video["a"]["ROUGE-L"] == 0 and scores.per_video["a"]["CIDEr"] == 0
    assert scores.corpus["CIDEr"] == pytest.approx(sum(row["CIDEr"] for row in scores.per_video.values()) / 3)


def test_empty_captions_score_nothing_and_harm_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    scores = score_corpus({"a": "", "b": "", "c": ""}, TRUTH)
    assert all(value == pytest.approx(0, abs=1e-6) for value in scores.corpus.values())
    mixed = score_corpus({"a": "", "b": "a green star spins fast", "c": "the blue box grows"}, TRUTH)
    assert mixed.per_video["b"]["CIDEr"] > 4 and mixed.per_video["a"]["CIDEr"] == 0
    assert capsys.readouterr().out == ""


def test_a_video_without_references_is_named() -> None:
    with pytest.raises(ValueError, match=r"2 of 3 .*: d, e"):
        score_corpus({"a": "x", "d": "y", "e": "z"}, {**TRUTH, "e": [" "]})
    with pytest.raises(ValueError, match="no captions"):
        score_corpus({}, TRUTH)


def test_cider_is_given_under_both_of_its_names() -> None:
    scores = score_corpus({"a": "a red ball", "b": "a star"}, TRUTH)
    assert scores.corpus["CIDEr-D"] == scores.corpus["CIDEr"] > 0
    assert scores.per_video["a"]["CIDEr-D"] == scores.per_video["a"]["CIDEr"]


def test_without_java_and_jars_the_reasons_stand_where_the_scores_would() -> None:
    with CaptionScorer(meteor=False, spice_jars=None) as scorer:
        scored = scorer.score({"a": "a red ball"}, TRUTH)()
    assert scored.metrics()["METEOR"] is None and scored.metrics()["SPICE"] is None
    assert scored.not_computed.keys() == {"METEOR", "SPICE"} and "CoreNLP" in scored.not_computed["SPICE"]
    assert tuple(scored.metrics()) == SCORES


@pytest.mark.parametrize("empty", [0.0, 0.3], ids=["every reference has words", "some references are empty"])
def test_every_score_equals_pycocoevalcaps(empty: float) -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    draw = random.Random(3)
    words = "a the red blue ball box star moves spins left right on screen with noise".split()  # noqa: SIM905

    def sentence() -> str:
        return " ".join(draw.choices(words, k=draw.randint(1, 12)))

    words += ["1\xa01/2"]  # one word to ROUGE-L, two to the others, as in the tokenizer's output
    truth = {
        f"v{n}": [sentence(), *("" if draw.random() < empty else sentence() for _ in range(draw.randint(0, 5)))]
        for n in range(40)
    }
    said = {video: "" if draw.random() < empty else sentence() for video in truth}
    ours = score_corpus(said, truth)
    ids = sorted(truth)
    truth, one = {id: truth[id] for id in ids}, {id: [said[id]] for id in ids}
    bleu, each = Bleu(4).compute_score(truth, one, verbose=0)
    rouge, rouge_each = Rouge().compute_score(truth, one)
    cider, cider_each = Cider().compute_score(truth, one)
    assert list(ours.corpus.values()) == pytest.approx([*bleu, rouge, cider, cider], abs=1e-12)
    for name, column in zip(METRICS, [*each, rouge_each, cider_each, cider_each], strict=True):
        assert [ours.per_video[id][name] for id in ids] == pytest.approx(list(column), abs=1e-12)
