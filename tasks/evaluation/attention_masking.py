"""The scores of a captioner whose smallest attention weights are masked (G2L, Fig. 6).

An attention that has learnt what matters loses little until most of its weights are masked. Every attention of the captioner is
masked, over time, space and regions alike; with all weights masked it captions without seeing the video."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions
from models.layers.attention import dropping_smallest_weights
from models.metrics.corpus import score_corpus
from storage.records import Split
from storage.text.references import References
from tasks.framework.feature_access import FeatureAccess
from tasks.inference.generate import caption_videos

MEASURED = ("CIDEr", "BLEU-4", "ROUGE-L")
_GREEDY = SearchOptions(width=1)  # whatever the recipe's search: the points of a curve are compared with each other


def attention_masking(
    captioner: Captioner,
    access: FeatureAccess,
    references: References,
    split: Split,
    ids: Sequence[str],
    shares: Sequence[float],
    device: str,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[float]] | None:
    """{"shares": those given, "CIDEr": the score of greedy captions at each of them, ...}; None without any attention."""
    truth = references.sentences(split)
    curve: dict[str, list[float]] = {"shares": list(shares), **{name: [] for name in MEASURED}}
    for share in shares:
        with dropping_smallest_weights(captioner, share):
            found = caption_videos(captioner, access, references.vocabulary, ids, _GREEDY, device, progress)
        if all(row.attention is None for row in found):
            return None
        scores = score_corpus({row.video_id: row.caption for row in found}, truth).corpus
        for name in MEASURED:
            curve[name].append(scores[name])
    return curve
