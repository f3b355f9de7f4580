"""Corpus scores of one caption a video: BLEU-1 to 4, ROUGE-L and CIDEr, by pycocoevalcap's own scorers (no Java).

Texts must be tokenised already: lower case, words apart by one space, no punctuation. BLEU and ROUGE-L are from 0 to 1,
CIDEr (with clipping and a length penalty, as everybody reports it) from 0 to 10; its document frequencies are those of the
references given."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr")


@dataclass(frozen=True)
class CorpusScores:
    """corpus: metric -> value; per_video: video id -> metric -> value. Corpus BLEU is not the mean of the videos'."""

    corpus: dict[str, float]
    per_video: dict[str, dict[str, float]]


def score_corpus(hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> CorpusScores:
    """video id -> caption, video id -> references of (at least) the same videos -> scores. An empty caption scores 0."""
    ids = sorted(hypotheses)
    if not ids:
        raise ValueError("there are no captions to score")
    truth = {video_id: [text for text in references.get(video_id, ()) if text.strip()] for video_id in ids}
    bare = [video_id for video_id in ids if not truth[video_id]]
    if bare:
        raise ValueError(
            f"{len(bare)} of {len(ids)} captioned videos have no reference to score against: {', '.join(bare[:5])}"
        )
    said = {video_id: [hypotheses[video_id]] for video_id in ids}
    with contextlib.redirect_stdout(io.StringIO()):  # the scorers talk
        bleu, bleu_each = Bleu(4).compute_score(truth, said, verbose=0)
        rouge, rouge_each = Rouge().compute_score(truth, said)
        cider, cider_each = Cider().compute_score(truth, said)
    columns = [*bleu_each, rouge_each, cider_each]
    corpus = {name: float(value) for name, value in zip(METRICS, [*bleu, rouge, cider], strict=True)}
    per_video = {
        video_id: {name: float(column[row]) for name, column in zip(METRICS, columns, strict=True)}
        for row, video_id in enumerate(ids)
    }
    return CorpusScores(corpus, per_video)
