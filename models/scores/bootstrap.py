"""How sure a corpus score is: bootstrap intervals over videos, and paired comparisons of two captioners.

Videos are drawn with replacement; document frequencies stay those of the whole set. Corpus BLEU is computed anew from the
drawn videos' counts, because it is not a mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.scores.bleu import BleuCounts
from models.scores.corpus import METRICS, CorpusScores

DRAWS = 1000


@dataclass(frozen=True)
class Difference:
    """Of two captioners on the same videos: ours minus the other's, its 95 % interval, and the share of draws in which the
    sign is the other way (a one-sided p-value)."""

    value: float
    low: float
    high: float
    p: float


def intervals(scores: CorpusScores, draws: int = DRAWS, seed: int = 0) -> dict[str, tuple[float, float]]:
    """metric -> (low, high): 95 % of the corpus scores of drawn sets lie between them."""
    drawn = _drawn_scores(scores, _draw(len(scores.per_video), draws, seed))
    return {name: (float(low), float(high)) for name, (low, high) in zip(METRICS, _middle(drawn).T, strict=True)}


def compare(ours: CorpusScores, others: CorpusScores, draws: int = DRAWS, seed: int = 0) -> dict[str, Difference]:
    """metric -> how much better `ours` is than `others`; both must have scored the same videos."""
    if ours.per_video.keys() != others.per_video.keys():
        raise ValueError("two sets of captions can only be compared on the same videos")
    weights = _draw(len(ours.per_video), draws, seed)
    drawn = _drawn_scores(ours, weights) - _drawn_scores(others, weights)
    found = {}
    for name, values, (low, high) in zip(METRICS, drawn.T, _middle(drawn).T, strict=True):
        value = ours.corpus[name] - others.corpus[name]
        against = float((values <= 0).mean() if value > 0 else (values >= 0).mean())
        found[name] = Difference(value, float(low), float(high), against)
    return found


def _draw(videos: int, draws: int, seed: int) -> NDArray[np.float64]:
    """How often each video is drawn: (draws, videos)."""
    return np.random.default_rng(seed).multinomial(videos, np.full(videos, 1 / videos), draws).astype(np.float64)


def _drawn_scores(scores: CorpusScores, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(draws, videos) -> corpus scores of every draw, in the order of METRICS: (draws, 6)."""
    rows = [scores.per_video[video] for video in sorted(scores.per_video)]
    means = np.array([[row["ROUGE-L"], row["CIDEr"]] for row in rows])
    counts = scores.counts
    bleu = BleuCounts.of_sums(
        weights @ counts.correct, weights @ counts.guesses, weights @ counts.lengths, weights @ counts.closest
    )
    return np.hstack([bleu, weights @ means / weights.shape[1]])


def _middle(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.quantile(drawn, [0.025, 0.975], axis=0)
