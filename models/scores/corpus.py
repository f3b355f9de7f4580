"""Corpus scores of one caption a video: BLEU-1 to 4, ROUGE-L and CIDEr, equal to pycocoevalcap's and far faster.

Texts must be tokenised already: lower case, words apart by one space, no punctuation. BLEU and ROUGE-L are from 0 to 1,
CIDEr (with clipping and a length penalty, as everybody reports it) from 0 to 10; its document frequencies are those of the
references given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from models.scores.bleu import BleuCounts, count_bleu
from models.scores.cider import cider_d
from models.scores.ngrams import NgramIndex
from models.scores.rouge import rouge_l
from models.scores.sentences import Sentences, VideoCaptions

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr")


@dataclass(frozen=True)
class CorpusScores:
    """corpus: metric -> value; per_video: video id -> metric -> value. Corpus BLEU is not the mean of the videos': counts,
    in the order of the sorted ids, is what it is made of."""

    corpus: dict[str, float]
    per_video: dict[str, dict[str, float]]
    counts: BleuCounts = field(compare=False, repr=False)


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
    said = [hypotheses[video_id] for video_id in ids]
    index, captions = _numbered(said, [truth[video_id] for video_id in ids], str.split)
    rows = np.arange(len(ids))
    bleu, cider = count_bleu(index, captions, rows), cider_d(index, captions, rows)
    # pycocoevalcap's ROUGE-L alone takes a no-break space for a part of a word, such as the tokenizer leaves in "1 1/2".
    if any("\xa0" in text for video_id in ids for text in (hypotheses[video_id], *truth[video_id])):
        index, captions = _numbered(said, [truth[video_id] for video_id in ids], lambda text: text.split(" "))
    rouge = rouge_l(index, captions, rows)
    columns = [*bleu.sentences().T, rouge, cider]
    corpus = dict(zip(METRICS, [*bleu.corpus().tolist(), float(rouge.mean()), float(cider.mean())], strict=True))
    per_video = {
        video_id: {name: float(column[row]) for name, column in zip(METRICS, columns, strict=True)}
        for row, video_id in enumerate(ids)
    }
    return CorpusScores(corpus, per_video, bleu)


def _numbered(
    said: Sequence[str], truth: Sequence[Sequence[str]], split: Callable[[str], list[str]]
) -> tuple[NgramIndex, Sentences]:
    """The references of every video as an index, and the captions as ids in the same numbering."""
    numbers: dict[str, int] = {}
    texts = [split(text) for references in truth for text in references]
    edges = np.cumsum([0, *(len(references) for references in truth)])
    index = NgramIndex.build(VideoCaptions(Sentences.from_words(texts, numbers), edges))
    return index, Sentences.from_words([split(text) for text in said], numbers)
