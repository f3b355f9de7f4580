"""METEOR 1.5 in numpy, from the 23 numbers that Java counts for each caption: the same scores (to 1e-12) for all bootstrap draws
at once. Corpus METEOR is a function of summed counts; only aligning words with references needs Java."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# English, "rank" task: how recall outweighs precision, how word order counts, how content words outweigh function words
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_MATCHERS = np.array([1.0, 0.6, 0.8, 0.6])  # exact, stem, synonym, paraphrase


def summable(statistics: NDArray[Any]) -> NDArray[np.float64]:
    """(N, 23) -> (N, 23) whose sums give corpus METEOR: a caption that equals its reference adds no chunk, as in Java."""
    counts = statistics.astype(np.float64)
    counts[_unbroken(counts), 20] = 0.0
    return counts


def meteor_of(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Statistics (S, 23) of captions or sums of `summable` ones -> METEOR (S,); 0 where nothing matches."""
    lengths, function_words = counts[:, 0:2], counts[:, 2:4]
    stages = counts[:, 4:20].reshape(-1, 4, 2, 2)  # matcher, content or function words, caption or reference
    matches = _MATCHERS @ (_DELTA * stages[:, :, 0] + (1 - _DELTA) * stages[:, :, 1])  # (S, 2)
    totals = _DELTA * (lengths - function_words) + (1 - _DELTA) * function_words
    found = (matches > 0).all(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = (matches / totals).T
        mean = 1 / ((1 - _ALPHA) / precision + _ALPHA / recall)
        broken = np.where(_unbroken(counts), 0.0, counts[:, 20] / counts[:, 21:].mean(1))
        return np.where(found, mean * (1 - _GAMMA * broken**_BETA), 0.0)


def _unbroken(counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Captions whose every word matches the reference's in one piece."""
    return (counts[:, 20] == 1) & (counts[:, 21:] == counts[:, :2]).all(1)
