"""METEOR 1.5 in numpy, from the 23 numbers that Java counts for each caption: what intervals and comparisons are made of.

Corpus METEOR is a function of summed counts. Drawing captions a thousand times over would need a Java call a draw; this gives the
same figures (to 1e-12, held against Java's own) for all draws at once. Only aligning words with references needs Java."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.metrics.java import JavaFailed
from models.metrics.meteor import Meteor, _chunks, _clean, _evaluation, _number

# English, "rank" task: how recall outweighs precision, how word order counts, how content words outweigh function words
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_MATCHERS = np.array([1.0, 0.6, 0.8, 0.6])  # exact, stem, synonym, paraphrase
_NUMBERS = 23


@dataclass(frozen=True)
class MeteorScores:
    """corpus and each video's METEOR as Java gives them; statistics (N, 23) in the order of the sorted ids."""

    corpus: float
    per_video: dict[str, float]
    statistics: NDArray[np.float64]


class CountingMeteor(Meteor):
    """A METEOR process that also tells what its scores are made of."""

    def count(self, hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> MeteorScores:
        """video id -> caption, video id -> references -> scores with their statistics."""
        if not hypotheses:
            raise ValueError("there are no captions to score")
        ids = sorted(hypotheses)
        questions = [_whole_question(id, hypotheses[id], references.get(id, ())) for id in ids]
        with self._lock:
            lines = [line for part in _chunks(questions) for line in self._ask(part, len(part))]
            replies = self._ask([_evaluation(lines)], len(ids) + 1)
        *each, corpus = map(_number, replies)
        return MeteorScores(corpus, dict(zip(ids, each, strict=True)), _parsed(lines))


def _whole_question(id: str, caption: str, references: Sequence[str]) -> str:
    """Empty references included, as pycocoevalcap asks: where nothing matches, the first one's length counts."""
    if not any(map(str.strip, references)):
        raise ValueError(f"'{id}' has no reference to score against")
    return " ||| ".join(("SCORE", *map(_clean, references), _clean(caption)))


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


def _parsed(lines: Sequence[str]) -> NDArray[np.float64]:
    try:
        table = np.array([line.split() for line in lines], np.float64)
    except ValueError:
        table = np.empty((0, 0))
    if table.shape != (len(lines), _NUMBERS):
        raise JavaFailed(f"METEOR counted something else than {_NUMBERS} numbers a caption; please report the captions")
    return table
