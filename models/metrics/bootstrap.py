"""Bootstrap intervals of corpus scores over videos, and paired comparisons of two captioners.

Videos are drawn with replacement; document frequencies stay those of the whole set. Corpus BLEU and METEOR, no means, come
from the drawn videos' counts. UniCap and words in use have no interval: a drawn set repeats videos, so it always has fewer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.metrics.bleu import bleu_of_counts
from models.metrics.corpus import CorpusScores
from models.metrics.meteor_statistics import meteor_of, summable

DRAWS = 1000
LENGTH = "AvgLen"
_BLEU = tuple(f"BLEU-{n}" for n in range(1, 5))
_ENTRIES = 1 << 23  # of a block of draws: 64 MB, however many videos there are


@dataclass(frozen=True)
class Difference:
    """Of two captioners on the same videos: ours minus the other's, its 95 % interval, and a one-sided p-value: the share of
    draws in which the sign turns, with one more, so that it is never 0."""

    value: float
    low: float
    high: float
    p: float


def intervals(scores: CorpusScores, draws: int = DRAWS, seed: int = 0) -> dict[str, tuple[float, float]]:
    """metric -> (low, high): 95 % of the corpus scores of drawn sets lie between them. AvgLen has one too."""
    return {name: _middle(values) for name, values in _drawn(scores, draws, seed).items()}


def compare(ours: CorpusScores, others: CorpusScores, draws: int = DRAWS, seed: int = 0) -> dict[str, Difference]:
    """metric -> how much more `ours` has than `others`; both must have scored the same videos."""
    if ours.per_video.keys() != others.per_video.keys():
        raise ValueError("two sets of captions can only be compared on the same videos")
    theirs = _drawn(others, draws, seed)  # the same seed draws the same videos
    value_ours, value_theirs = ({**x.corpus, LENGTH: float(x.counts.lengths.mean())} for x in (ours, others))
    found = {}
    for name, values in _drawn(ours, draws, seed).items():
        if name in theirs:
            found[name] = _difference(value_ours[name] - value_theirs[name], values - theirs[name], draws)
    return found


def recall_intervals(
    ranks: Mapping[str, int], cutoffs: Sequence[int], draws: int = DRAWS, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """video -> the rank of its own video for its caption -> R@K -> (low, high), 95 % of drawn sets."""
    return {name: _middle(values) for name, values in _drawn_recalls(ranks, cutoffs, draws, seed).items()}


def compare_recalls(
    ours: Mapping[str, int], others: Mapping[str, int], cutoffs: Sequence[int], draws: int = DRAWS, seed: int = 0
) -> dict[str, Difference]:
    """R@K -> how much more `ours` has than `others`, paired by video; both must have ranked the same videos."""
    if ours.keys() != others.keys():
        raise ValueError("two retrievals can only be compared on the same videos")
    theirs, found = _drawn_recalls(others, cutoffs, draws, seed), {}
    for k, (name, values) in zip(cutoffs, _drawn_recalls(ours, cutoffs, draws, seed).items(), strict=True):
        value = float(np.mean([ours[id] <= k for id in ours]) - np.mean([others[id] <= k for id in others]))
        found[name] = _difference(value, values - theirs[name], draws)
    return found


def _drawn_recalls(ranks: Mapping[str, int], cutoffs: Sequence[int], draws: int, seed: int) -> dict[str, NDArray[np.float64]]:
    hits = np.array([[ranks[id] <= k for k in cutoffs] for id in sorted(ranks)], np.float64)
    drawn = np.concatenate([weights @ hits / len(hits) for weights in _draws(len(hits), draws, seed)])
    return {f"R@{k}": drawn[:, n] for n, k in enumerate(cutoffs)}


def _difference(value: float, change: NDArray[np.float64], draws: int) -> Difference:
    against = int((change <= 0).sum() if value > 0 else (change >= 0).sum())
    return Difference(value, *_middle(change), (against + 1) / (draws + 1))


def _drawn(scores: CorpusScores, draws: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """metric -> its corpus value in every draw, (draws,)."""
    blocks = [_scores_of_draws(scores, weights) for weights in _draws(len(scores.per_video), draws, seed)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _draws(videos: int, draws: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each video is drawn: blocks of (some draws, videos)."""
    draw, uniform, most = np.random.default_rng(seed), np.full(videos, 1 / videos), max(1, _ENTRIES // videos)
    for start in range(0, draws, most):
        yield draw.multinomial(videos, uniform, min(most, draws - start)).astype(np.float64)


def _scores_of_draws(scores: CorpusScores, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """(draws, videos) -> metric -> corpus scores (draws,)."""
    counts, videos = scores.counts, weights.shape[1]
    found = {LENGTH: weights @ counts.lengths / videos}
    found |= dict(zip(_BLEU, bleu_of_counts(*(weights @ x for x in counts.all())).T, strict=True))
    if scores.meteor:
        found["METEOR"] = meteor_of(weights @ summable(scores.meteor.statistics))
    rows = [scores.per_video[video] for video in sorted(scores.per_video)]
    for name in scores.corpus.keys() - found.keys():
        found[name] = weights @ np.array([row[name] for row in rows]) / videos
    return {name: found[name] for name in (*scores.corpus, LENGTH)}


def _middle(drawn: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)
