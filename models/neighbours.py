"""Exact nearest neighbours: a block-wise search with matrix products, and a second look in double precision.

Distances are numpy's float64, element by element and summed by halves: the same bits on every machine, with any threads and
blocks. Ties are ordered by index. The products, float32 and perhaps on a GPU, only choose the pairs to measure. Their error is
at most c (|a|² + |b|²) with c = (D + 32) eps on vectors centred on the items' mean (a product of D terms errs by D eps / 2 of
|a||b|, single roundings by 32 eps together). That bounds every distance below and above; a pair whose lower bound exceeds the
upper bounds of k others of its row cannot be among the k nearest. All other pairs are measured."""

import math
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Metric = Literal["euclidean", "cosine"]
Vectors = NDArray[np.floating]

ROWS = 512
"""Queries that are best asked at once."""
_COLUMNS = 65_536  # 512 x 65,536 products in float32 are 128 MB
_CELLS = 1 << 17  # numbers in a temporary of the second look: few enough for the processor's cache
_LARGEST = 2.0**200  # squares must not overflow; float32 ends far below
_SLACK = 1 + 2.0**-40  # more than float64 can err in a measured distance


class Nearest(NamedTuple):
    """The k nearest items of B queries, nearest first: indices (B, k), distances (B, k)."""

    indices: NDArray[np.int64]
    distances: NDArray[np.float64]


class NearestItems:
    """The k nearest of N items (N, D); all of them, if there are no more than k.

    euclidean: |a - b|. cosine: 1 - cos(a, b), measured as half the squared distance of the directions, which keeps its
    digits for near duplicates. A vector of zeros has no direction: it is 1 away from all others and 0 from one of zeros."""

    def __init__(self, items: Vectors, k: int, metric: Metric = "euclidean", device: str = "cpu"):
        """items (N, D): float32 takes half the memory of float64; they must not change afterwards."""
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one neighbour")
        if not items.size:
            raise ValueError(f"items are {list(items.shape)}; there must be one at least")
        _check(items, "item")
        self.k, self.metric, self.count = k, metric, len(items)
        self._device = torch.device(device)
        self._kept = _first_duplicates(items, k)  # (M,) the columns of the search
        self._column = np.full(len(items), -1)
        self._column[self._kept] = np.arange(len(self._kept))
        self._items = _directions(items) if metric == "cosine" else items
        self._centre = self._items.mean(axis=0, dtype=np.float64)
        extent = max((self._items.max(0) - self._centre).max(), (self._centre - self._items.min(0)).max())
        # A power of two, so that nothing overflows in float32; directions of queries may be far from all items'.
        self._scale = math.ldexp(1.0, min(1000, -math.frexp(max(extent, 1.0 if metric == "cosine" else 0.0))[1]))
        self._float32 = torch.empty(len(self._kept), self._items.shape[1], device=self._device)
        self._squares = torch.empty(len(self._kept), dtype=torch.float64, device=self._device)
        for block in _blocks(len(self._kept), ROWS):
            centred = self._centred(self._items[self._kept[block]])
            self._float32[block], self._squares[block] = centred, centred.square().sum(1)

    def of(self, queries: Vectors) -> Nearest:
        """The nearest items of other vectors (B, D)."""
        _check(queries, "query")
        vectors = _directions(queries) if self.metric == "cosine" else queries
        return self._find(vectors, np.full(len(queries), -1), min(self.k, self.count))

    def of_items(self, start: int, stop: int) -> Nearest:
        """The nearest other items of the items start .. stop - 1."""
        return self._find(self._items[start:stop], self._column[start:stop], min(self.k, self.count - 1))

    def _centred(self, vectors: Vectors) -> Tensor:
        return torch.from_numpy((vectors - self._centre) * self._scale).to(self._device)

    def _find(self, vectors: Vectors, own: NDArray[np.int64], k: int) -> Nearest:
        """vectors (B, D), own (B,): the column of the query itself, -1 if it has none."""
        if np.abs((vectors - self._centre) * self._scale).max(initial=0) > 2.0**40:
            raise ValueError("a query is 2^40 times larger than all items; were both made by the same net?")
        if k == 0:
            return Nearest(np.empty((len(vectors), 0), np.int64), np.empty((len(vectors), 0)))
        pairs = [np.empty((2, 0), np.int64)]
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # the error bound relies on it
        try:
            for block in _blocks(len(vectors), ROWS):
                pairs.append(self._candidates(vectors[block], own[block], k) + np.array([[block.start], [0]]))
        finally:
            torch.set_float32_matmul_precision(precision)
        rows, columns = np.concatenate(pairs, axis=1)
        return self._measure(vectors, rows, self._kept[columns], k)

    def _candidates(self, vectors: Vectors, own: NDArray[np.int64], k: int) -> NDArray[np.int64]:
        """The pairs (2, P) of query row and column that may be among the k nearest."""
        queries, excluded = self._centred(vectors), torch.from_numpy(own).to(self._device)
        squares, size, limits = queries.square().sum(1, keepdim=True), queries.shape[1], torch.finfo(torch.float32)
        error, tiny = (size + 32) * limits.eps, 16 * size * limits.tiny
        once = list(self._bounds(queries, excluded, error)) if len(self._kept) <= _COLUMNS else None
        values, indices = [], []
        for start, bounds in once or self._bounds(queries, excluded, error):
            found = bounds.topk(min(k, bounds.shape[1]), largest=False)
            values.append(found.values)
            indices.append(found.indices + start)
        lowest, index = torch.cat(values, 1).topk(k, largest=False)
        nearest = torch.cat(indices, 1).gather(1, index)
        own_part = squares * (1 - error) - tiny  # what the bounds of a row lack
        room = 2 * (error * (squares + self._squares[nearest]) + tiny)
        limit = (lowest + own_part + room).amax(1, keepdim=True) * _SLACK - own_part
        limit = torch.nextafter(limit.float(), torch.tensor(math.inf))
        pairs = [
            (bounds <= limit).nonzero().T + torch.tensor([[0], [start]], device=self._device)
            for start, bounds in once or self._bounds(queries, excluded, error)
        ]
        return torch.cat(pairs, 1).cpu().numpy()

    def _bounds(self, queries: Tensor, own: Tensor, error: float) -> Iterator[tuple[int, Tensor]]:
        """queries (b, D), own (b,) -> for each block of columns its start and (1 - error) |b|² - 2ab (b, n) in float32: a
        lower bound of the squared distances, but for what is the same for a whole row."""
        doubled = (queries * -2).float()
        for block in _blocks(len(self._kept), _COLUMNS):
            bounds = doubled @ self._float32[block].T
            bounds += (self._squares[block] * (1 - error)).float()
            here = ((own >= block.start) & (own < block.stop)).nonzero()[:, 0]
            bounds[here, own[here] - block.start] = math.inf
            yield block.start, bounds

    def _measure(self, vectors: Vectors, rows: NDArray[np.int64], indices: NDArray[np.int64], k: int) -> Nearest:
        """The distances of pairs (P,) of query rows and item indices, at least k per row; the k nearest of each row."""
        distances = np.empty(len(rows))
        for pairs in _blocks(len(rows), max(1, _CELLS // vectors.shape[1])):
            a, b = vectors[rows[pairs]], self._items[indices[pairs]]
            squared = np.subtract(a, b, dtype=np.float64) ** 2
            if self.metric == "euclidean":  # numpy's root is correctly rounded on every machine; torch's may not be
                distances[pairs] = np.sqrt(_sum(squared))
            else:
                distances[pairs] = np.where(a[:, -1] != b[:, -1], 1.0, _sum(squared[:, :-1]) / 2)
        order = np.lexsort((indices, distances, rows))
        counts = np.bincount(rows, minlength=len(vectors))
        nearest = order[(np.cumsum(counts) - counts)[:, None] + np.arange(k)]
        return Nearest(indices[nearest], distances[nearest])


def _blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, count, size))


def _check(vectors: Vectors, noun: str) -> None:
    if not vectors.size or max(abs(float(vectors.max())), abs(float(vectors.min()))) <= _LARGEST:
        return
    index = next(n for n, row in enumerate(vectors) if not (abs(row.astype(np.float64)) <= _LARGEST).all())
    raise ValueError(f"{noun} {index} holds NaN, infinity or a number beyond 2^200")


def _first_duplicates(items: Vectors, k: int) -> NDArray[np.int64]:
    """The indices of the items that can be a neighbour of any: of equal ones the first k + 1, since ties go by index.
    Without this, thousands of black clips would all be candidates of each other."""
    seen: Counter[bytes] = Counter()
    kept = []
    for index, row in enumerate(items):
        seen[digest := blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()] += 1
        if seen[digest] <= k + 1:
            kept.append(index)
    return np.array(kept)


def _directions(vectors: Vectors) -> NDArray[np.float64]:
    """(n, D) -> (n, D + 1) of length 1; a vector of zeros points along the last axis, at right angles to all others."""
    directions = np.zeros((len(vectors), vectors.shape[1] + 1))
    for block in _blocks(len(vectors), ROWS):
        rows = vectors[block].astype(np.float64)
        blank = ~rows.any(axis=1)
        # First by the largest entry: multiples of one vector then get the same bits.
        rows /= np.where(blank, 1.0, np.abs(rows).max(axis=1))[:, None]
        rows /= np.where(blank, 1.0, np.sqrt(_sum(rows * rows)))[:, None]
        directions[block, :-1], directions[block, -1] = rows, blank
    return directions


def _sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, D) -> (n,), by halves: a library's own sum may add in another order on another machine."""
    while (size := values.shape[1]) > 1:
        half = size // 2
        folded = values[:, :half] + values[:, half : 2 * half]
        if size % 2:
            folded[:, 0] += values[:, -1]
        values = folded
    return values[:, 0]
