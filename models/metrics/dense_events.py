"""Scores of captions of events in long videos, as densevid_eval computes them for ActivityNet Captions.

At every tIoU, a caption of an event is paired with each reference whose time overlaps enough, one pair each; a caption without
such a reference is paired with a word that nobody says. The pairs of a video are a corpus of their own (CIDEr's document
frequencies too), the scores of the videos are averaged, and so are those of the tIoUs. Published figures are these."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from models.metrics.corpus import score_corpus
from models.metrics.meteor import MeteorScores
from models.metrics.meteor_statistics import meteor_of, summable

TIOUS = (0.3, 0.5, 0.7, 0.9)
METRICS = ("CIDEr", "BLEU-4", "ROUGE-L", "BLEU-1", "BLEU-2", "BLEU-3")
_UNMATCHED = "qqunmatchedqq"  # densevid_eval draws a random word here

ScoreMeteor = Callable[[Mapping[str, str], Mapping[str, Sequence[str]]], MeteorScores]


class Event(NamedTuple):
    """A stretch of a video, in seconds, and its caption: tokenised words."""

    start: float
    end: float
    caption: str


def temporal_iou(one: Event, other: Event) -> float:
    """Intersection over union of two stretches of time."""
    shared = max(0.0, min(one.end, other.end) - max(one.start, other.start))
    union = min(max(one.end, other.end) - min(one.start, other.start), one.end - one.start + other.end - other.start)
    return shared / (union + 1e-8)


def dense_scores(
    predictions: Mapping[str, Sequence[Event]],
    references: Mapping[str, Sequence[Event]],
    tious: Sequence[float] = TIOUS,
    meteor: ScoreMeteor | None = None,
) -> dict[str, dict[str, float]]:
    """video -> its captioned events, video -> the events of all reference files -> {"0.3": metric -> score, ..., "mean": ...}.
    Videos without a prediction count nothing at all. METEOR, where a scorer is given, is asked for all pairs at once."""
    if not predictions:
        raise ValueError("there are no captioned events to score")
    pairs = {
        tiou: {video: _pairs(events, references.get(video, ()), tiou) for video, events in predictions.items()} for tiou in tious
    }
    statistics = {} if meteor is None else _statistics(meteor, {pair for at in pairs.values() for p in at.values() for pair in p})
    found = {}
    for tiou, videos in pairs.items():
        each = [_score(video, statistics) for video in videos.values()]
        found[str(tiou)] = {name: float(np.mean([scores[name] for scores in each])) for name in each[0]}
    return found | {"mean": {name: float(np.mean([at[name] for at in found.values()])) for name in found[str(tious[0])]}}


def _pairs(events: Sequence[Event], references: Sequence[Event], tiou: float) -> list[tuple[str, str]]:
    """(caption, reference) of a video's events at a tIoU."""
    found = []
    for event in events:
        matching = [other.caption for other in references if temporal_iou(event, other) >= tiou]
        found += [(event.caption, caption) for caption in matching or [_UNMATCHED]]
    return found


def _score(pairs: Sequence[tuple[str, str]], statistics: Mapping[tuple[str, str], np.ndarray]) -> dict[str, float]:
    """The pairs of one video -> metric -> score."""
    captions = {f"{n:06d}": caption for n, (caption, _) in enumerate(pairs)}
    scored = score_corpus(captions, {f"{n:06d}": [reference] for n, (_, reference) in enumerate(pairs)}).corpus
    found = {name: scored[name] for name in METRICS}
    if statistics:
        found["METEOR"] = float(meteor_of(np.sum([statistics[pair] for pair in pairs], axis=0, keepdims=True))[0])
    return found


def _statistics(meteor: ScoreMeteor, pairs: set[tuple[str, str]]) -> dict[tuple[str, str], np.ndarray]:
    """What METEOR counts for each pair, in a form that can be added up."""
    ordered = sorted(pairs)
    captions = {f"{n:09d}": caption for n, (caption, _) in enumerate(ordered)}
    scored = meteor(captions, {f"{n:09d}": [reference] for n, (_, reference) in enumerate(ordered)})
    return dict(zip(ordered, summable(scored.statistics), strict=True))
