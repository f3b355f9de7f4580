"""Captions as token ids, end to end in one array: what the score kernels read. Whether an end-of-sentence id belongs to a caption
is the caller's convention: it must be the same for hypotheses, references and document frequencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_WORDS = 65_535  # an n-gram of four ids, each plus one, must fit in 64 bits


@dataclass(frozen=True)
class Sentences:
    """tokens (T,) uint16, starts (N + 1,) int64: sentence i is tokens[starts[i]:starts[i + 1]]. Sentences may be empty."""

    tokens: NDArray[np.uint16]
    starts: NDArray[np.int64]

    @classmethod
    def from_flat(cls, tokens: ArrayLike, starts: ArrayLike) -> Sentences:
        """ids (T,) and starts (N + 1,), checked."""
        ids, edges = np.asarray(tokens), np.ascontiguousarray(starts, np.int64)
        if ids.ndim != 1 or edges.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(f"token ids and starts must be flat integers, not {ids.dtype}{ids.shape}, {edges.shape}")
        if not edges.size or edges[0] != 0 or edges[-1] != len(ids) or (np.diff(edges) < 0).any():
            raise ValueError(f"the starts of sentences must rise from 0 to the number of tokens, {len(ids)}")
        if ids.size and (ids.min() < 0 or ids.max() >= MAX_WORDS):
            raise ValueError(
                f"token ids must be from 0 to {MAX_WORDS - 1}, but {ids.min()} to {ids.max()} were given; "
                f"vocabularies of more than {MAX_WORDS:,} words cannot be scored: raise the vocabulary's min_count"
            )
        return cls(np.ascontiguousarray(ids, np.uint16), edges)

    @classmethod
    def from_lists(cls, sentences: Sequence[Sequence[int]]) -> Sentences:
        """One sequence of ids per sentence."""
        lengths = np.fromiter((len(sentence) for sentence in sentences), np.int64, len(sentences))
        ids = np.fromiter(chain.from_iterable(sentences), np.int64, int(lengths.sum()))
        return cls.from_flat(ids, _edges(lengths))

    @classmethod
    def from_rows(cls, ids: ArrayLike, lengths: ArrayLike) -> Sentences:
        """Padded ids (N, T) and lengths (N,): sampled captions as a decoder gives them."""
        rows, sizes = np.asarray(ids), np.asarray(lengths, np.int64)
        if rows.ndim != 2 or sizes.shape != rows.shape[:1] or (sizes < 0).any() or (sizes > rows.shape[1]).any():
            raise ValueError(f"rows (N, T) need N lengths from 0 to T; got {rows.shape} and {sizes.shape}")
        return cls.from_flat(rows[np.arange(rows.shape[1]) < sizes[:, None]], _edges(sizes))

    @classmethod
    def from_words(cls, sentences: Iterable[Sequence[str]], token_ids: dict[str, int]) -> Sentences:
        """Words -> ids; words that are not in `token_ids` yet get the next id there."""
        return cls.from_lists([[token_ids.setdefault(word, len(token_ids)) for word in words] for words in sentences])

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)


@dataclass(frozen=True)
class VideoCaptions:
    """References grouped by video: those of video v are the sentences videos[v]:videos[v + 1]. Every video has one."""

    sentences: Sentences
    videos: NDArray[np.int64]

    def __post_init__(self) -> None:
        videos = self.videos
        if not videos.size or videos[0] != 0 or videos[-1] != len(self.sentences):
            raise ValueError(f"the videos' captions must run from 0 to {len(self.sentences)}")
        if (bare := np.flatnonzero(np.diff(videos) < 1)).size:
            raise ValueError(f"{bare.size} of {len(self)} videos have no reference, the first is number {bare[0]}")

    @classmethod
    def from_lists(cls, references: Sequence[Sequence[Sequence[int]]]) -> VideoCaptions:
        """videos -> references -> token ids."""
        counts = np.fromiter((len(video) for video in references), np.int64, len(references))
        return cls(Sentences.from_lists(list(chain.from_iterable(references))), _edges(counts))

    def __len__(self) -> int:
        return len(self.videos) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many references each video has, (V,)."""
        return np.diff(self.videos)


def _edges(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
