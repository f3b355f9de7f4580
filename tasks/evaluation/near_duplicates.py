"""Near duplicates among the captioned videos, and whether their captions tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.metrics.corpus import score_corpus
from models.neighbours import NearestItems
from tasks.find_neighbours import pool
from tasks.framework.feature_access import FeatureAccess
from tasks.reporting.report_page import Verdict


@dataclass(frozen=True)
class DuplicatePair:
    """Two videos, the distance of their mean features, and whether their captions tell them apart."""

    first: str
    second: str
    distance: float
    verdict: Verdict


def captioned_duplicates(
    access: FeatureAccess,
    feature: str,
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    most: int,
    device: str,
) -> list[DuplicatePair]:
    """The closest pairs of captioned videos, each video in one pair at most, closest first."""
    ids = [id for id in sorted(captions) if id in references]
    pooled = pool(access, feature, ids) if most and len(ids) > 1 else None
    if pooled is None or len(pooled.ids) < 2:
        return []
    nearest = NearestItems(pooled.vectors, 3, device=device).of_items(0, len(pooled.ids))
    candidates = sorted(
        (float(distance), min(row, other), max(row, other))
        for row, (others, distances) in enumerate(zip(nearest.indices.tolist(), nearest.distances, strict=True))
        for other, distance in zip(others, distances, strict=True)
    )
    taken: set[int] = set()
    pairs: list[tuple[str, str, float]] = []
    for distance, first, second in candidates:
        if len(pairs) < most and not taken & {first, second}:
            taken |= {first, second}
            pairs.append((pooled.ids[first], pooled.ids[second], distance))
    verdicts = pair_verdicts([(first, second) for first, second, _ in pairs], captions, references)
    return [DuplicatePair(*pair, verdict) for pair, verdict in zip(pairs, verdicts, strict=True)]


def pair_verdicts(
    pairs: Sequence[tuple[str, str]], captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> list[Verdict]:
    """For disjoint pairs: whether a video's caption has a higher CIDEr against its references than the other video's."""
    if not pairs:
        return []
    own = {id: caption for id, caption in captions.items() if id in references}
    swapped = dict(own)
    for first, second in pairs:
        swapped[first], swapped[second] = own[second], own[first]
    own_scores, swapped_scores = (score_corpus(predictions, references).per_video for predictions in (own, swapped))
    verdicts: list[Verdict] = []
    for pair in pairs:
        right = sum(own_scores[id]["CIDEr"] > swapped_scores[id]["CIDEr"] for id in pair)
        same = own[pair[0]] == own[pair[1]]
        verdicts.append("same caption" if same else ("mixed up", "one of two", "told apart")[right])
    return verdicts
