"""Bootstrap intervals: they surround the score, shrink with more videos, and a clear difference is found."""

from __future__ import annotations

import random

import numpy as np
import pytest

from models.metrics import bootstrap
from models.metrics.bootstrap import LENGTH, _draws, _scores_of_draws, compare, compare_recalls, intervals, recall_intervals
from models.metrics.corpus import CorpusScores, score_corpus
from models.metrics.meteor import MeteorScores
from models.metrics.meteor_statistics import meteor_of, summable

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


# What Java counted for eight captions, and the scores it made of that: alone and all together.
COUNTED = (
    ("5 6 2 3 2 2 2 2 1 1 0 0 0 0 0 0 0 0 0 0 2 5 5", 0.41388921016683433),
    ("3 3 1 1 1 1 0 0 0 0 0 0 0 0 0 0 1 1 0 1 1 2 3", 0.3789696908701744),
    ("5 5 3 3 2 2 3 3 0 0 0 0 0 0 0 0 0 0 0 0 1 5 5", 1.0),
    ("1 2 1 1 0 0 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 1 1", 0.11267605633802819),
    ("3 3 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", 0.0),
    ("0 3 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", 0.0),
    ("5 3 2 1 0 0 0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 2 2", 0.15084305116494492),
    ("3 4 1 1 0 0 1 1 0 0 0 0 2 2 0 0 0 0 0 0 1 3 3", 0.31481249896066993),
)
TOGETHER = 0.27338132135340704


def with_meteor(scores: CorpusScores) -> CorpusScores:
    """The scores of a world of eight videos with Java's counts of eight others."""
    each = dict(zip(sorted(scores.per_video), (score for _, score in COUNTED), strict=True))
    statistics = np.array([line.split() for line, _ in COUNTED], np.float64)
    return scores.with_meteor(MeteorScores(TOGETHER, each, statistics))


def test_meteor_of_counts_equals_javas_for_each_caption_and_for_all() -> None:
    statistics = np.array([line.split() for line, _ in COUNTED], np.float64)
    assert meteor_of(statistics).tolist() == pytest.approx([score for _, score in COUNTED], abs=1e-12)
    assert meteor_of(summable(statistics).sum(0, keepdims=True)).item() == pytest.approx(TOGETHER, abs=1e-12)
    assert meteor_of(statistics.sum(0, keepdims=True)).item() != pytest.approx(TOGETHER, abs=1e-4), "chunks of perfect ones"


def test_drawing_every_video_once_gives_the_corpus_scores_themselves() -> None:
    scores = with_meteor(world(8, 0.3)).with_score("SPICE", 0.25, {f"v{n:03}": n / 14 for n in range(8)})
    once = {name: values.item() for name, values in _scores_of_draws(scores, np.ones((1, 8))).items()}
    assert once.pop(LENGTH) == 8
    assert once == pytest.approx(scores.corpus, abs=1e-12) and "METEOR" in once


def test_every_draw_has_as_many_videos_as_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(_draws(17, 50, 3)))
    assert whole.shape == (50, 17) and set(whole.sum(1)) == {17.0}
    monkeypatch.setattr(bootstrap, "_ENTRIES", 17 * 6)
    parts = list(_draws(17, 50, 3))
    assert len(parts) == 9 and (np.concatenate(parts) == whole).all(), "the blocks change nothing"


def test_meteor_has_an_interval_and_a_comparison() -> None:
    scores = with_meteor(world(8, 0.3))
    low, high = intervals(scores)["METEOR"]
    assert 0 < low < TOGETHER < high < 1
    assert "METEOR" in compare(scores, scores) and "METEOR" not in compare(scores, world(8, 0.3))


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
    assert found.low > 0 and found.p == pytest.approx(1 / 1001) and found.low < found.value < found.high
    same = compare(good, good)["CIDEr"]
    assert same.value == same.low == same.high == 0 and same.p == 1


def test_other_videos_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="same videos"):
        compare(world(10, 0.1), world(11, 0.1))


def test_recalls_have_intervals_and_are_compared_video_by_video() -> None:
    ours = {f"v{n}": 1 if n % 2 else 7 for n in range(200)}
    others = {f"v{n}": 1 if n % 4 == 1 else 9 for n in range(200)}
    low, high = recall_intervals(ours, (1, 10))["R@1"]
    assert low < 0.5 < high and high - low < 0.2 and recall_intervals(ours, (10,))["R@10"] == (1.0, 1.0)
    found = compare_recalls(ours, others, (1, 10))
    assert found["R@1"].value == pytest.approx(0.25) and found["R@1"].low > 0.15 and found["R@1"].p < 0.01
    assert found["R@10"].value == 0
    with pytest.raises(ValueError, match="same videos"):
        compare_recalls(ours, {"v1": 1}, (1,))
