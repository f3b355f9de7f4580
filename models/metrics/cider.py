"""CIDEr-D on token ids: n-grams of 1 to 4 words weighed by tf-idf, clipped, with a penalty for another length; from 0 to 10.

What pycocoevalcap calls CIDEr *is* CIDEr-D (clipping, Gaussian penalty, sigma 6), with the document frequencies of the references
it is given. So there is one function: with an index whose references are their own corpus it gives that CIDEr, with one that has
the document frequencies of a training split it gives the reward."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.metrics.compiling import kernel
from models.metrics.ngrams import ORDER_EDGES, NgramIndex, tfidf_norms
from models.metrics.sentences import Sentences

SIGMA = 6.0


def cider_d(
    index: NgramIndex, hypotheses: Sentences, video_of: ArrayLike, left_out: ArrayLike | None = None
) -> NDArray[np.float64]:
    """N hypotheses, the video (N,) of each -> scores (N,). left_out (N,): a reference of the video that does not count.

    An empty hypothesis scores 0, as does one without any reference to compare with."""
    match = index.match(hypotheses, video_of, left_out)
    grams, rows = match.grams, match.rows
    idf = index.frequencies.idf_of(grams.keys, _known_idf(rows, index.idf))
    return _cider_d(
        *grams, rows, idf, tfidf_norms(*grams, idf), hypotheses.lengths, match.videos, match.left_out,
        index.references.videos, index.references.sentences.lengths,
        index.postings.starts, index.postings.reference, index.postings.tf, index.norms,
    )  # fmt: skip


@kernel
def _known_idf(rows, idf):
    """NaN where no reference of the video has the n-gram: it is looked up in the corpus."""
    known = np.empty(len(rows))
    for entry in range(len(rows)):
        known[entry] = idf[rows[entry]] if rows[entry] >= 0 else np.nan
    return known


@kernel
def _cider_d(
    keys, tf, starts, rows, idf, norms, lengths, video_of, left_out, videos, reference_lengths, posting_starts,
    posting_reference, posting_tf, reference_norms,
):  # fmt: skip
    scores = np.zeros(len(video_of))
    most, longest = 0, 0
    for i in range(len(video_of)):
        most = max(most, videos[video_of[i] + 1] - videos[video_of[i]])
        longest = max(longest, lengths[i])
        for reference in range(videos[video_of[i]], videos[video_of[i] + 1]):
            longest = max(longest, reference_lengths[reference])
    penalties = np.exp(-(np.arange(longest + 1.0) ** 2) / (2.0 * SIGMA * SIGMA))
    dots = np.zeros((most, 4))
    for i in range(len(video_of)):
        first = videos[video_of[i]]
        count = videos[video_of[i] + 1] - first
        dots[:count] = 0.0
        n = 0
        for entry in range(starts[i], starts[i + 1]):
            while n < 3 and keys[entry] >= ORDER_EDGES[n]:
                n += 1
            if rows[entry] >= 0:
                squared = idf[entry] * idf[entry]
                for posting in range(posting_starts[rows[entry]], posting_starts[rows[entry] + 1]):
                    theirs = posting_tf[posting]
                    dots[posting_reference[posting], n] += min(tf[entry], theirs) * theirs * squared
        total = 0.0
        for reference in range(count):
            if reference != left_out[i]:
                cosines = 0.0
                for n in range(4):
                    scale = norms[i, n] * reference_norms[first + reference, n]
                    if scale > 0.0:
                        cosines += dots[reference, n] / scale
                # the reference code's "length" is the number of bigrams
                theirs = max(0, reference_lengths[first + reference] - 1)
                total += cosines * penalties[abs(max(0, lengths[i] - 1) - theirs)]
        counted = count - (1 if left_out[i] >= 0 else 0)
        if counted > 0:
            scores[i] = 10.0 * total / 4.0 / counted
    return scores
