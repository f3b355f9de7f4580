"""Near duplicates among the captioned videos, and whether their captions tell them apart."""

from collections.abc import Mapping, Sequence

from models.metrics.corpus import score_corpus
from models.neighbours import NearestItems
from tasks.find_neighbours import pool
from tasks.framework.feature_access import FeatureAccess
from tasks.reporting.pages import Verdict


def captioned_duplicates(
    access: FeatureAccess,
    feature: str,
    captions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    most: int,
    device: str,
) -> list[tuple[tuple[str, str], tuple[float, Verdict]]]:
    """The closest pairs of captioned videos, each video in one pair at most, closest first: (two ids), (the distance of their
    mean features, whether their captions tell them apart)."""
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
    pairs: dict[tuple[str, str], float] = {}
    for distance, first, second in candidates:
        if len(pairs) < most and not taken & {first, second}:
            taken |= {first, second}
            pairs[pooled.ids[first], pooled.ids[second]] = distance
    verdicts = pair_verdicts(list(pairs), captions, references)
    return [(pair, (pairs[pair], verdict)) for pair, verdict in zip(pairs, verdicts, strict=True)]


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
