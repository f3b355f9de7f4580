"""GLD's local discriminative reward: the sentence's CIDEr-D for each word, and more for words of rare phrases (eq. 9, 10).

An n-gram of the sample is selected where its tf-idf reaches a threshold; every word of it that is itself not too common gets
what the n-gram adds to the cosine with the references, at all its occurrences. The defaults are those of the authors' runs: raw
term frequencies (eq. 9 divides them by the sentence's length, and then hardly an n-gram reaches 5), the mean over references,
times 10, with CIDEr-D's penalty for another length. Rewards are (N, T); after a sentence's end they are the sentence-level
reward, with which the words of a longer sentence are compared."""

from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from models.metrics.cider import SIGMA, cider_d
from models.metrics.compiling import kernel
from models.metrics.ngrams import ORDER_EDGES, NgramIndex, tfidf_norms
from models.metrics.sentences import MAX_WORDS, Sentences
from models.options import Options
from models.rewards.consensus import as_sentences
from models.types import EOS, PAD

_WORD, _MASK, _ONE = np.uint64(16), np.uint64(0xFFFF), np.uint64(1)


class LocalOptions(Options):
    """Eq. 10: words of rare phrases that the references have earn more."""

    kind: Literal["local"] = "local"
    phrase_threshold: float = 5.0
    """lambda: the tf-idf (natural logarithm) from which an n-gram of the sample is selected."""
    word_threshold: float = 1.0
    """eta: words whose own tf-idf is not above this keep the sentence's reward."""
    end: Literal["bare", "mean"] = "bare"
    """What the end of a caption earns beside the sentence's reward: nothing, as printed, or the mean of what its words earn, so
    that going on is not always worth more than ending."""
    paper_literal: bool = False
    """The equations as printed: term frequencies divided by the number of n-grams, n-grams strictly above the threshold,
    the sum over references, no length penalty, no factor of 10."""


class DifferenceOptions(Options):
    """LD-Diff: a word earns what appending it adds to the sentence's CIDEr-D (Table III)."""

    kind: Literal["difference"] = "difference"


class StrengthenOptions(Options):
    """Strengthen: every word earns the sentence's CIDEr-D with logarithms to base 2 (Table III). The base scales all tf-idf
    alike and so cancels in the cosines: this is the plain reward, and the paper's figures for it differ by chance."""

    kind: Literal["strengthen"] = "strengthen"


WordRewardOptions = Annotated[LocalOptions | DifferenceOptions | StrengthenOptions, Field(discriminator="kind")]


class LocalDiscriminative:
    """samples (N, T), video_of (N,): the index of each sample's video -> rewards of the words (N, T)."""

    def __init__(self, index: NgramIndex, options: WordRewardOptions | None = None, eos: bool = True):
        self.index, self.options, self.eos = index, options or LocalOptions(), eos

    def __call__(self, samples: Tensor, video_of: Tensor) -> Tensor:
        captions, videos = as_sentences(samples, self.eos), video_of.cpu().numpy()
        rewards = np.repeat(cider_d(self.index, captions, videos)[:, None], samples.shape[1], axis=1)
        if isinstance(self.options, LocalOptions):
            bonus = phrase_bonus(self.index, captions, videos, self.options, samples.shape[1])
            rewards += bonus if self.options.end == "bare" else with_mean_at_end(bonus, samples.cpu().numpy())
        elif isinstance(self.options, DifferenceOptions):
            rewards += prefix_differences(self.index, captions, videos, samples.shape[1])
        return torch.from_numpy(rewards).to(samples.device, torch.float32)


def phrase_bonus(
    index: NgramIndex, captions: Sentences, video_of: NDArray[np.int64], options: LocalOptions, width: int
) -> NDArray[np.float64]:
    """What eq. 10 adds to the sentence's reward: N captions -> (N, width), 0 after their ends."""
    match = index.match(captions, video_of)
    known = match.rows >= 0  # none, where no reference has a word
    idf = np.full(match.rows.shape, np.nan)
    idf[known] = index.idf[match.rows[known]]
    index.frequencies.idf_of(match.grams.keys, idf)
    return _bonus(
        *match.grams, match.rows, idf, tfidf_norms(*match.grams, idf), captions.tokens, captions.starts, match.videos,
        index.references.videos, index.references.sentences.lengths, index.postings.starts, index.postings.reference,
        index.postings.tf, index.norms, options.phrase_threshold, options.word_threshold, options.paper_literal, width,
    )  # fmt: skip


def with_mean_at_end(bonus: NDArray[np.float64], samples: NDArray[np.int64]) -> NDArray[np.float64]:
    """bonus and samples (N, T) -> the same, but from a caption's EOS on it is the mean over the caption's words."""
    words = (samples != EOS) & (samples != PAD)
    words &= np.cumsum(samples == EOS, axis=1) == 0
    mean = (bonus * words).sum(1) / np.maximum(1, words.sum(1))
    return np.where(words, bonus, mean[:, None])


def prefix_differences(index: NgramIndex, captions: Sentences, video_of: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    """How much each word adds to the CIDEr-D of the caption so far: N captions -> (N, width), 0 after their ends."""
    lengths = captions.lengths
    rows, positions = np.nonzero(valid := np.arange(width) < lengths[:, None])
    sizes = positions + 1
    edges = np.concatenate([[0], np.cumsum(sizes)])
    tokens = captions.tokens[np.arange(edges[-1]) + np.repeat(captions.starts[rows] - edges[:-1], sizes)]
    so_far = np.zeros((len(captions), width))
    so_far[valid] = cider_d(index, Sentences(tokens, edges), video_of[rows])
    return np.where(valid, np.diff(so_far, axis=1, prepend=0.0), 0.0)


@kernel
def _bonus(
    keys, tf, starts, rows, idf, norms, tokens, token_starts, video_of, videos, reference_lengths, posting_starts,
    posting_reference, posting_tf, reference_norms, phrase_threshold, word_threshold, literal, width,
):  # fmt: skip
    bonus = np.zeros((len(video_of), width))
    longest = 0
    for i in range(len(video_of)):
        longest = max(longest, token_starts[i + 1] - token_starts[i])
        for reference in range(videos[video_of[i]], videos[video_of[i] + 1]):
            longest = max(longest, reference_lengths[reference])
    penalties = 10.0 * np.exp(-(np.arange(longest + 1.0) ** 2) / (2.0 * SIGMA * SIGMA))
    earned = np.zeros(MAX_WORDS)  # of each word of the sentence at hand
    for i in range(len(video_of)):
        begin, length = token_starts[i], token_starts[i + 1] - token_starts[i]
        first = videos[video_of[i]]
        count = videos[video_of[i] + 1] - first
        n = 0
        for entry in range(starts[i], starts[i + 1]):
            while n < 3 and keys[entry] >= ORDER_EDGES[n]:
                n += 1
            if rows[entry] < 0:
                continue
            share = 1.0 / (length - n) if literal else 1.0
            weight = tf[entry] * idf[entry] * share
            if weight < phrase_threshold or (literal and weight == phrase_threshold):
                continue
            gain = 0.0
            for posting in range(posting_starts[rows[entry]], posting_starts[rows[entry] + 1]):
                reference = first + posting_reference[posting]
                their_length = reference_lengths[reference]
                scale = norms[i, n] * reference_norms[reference, n]
                if scale > 0.0:
                    if literal:
                        theirs = posting_tf[posting] * idf[entry] / (their_length - n)
                        gain += min(weight, theirs) * theirs / (scale * share / (their_length - n))
                    else:
                        theirs = posting_tf[posting] * idf[entry]
                        gain += min(weight, theirs) * theirs / scale * penalties[abs(length - their_length)] / count
            if gain > 0.0:
                rest = keys[entry]
                seen = keys[entry]
                for position in range(n + 1):
                    word = rest & _MASK
                    rest >>= _WORD
                    again = False  # a word that the n-gram has twice is in it once
                    other = seen
                    for _ in range(position):
                        again |= (other & _MASK) == word
                        other >>= _WORD
                    if not again:
                        earned[np.int64(word - _ONE)] += gain
        for entry in range(starts[i], starts[i + 1]):
            if keys[entry] >= ORDER_EDGES[0]:
                break
            share = 1.0 / length if literal else 1.0
            if tf[entry] * idf[entry] * share <= word_threshold:
                earned[np.int64(keys[entry] - _ONE)] = 0.0
        for position in range(min(length, width)):
            bonus[i, position] = earned[tokens[begin + position]]
        for position in range(length):
            earned[tokens[begin + position]] = 0.0
    return bonus
