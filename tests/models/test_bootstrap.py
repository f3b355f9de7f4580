"""Bootstrap intervals: they surround the score, shrink with more videos, and a clear difference is found."""

from __future__ import annotations

import random

import numpy as np
import pytest

from models.scores.bootstrap import _draw, _drawn_scores, compare, intervals
from models.scores.corpus import METRICS, CorpusScores, score_corpus

WORDS = [f"w{n}" for n in range(30)]


def world(videos: int, noise: float, seed: int = 0) -> CorpusScores:
    """Captions that copy a reference but for a share of wrong words."""
    draw = random.Random(seed)
    truth = {f"v{n:03}": [" ".join(draw.choices(WORDS, k=8)) for _ in range(3)] for n in range(videos)}
    wrong = random.Random(seed + 1)
    said = {
        id: " ".join(wrong.choice(WORDS) if wrong.random() < noise else word for word in texts[0].split())
        for id, texts in truth.items()
    }
    return score_corpus(said, truth)


def test_drawing_every_video_once_gives_the_corpus_scores_themselves() -> None:
    scores = world(20, 0.3)
    (once,) = _drawn_scores(scores, np.ones((1, 20)))
    assert once.tolist() == pytest.approx([scores.corpus[name] for name in METRICS], abs=1e-12)


def test_every_draw_has_as_many_videos_as_the_set() -> None:
    assert set(_draw(17, 50, 3).sum(1)) == {17.0}


def test_intervals_surround_the_score_and_shrink_with_more_videos() -> None:
    small, large = world(15, 0.4), world(240, 0.4)
    for name in ("CIDEr", "ROUGE-L", "BLEU-1"):
        low, high = intervals(large)[name]
        assert low < large.corpus[name] < high
        wide = intervals(small)[name]
        assert high - low < (wide[1] - wide[0]) / 2


def test_a_clear_difference_is_found_and_no_difference_is_not() -> None:
    good, bad = world(60, 0.1), world(60, 0.6)
    found = compare(good, bad)["CIDEr"]
    assert found.low > 0 and found.p == 0 and found.low < found.value < found.high
    same = compare(good, good)["CIDEr"]
    assert same.value == same.low == same.high == 0 and same.p == 1


def test_other_videos_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="same videos"):
        compare(world(10, 0.1), world(11, 0.1))
