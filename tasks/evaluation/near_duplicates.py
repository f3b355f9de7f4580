"""Near twins among the captioned videos, and whether their captions tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.metrics.corpus import score_corpus
from models.neighbours import NearestItems
from tasks.find_neighbours import pool
from tasks.framework.feature_access import FeatureAccess
from tasks.reporting.page import Verdict


@dataclass(frozen=True)
class DuplicatePair:
    """Two videos, how far apart their features are on average, and what became of their captions."""

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
    found = sorted(
        (float(distance), min(row, other), max(row, other))
        for row, (others, distances) in enumerate(zip(nearest.indices.tolist(), nearest.distances, strict=True))
        for other, distance in zip(others, distances, strict=True)
    )
    taken: set[int] = set()
    pairs: list[tuple[str, str, float]] = []
    for distance, first, second in found:
        if len(pairs) < most and not taken & {first, second}:
            taken |= {first, second}
            pairs.append((pooled.ids[first], pooled.ids[second], distance))
    verdicts = judge([(first, second) for first, second, _ in pairs], captions, references)
    return [DuplicatePair(*pair, verdict) for pair, verdict in zip(pairs, verdicts, strict=True)]


def judge(
    pairs: Sequence[tuple[str, str]], captions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> list[Verdict]:
    """Of disjoint pairs: whether CIDEr against a video's own references is higher for its caption than for its twin's."""
    if not pairs:
        return []
    own = {id: caption for id, caption in captions.items() if id in references}
    swapped = dict(own)
    for first, second in pairs:
        swapped[first], swapped[second] = own[second], own[first]
    mine, other = (score_corpus(said, references).per_video for said in (own, swapped))
    verdicts: list[Verdict] = []
    for pair in pairs:
        if own[pair[0]] == own[pair[1]]:
            verdicts.append("same caption")
            continue
        right = sum(mine[id]["CIDEr"] > other[id]["CIDEr"] for id in pair)
        verdicts.append(("mixed up", "one of two", "told apart")[right])
    return verdicts
