"""One integer index over references that serves weights, rewards and metrics alike.

For each video the sorted distinct n-grams of its references, and for each of them the postings: which references have it, how
often. With them the idf of every n-gram and the tf-idf norm of every reference, so that scoring only meets what matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from models.metrics.compiling import kernel
from models.metrics.document_frequencies import ORDERS, DocumentFrequencies, Profile, profile
from models.metrics.sentences import Sentences, VideoCaptions

ORDER_EDGES = np.array([1 << 16, 1 << 32, 1 << 48], np.uint64)  # a key below edge n has at most n + 1 words


class Postings(NamedTuple):
    """N-grams of video v: rows keys_of[v]:keys_of[v + 1] of keys (K,), rising within a video; of row k: postings
    starts[k]:starts[k + 1], each the number of a reference within its video (P,) and how often it has the n-gram, tf (P,)."""

    keys_of: NDArray[np.int64]
    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    reference: NDArray[np.int32]
    tf: NDArray[np.int32]


class Match(NamedTuple):
    """The n-grams of N hypotheses found in the references of their videos (N,): rows (E,) of the postings, -1 if no reference
    of the video has it; left_out (N,) the number within its video of a reference that does not count, -1 for none."""

    grams: Profile
    rows: NDArray[np.int64]
    videos: NDArray[np.int64]
    left_out: NDArray[np.int64]


@dataclass(frozen=True)
class NgramIndex:
    """Made by `build`. idf (K,) of the rows of the postings; norms (C, 4) of the references' tf-idf by order."""

    references: VideoCaptions
    frequencies: DocumentFrequencies
    postings: Postings
    idf: NDArray[np.float64]
    norms: NDArray[np.float64]

    @classmethod
    def build(
        cls, references: VideoCaptions | Sequence[Sequence[Sequence[int]]], frequencies: DocumentFrequencies | None = None
    ) -> NgramIndex:
        """videos -> references -> token ids. Without document frequencies of a corpus the references are the corpus."""
        if not isinstance(references, VideoCaptions):
            references = VideoCaptions.from_lists(references)
        grams = profile(references.sentences)
        frequencies = frequencies or DocumentFrequencies.count(references, grams)
        postings = Postings(*_post(*grams, references.videos))
        norms = tfidf_norms(*grams, frequencies.idf_of(grams.keys))
        return cls(references, frequencies, postings, frequencies.idf_of(postings.keys), norms)

    def match(self, hypotheses: Sentences, video_of: ArrayLike, left_out: ArrayLike | None = None) -> Match:
        """N hypotheses, the video (N,) of each and, if wanted, a reference (N,) of that video that does not count."""
        videos, left = self.check(hypotheses, video_of, left_out)
        grams = profile(hypotheses)
        rows = _find_rows(grams.keys, grams.starts, videos, self.postings.keys_of, self.postings.keys)
        return Match(grams, rows, videos, left)

    def check(
        self, hypotheses: Sentences, video_of: ArrayLike, left_out: ArrayLike | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """video_of and left_out (-1 where nothing is left out) as (N,) arrays whose numbers exist."""
        videos = np.ascontiguousarray(video_of, np.int64)
        if videos.shape != (len(hypotheses),):
            raise ValueError(f"{len(hypotheses)} hypotheses need as many video numbers, not {videos.shape}")
        if videos.size and (videos.min() < 0 or videos.max() >= len(self.references)):
            given = f"video numbers {videos.min()} to {videos.max()} given"
            raise ValueError(f"{given}, but the index has {len(self.references)} videos")
        if left_out is None:
            return videos, np.full(len(videos), -1, np.int64)
        left = np.ascontiguousarray(left_out, np.int64)
        if left.shape != videos.shape or (left < -1).any() or (left >= self.references.counts[videos]).any():
            raise ValueError("a reference left out must be one of its video's, counted from 0, or -1 for none")
        return videos, left


@kernel
def _post(keys, tf, starts, videos):
    row_count = 0
    out_keys = np.empty_like(keys)
    out_starts = np.zeros(len(keys) + 1, np.int64)
    out_reference = np.empty(len(keys), np.int32)
    out_tf = np.empty_like(tf)
    keys_of = np.zeros(len(videos), np.int64)
    owners = np.empty(len(keys), np.int32)
    for video in range(len(videos) - 1):
        for caption in range(videos[video], videos[video + 1]):
            owners[starts[caption] : starts[caption + 1]] = caption - videos[video]
        begin, end = starts[videos[video]], starts[videos[video + 1]]
        order = np.argsort(keys[begin:end], kind="mergesort")  # stable: postings stay in the order of the references
        for at in range(end - begin):
            entry = begin + order[at]
            if at == 0 or keys[entry] != out_keys[row_count - 1]:
                out_keys[row_count] = keys[entry]
                out_starts[row_count] = begin + at
                row_count += 1
            out_reference[begin + at] = owners[entry]
            out_tf[begin + at] = tf[entry]
        keys_of[video + 1] = row_count
    out_starts[row_count] = len(keys)
    return keys_of, out_keys[:row_count].copy(), out_starts[: row_count + 1].copy(), out_reference, out_tf


@kernel
def _find_rows(keys, starts, video_of, keys_of, index_keys):
    rows = np.empty(len(keys), np.int64)
    for i in range(len(starts) - 1):
        low, end = keys_of[video_of[i]], keys_of[video_of[i] + 1]
        for entry in range(starts[i], starts[i + 1]):
            key = keys[entry]
            while low + 16 < end and index_keys[low + 16] < key:  # both sides are sorted: strides, then steps
                low += 16
            while low < end and index_keys[low] < key:
                low += 1
            rows[entry] = low if low < end and index_keys[low] == key else -1
    return rows


@kernel
def tfidf_norms(keys, tf, starts, idf):
    """N sentences' n-grams (a Profile), idf (E,) -> Euclidean norms of their tf-idf by order (N, 4)."""
    norms = np.zeros((len(starts) - 1, ORDERS))
    for i in range(len(starts) - 1):
        order = 0
        for entry in range(starts[i], starts[i + 1]):
            while order < ORDERS - 1 and keys[entry] >= ORDER_EDGES[order]:
                order += 1
            weight = tf[entry] * idf[entry]
            norms[i, order] += weight * weight
        for n in range(ORDERS):
            norms[i, n] = np.sqrt(norms[i, n])
    return norms
