"""N-grams as integers, and in how many videos of a corpus each occurs.

An n-gram (n = 1 to 4) is one uint64: each id plus one in 16 bits, the first word highest. So keys of shorter n-grams are smaller
than those of longer ones, no key is 0, and sorted keys are sorted by n first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.metrics.compiling import kernel
from models.metrics.sentences import Sentences, VideoCaptions

ORDERS = 4
_EMPTY = np.uint64(0)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads keys that differ in few bits
_WORD = np.uint64(16)


class Profile(NamedTuple):
    """The distinct n-grams of each sentence, sorted: keys (E,) with tf (E,); those of sentence i are starts[i]:starts[i + 1]."""

    keys: NDArray[np.uint64]
    tf: NDArray[np.int32]
    starts: NDArray[np.int64]


def profile(sentences: Sentences) -> Profile:
    return Profile(*_profile(sentences.tokens, sentences.starts))


@kernel
def _profile(tokens, starts):
    most = ORDERS * len(tokens)
    keys, tf = np.empty(most, np.uint64), np.empty(most, np.int32)
    edges = np.zeros(len(starts), np.int64)
    end = 0
    for i in range(len(starts) - 1):
        begin, length = starts[i], starts[i + 1] - starts[i]
        for n in range(min(ORDERS, length)):
            count = length - n
            run = keys[end : end + count]
            for at in range(count):
                key = _EMPTY
                for step in range(n + 1):
                    key = (key << _WORD) | np.uint64(tokens[begin + at + step] + np.uint64(1))
                run[at] = key
            if count > 48:
                run.sort()
            else:  # insertion: captions are short, and a call of sort costs more than it does
                for at in range(1, count):
                    key = run[at]
                    back = at
                    while back > 0 and run[back - 1] > key:
                        run[back] = run[back - 1]
                        back -= 1
                    run[back] = key
            last = end - 1  # distinct keys move to the front of the run; what is behind them is overwritten later
            for at in range(count):
                key = run[at]
                if at > 0 and keys[last] == key:
                    tf[last] += 1
                else:
                    last += 1
                    keys[last] = key
                    tf[last] = 1
            end = last + 1
        edges[i + 1] = end
    return keys[:end], tf[:end], edges


@dataclass(frozen=True)
class DocumentFrequencies:
    """keys (K,) rising, counts (K,): the number of videos (of `videos`) whose references contain the n-gram."""

    keys: NDArray[np.uint64]
    counts: NDArray[np.int32]
    videos: int

    def __post_init__(self) -> None:
        if self.keys.shape != self.counts.shape or self.keys.dtype != np.uint64:
            raise ValueError(f"{len(self.keys)} n-grams ({self.keys.dtype}) cannot have {len(self.counts)} counts")
        if (self.keys[1:] <= self.keys[:-1]).any() or (len(self.keys) and self.keys[0] == 0):
            raise ValueError("the n-grams of document frequencies must be distinct and sorted")
        if self.videos < 1 or (len(self.counts) and (self.counts.min() < 1 or self.counts.max() > self.videos)):
            raise ValueError(f"document frequencies must be from 1 to the number of videos, {self.videos}")

    @classmethod
    def count(cls, references: VideoCaptions, grams: Profile | None = None) -> DocumentFrequencies:
        """grams: the n-grams of the references, if they are counted already."""
        grams = profile(references.sentences) if grams is None else grams
        keys, counts = np.unique(_distinct_in_videos(grams.keys, grams.starts[references.videos]), return_counts=True)
        return cls(keys, counts.astype(np.int32), len(references))

    @cached_property
    def idf(self) -> NDArray[np.float64]:
        """ln(videos) - ln(max(1, df)) of each n-gram, (K,)."""
        return np.log(float(self.videos)) - np.log(np.maximum(1.0, self.counts))

    def idf_of(self, keys: NDArray[np.uint64], idf: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """The idf of any n-grams, (E,) -> (E,); one that no video has counts as if one had. Where some are known already, only
        the others (NaN in `idf`) are looked up, in place."""
        idf = np.full(len(keys), np.nan) if idf is None else idf
        _find(keys, idf, *self._table, np.log(float(self.videos)))
        return idf

    @cached_property
    def _table(self) -> tuple[NDArray[np.uint64], NDArray[np.float64], np.uint64]:
        """Open addressing, at most half full; a key and its idf lie side by side, so that a look-up costs one cache miss."""
        bits = max(4, int(2 * len(self.keys)).bit_length())
        table = np.zeros((1 << bits, 2), np.uint64)
        weights, shift = table.view(np.float64), np.uint64(64 - bits)
        _fill(self.keys, self.idf, table, weights, shift)
        return table, weights, shift


@kernel
def _distinct_in_videos(keys, edges):
    """Sentences' keys, edges (V + 1,) of videos in them -> the distinct keys of each video, one video after another."""
    out = np.empty_like(keys)
    end = 0
    for video in range(len(edges) - 1):
        chunk = keys[edges[video] : edges[video + 1]].copy()
        chunk.sort()
        for at in range(len(chunk)):
            if at == 0 or chunk[at] != chunk[at - 1]:
                out[end] = chunk[at]
                end += 1
    return out[:end]


@kernel
def _fill(keys, idf, table, weights, shift):
    mask = len(table) - 1
    for i in range(len(keys)):
        slot = np.int64((keys[i] * _GOLDEN) >> shift)
        while table[slot, 0] != _EMPTY:
            slot = (slot + 1) & mask
        table[slot, 0] = keys[i]
        weights[slot, 1] = idf[i]


@kernel
def _find(keys, idf, table, weights, shift, unseen):
    mask = len(table) - 1
    for i in range(len(keys)):
        if np.isnan(idf[i]):
            slot = np.int64((keys[i] * _GOLDEN) >> shift)
            while table[slot, 0] != _EMPTY and table[slot, 0] != keys[i]:
                slot = (slot + 1) & mask
            idf[i] = weights[slot, 1] if table[slot, 0] == keys[i] else unseen
