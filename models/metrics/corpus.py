"""Corpus scores of one caption per video: BLEU-1 to 4, ROUGE-L and CIDEr, equal to pycocoevalcap's and far faster; METEOR and
SPICE by Java, if wanted and if there is a Java.

Texts must be tokenised already: lower case, words apart by one space, no punctuation. BLEU and ROUGE-L are from 0 to 1,
CIDEr from 0 to 10, with the document frequencies of the references given. What pycocoevalcap and everybody else reports as CIDEr
has CIDEr-D's clipping and length penalty: it is one number, given under both names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from models.metrics.bleu import BleuCounts, count_bleu
from models.metrics.cider import cider_d
from models.metrics.java import JavaFailed
from models.metrics.meteor import MeteorScores, shared_meteor
from models.metrics.ngrams import NgramIndex
from models.metrics.rouge import rouge_l
from models.metrics.sentences import Sentences, VideoCaptions
from models.metrics.spice import spice

METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "CIDEr-D")
# in the order people look at them
SCORES = ("CIDEr", "BLEU-4", "METEOR", "ROUGE-L", "SPICE", "CIDEr-D", "BLEU-1", "BLEU-2", "BLEU-3")


@dataclass(frozen=True)
class CorpusScores:
    """corpus: metric -> value; per_video: video id -> metric -> value. Corpus BLEU and METEOR are not the means of the
    videos': counts and meteor, in the order of the sorted ids, are what they are made of."""

    corpus: dict[str, float]
    per_video: dict[str, dict[str, float]]
    counts: BleuCounts = field(compare=False, repr=False)
    meteor: MeteorScores | None = field(default=None, compare=False, repr=False)

    def with_meteor(self, meteor: MeteorScores) -> CorpusScores:
        return replace(self.with_score("METEOR", meteor.corpus, meteor.per_video), meteor=meteor)

    def with_score(self, name: str, value: float, per_video: Mapping[str, float]) -> CorpusScores:
        """These and one more score."""
        more = {video_id: row | {name: per_video[video_id]} for video_id, row in self.per_video.items()}
        return replace(self, corpus=self.corpus | {name: value}, per_video=more)


def score_corpus(hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> CorpusScores:
    """video id -> caption, video id -> references of (at least) the same videos -> scores. An empty caption scores 0; an
    empty reference counts as one, as in pycocoevalcap, but one reference of a video must have a word."""
    ids = sorted(hypotheses)
    if not ids:
        raise ValueError("there are no captions to score")
    truth = {video_id: references.get(video_id, ()) for video_id in ids}
    bare = [video_id for video_id in ids if not any(map(str.strip, truth[video_id]))]
    if bare:
        videos = f"{len(bare)} of {len(ids)} captioned videos"
        raise ValueError(f"{videos} have no reference to score against: {', '.join(bare[:5])}")
    texts = [hypotheses[video_id] for video_id in ids]
    index, captions = _indexed(texts, list(truth.values()), str.split)
    rows = np.arange(len(ids))
    bleu, cider = count_bleu(index, captions, rows), cider_d(index, captions, rows)
    # pycocoevalcap's ROUGE-L alone takes a no-break space for a part of a word, such as the tokenizer leaves in "1 1/2".
    if any("\xa0" in text for text in chain(texts, *truth.values())):
        index, captions = _indexed(texts, list(truth.values()), lambda text: text.split(" "))
    rouge = rouge_l(index, captions, rows)
    means = [float(column.mean()) for column in (rouge, cider, cider)]
    corpus = dict(zip(METRICS, [*bleu.corpus().tolist(), *means], strict=True))
    table = np.column_stack([bleu.sentences(), rouge, cider, cider]).tolist()
    per_video = {video_id: dict(zip(METRICS, row, strict=True)) for video_id, row in zip(ids, table, strict=True)}
    return CorpusScores(corpus, per_video, bleu)


@dataclass(frozen=True)
class ScoredCaptions:
    """The scores of one set of captions, and why some are missing."""

    scores: CorpusScores
    not_computed: dict[str, str]
    spice_parts: dict[str, float] = field(default_factory=dict)
    """SPICE of objects, relations, attributes ... alone, where SPICE is computed"""

    def metrics(self) -> dict[str, float | None]:
        """Every score by name, None for those that are not computed."""
        return {name: self.scores.corpus.get(name) for name in SCORES}


class CaptionScorer:
    """All scores of captions, METEOR's in the background: Java loads from the moment that this is opened and counts while the
    caller computes something else. Scores that fail in Java are missing, with the reason. A context manager."""

    def __init__(self, meteor: bool, spice_jars: Path | None):
        self._wants_meteor, self._spice_jars = meteor, spice_jars

    def __enter__(self) -> CaptionScorer:
        with ExitStack() as opened:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="meteor")
            opened.callback(self._thread.shutdown, cancel_futures=True)
            if self._wants_meteor:
                self._meteor = opened.enter_context(shared_meteor())  # closed first: that ends what the thread waits for
                self._meteor.start()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def meteor_scores(self, captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> MeteorScores:
        """METEOR alone, here and now; it must have been asked for."""
        return self._meteor.score(captions, references)

    def score(self, captions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Callable[[], ScoredCaptions]:
        """Captions (video id -> words) -> a function that waits for METEOR and returns all scores. The others are computed
        here; call the function before this is closed."""
        meteor = self._thread.submit(self._meteor.score, captions, references) if self._wants_meteor else None
        scores, not_computed, parts = score_corpus(captions, references), {}, {}
        if self._spice_jars:
            try:
                found = spice(captions, references, self._spice_jars)
                scores = scores.with_score("SPICE", found.corpus, found.per_video)
                parts = found.parts
            except JavaFailed as error:
                not_computed["SPICE"] = str(error)
        else:
            not_computed["SPICE"] = "no folder with the CoreNLP 3.6.0 jars was given"

        def finished() -> ScoredCaptions:
            if meteor is None:
                return ScoredCaptions(scores, {"METEOR": "not asked for"} | not_computed, parts)
            try:
                return ScoredCaptions(scores.with_meteor(meteor.result()), not_computed, parts)
            except JavaFailed as error:  # every other metric does without Java
                return ScoredCaptions(scores, {"METEOR": str(error)} | not_computed, parts)

        return finished


def _indexed(
    captions: Sequence[str], truth: Sequence[Sequence[str]], split: Callable[[str], list[str]]
) -> tuple[NgramIndex, Sentences]:
    """The references of every video as an index, and the captions as token ids of the same vocabulary."""
    token_ids: dict[str, int] = {}
    texts = [split(text) for references in truth for text in references]
    edges = np.cumsum([0, *(len(references) for references in truth)])
    index = NgramIndex.build(VideoCaptions(Sentences.from_words(texts, token_ids), edges))
    return index, Sentences.from_words([split(text) for text in captions], token_ids)
