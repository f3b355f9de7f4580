"""ROUGE-L on token ids: the longest common subsequence with the best reference, recall and precision joined; from 0 to 1.

The subsequence is found 64 words at a time with the bits of integers (Hyyrö 2004): each bit of a column says whether the length
grows there, and one addition moves the whole column on."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.metrics.compiling import kernel
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import MAX_WORDS, Sentences

BETA = 1.2
_ZERO, _ONE = np.uint64(0), np.uint64(1)


def rouge_l(
    index: NgramIndex, hypotheses: Sentences, video_of: ArrayLike, left_out: ArrayLike | None = None
) -> NDArray[np.float64]:
    """N hypotheses, the video (N,) of each -> scores (N,). left_out (N,): a reference of the video that does not count.

    As in pycocoevalcap, which splits an empty text into one empty word: empty captions are of length 1 and equal."""
    videos, left = index.check(hypotheses, video_of, left_out)
    sentences = index.references.sentences
    return _rouge_l(
        hypotheses.tokens, hypotheses.starts, videos, left, index.references.videos, sentences.tokens, sentences.starts
    )


@kernel
def _rouge_l(tokens, starts, video_of, left_out, videos, reference_tokens, reference_starts):
    scores = np.zeros(len(video_of))
    longest = 0
    for i in range(len(video_of)):
        longest = max(longest, starts[i + 1] - starts[i])
    slots = np.zeros(MAX_WORDS, np.int32)  # word -> its row of positions; row 0 is that of words not in the hypothesis
    positions = np.zeros((longest + 1, (longest + 63) // 64), np.uint64)
    column = np.empty((longest + 63) // 64, np.uint64)
    for i in range(len(video_of)):
        begin, end = starts[i], starts[i + 1]
        words = (end - begin + 63) // 64
        rows = 0
        for at in range(begin, end):
            if slots[tokens[at]] == 0:
                rows += 1
                slots[tokens[at]] = rows
                positions[rows, :words] = _ZERO
            bit = at - begin
            positions[slots[tokens[at]], bit >> 6] |= _ONE << np.uint64(bit & 63)
        precision, recall = 0.0, 0.0
        first = videos[video_of[i]]
        for reference in range(first, videos[video_of[i] + 1]):
            if reference - first == left_out[i]:
                continue
            length = reference_starts[reference + 1] - reference_starts[reference]
            column[:words] = ~_ZERO
            for at in range(reference_starts[reference], reference_starts[reference + 1]):
                row = slots[reference_tokens[at]]
                if row == 0:
                    continue
                carry = _ZERO
                for word in range(words):
                    old = column[word]
                    hits = old & positions[row, word]
                    moved = old + hits
                    over = moved < old
                    moved += carry
                    carry = _ONE if over or moved < carry else _ZERO
                    column[word] = moved | (old - hits)
            common = 0
            for word in range(words):
                zeros = ~column[word]
                while zeros != _ZERO:
                    zeros &= zeros - _ONE
                    common += 1
            if length == 0 and end == begin:
                common = 1
            precision = max(precision, common / max(1, end - begin))
            recall = max(recall, common / max(1, length))
        if precision > 0.0 and recall > 0.0:
            scores[i] = (1.0 + BETA**2) * precision * recall / (recall + BETA**2 * precision)
        for at in range(begin, end):
            slots[tokens[at]] = 0
    return scores
