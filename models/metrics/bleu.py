"""BLEU-1 to 4 on token ids, of sentences and of a corpus, from the same counts; from 0 to 1.

As in pycocoevalcap: the reference length is the closest one (of two equally close the shorter), and tiny constants keep a
quotient without n-grams defined, so that a sentence without a 4-gram in common has a small BLEU-4, not 0."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.metrics.compiling import kernel
from models.metrics.ngrams import ORDER_EDGES, NgramIndex
from models.metrics.sentences import Sentences

_TINY, _SMALL = 1e-15, 1e-9


@dataclass(frozen=True)
class BleuCounts:
    """correct (N, 4) n-grams also in a reference, clipped; lengths (N,) of hypotheses; closest (N,) reference lengths."""

    correct: NDArray[np.int64]
    lengths: NDArray[np.int64]
    closest: NDArray[np.int64]

    def all(self) -> tuple[NDArray[np.int64], ...]:
        """correct, the n-grams that each hypothesis has (N, 4), lengths, closest: what `bleu_of_counts` takes."""
        return self.correct, np.maximum(0, self.lengths[:, None] - np.arange(4)), self.lengths, self.closest

    def sentences(self) -> NDArray[np.float64]:
        """BLEU-1 to 4 of each sentence, (N, 4)."""
        return bleu_of_counts(*self.all())

    def corpus(self) -> NDArray[np.float64]:
        """BLEU-1 to 4 of all sentences together, (4,): quotients of the sums, not the mean of the sentences'."""
        return bleu_of_counts(*(values.sum(0, keepdims=True) for values in self.all()))[0]


def count_bleu(index: NgramIndex, hypotheses: Sentences, video_of: ArrayLike, left_out: ArrayLike | None = None) -> BleuCounts:
    """N hypotheses, the video (N,) of each. left_out (N,): a reference of the video that does not count."""
    match = index.match(hypotheses, video_of, left_out)
    correct, closest = _count(
        *match.grams, match.rows, hypotheses.lengths, match.videos,
        match.left_out, index.references.videos, index.references.sentences.lengths, index.postings.starts,
        index.postings.reference, index.postings.tf,
    )  # fmt: skip
    return BleuCounts(correct, hypotheses.lengths, closest)


def bleu_4(
    index: NgramIndex, hypotheses: Sentences, video_of: ArrayLike, left_out: ArrayLike | None = None
) -> NDArray[np.float64]:
    """BLEU-4 of each sentence, (N,); 0 where there is no reference to compare with."""
    counts = count_bleu(index, hypotheses, video_of, left_out)
    return np.where(counts.closest < 0, 0.0, counts.sentences()[:, 3])


def bleu_of_counts(
    correct: NDArray[Any], guesses: NDArray[Any], lengths: NDArray[Any], closest: NDArray[Any]
) -> NDArray[np.float64]:
    """BLEU-1 to 4 of sentences from their counts, or of corpora from summed ones: (S, 4), (S, 4), (S,), (S,) -> (S, 4)."""
    precision = np.cumprod((correct + _TINY) / (guesses + _SMALL), axis=1) ** (1 / np.arange(1, 5))
    ratio = (lengths + _TINY) / (np.maximum(closest, 0) + _SMALL)
    return precision * np.exp(np.minimum(0.0, 1 - 1 / ratio))[:, None]


@kernel
def _count(
    keys, tf, starts, rows, lengths, video_of, left_out, videos, reference_lengths, posting_starts, posting_reference,
    posting_tf,
):  # fmt: skip
    correct = np.zeros((len(video_of), 4), np.int64)
    closest = np.full(len(video_of), -1, np.int64)
    for i in range(len(video_of)):
        n = 0
        for entry in range(starts[i], starts[i + 1]):
            while n < 3 and keys[entry] >= ORDER_EDGES[n]:
                n += 1
            if rows[entry] >= 0:
                most = 0
                for posting in range(posting_starts[rows[entry]], posting_starts[rows[entry] + 1]):
                    if posting_tf[posting] > most and posting_reference[posting] != left_out[i]:
                        most = posting_tf[posting]
                        if most >= tf[entry]:
                            break
                correct[i, n] += min(most, tf[entry])
        first = videos[video_of[i]]
        for reference in range(first, videos[video_of[i] + 1]):
            if reference - first != left_out[i]:
                length = reference_lengths[reference]
                nearer = abs(length - lengths[i]) - abs(closest[i] - lengths[i])
                if closest[i] < 0 or nearer < 0 or (nearer == 0 and length < closest[i]):
                    closest[i] = length
    return correct, closest
