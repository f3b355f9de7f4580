"""Exact nearest neighbours: quick products find who may be near, careful differences decide who is.

The distance is float64 arithmetic on the vectors as they are, by numpy on the CPU: element-wise operations only, added up
by halves, so that it has the same bits on every machine, with any threads and in blocks of any size. Equal distances are
ordered by item number. That fixes the answer; the rest of this file only finds it without measuring every pair, and may do
so on a GPU.

How nothing is missed. Items are centred on their mean (so that data far from the origin does not cancel) and scaled by a
power of two (so that nothing overflows). Rounding moves `|a|² + |b|² - 2ab` by less than

    2 g |a||b| + (64 u + D v) (|a|² + |b|²) + 16 D t         g = D u / (1 - D u)

with u the unit roundoff of the products, v that of float64 and t the smallest normal number: g bounds a product of D terms
added in any order, D v the squared lengths, 64 u all single roundings, centring and narrowing among them. Every pair thus
has a lower and an upper bound. Only a pair whose lower bound reaches the k-th smallest upper bound of its row can be among
the k nearest; those are measured, the others cannot matter. A row with more candidates than its shortlist holds is bounded
again in float64 and, should that not do, with no limit at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Metric = Literal["euclidean", "cosine"]
Vectors = NDArray[np.floating]

ROWS = 512
"""Queries that are best asked at once."""
_COLUMNS = 16_384  # 512 x 16,384 products in float32 are 32 MB: enough work at once, little enough for any machine
_SPARE = 8  # candidates on a shortlist beyond k
_CELLS = 1 << 17  # numbers in a temporary of the careful part: few enough to stay close to the processor
_LARGEST = 2.0**200  # squares must not overflow; float32 ends far below
_U = 2.0**-53  # unit roundoff of float64
_SLACK = 1 + 2.0**-40  # more than float64 can err in a measured distance, and far too little to cost anything


@dataclass(frozen=True)
class Nearest:
    """The k nearest items of B queries, nearest first: numbers (B, k), distances (B, k)."""

    numbers: NDArray[np.int64]
    distances: NDArray[np.float64]


class NearestItems:
    """The k nearest of N items (N, D); all of them, where there are no more than k.

    euclidean: |a - b|. cosine: 1 - cos(a, b), measured as half the squared distance of the directions, which keeps its
    digits for near twins. A vector of zeros has no direction: it is 1 away from all others and 0 from one of zeros."""

    def __init__(self, items: Vectors, k: int, metric: Metric = "euclidean", device: str = "cpu"):
        """items (N, D): float32 takes half the memory of float64; they must not change afterwards."""
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one neighbour")
        if not items.size:
            raise ValueError(f"items are {list(items.shape)}; there must be one at least")
        _check(items, "item")
        self.k, self.metric, self.count = k, metric, len(items)
        self._numbers = _useful(items, k)
        self._column = np.full(len(items), -1)
        self._column[self._numbers] = np.arange(len(self._numbers))
        self._items = _directions(items) if metric == "cosine" else items
        self._device = torch.device(device)
        self._place()

    def of(self, queries: Vectors) -> Nearest:
        """The nearest items of other vectors (B, D)."""
        _check(queries, "query")
        vectors = _directions(queries) if self.metric == "cosine" else queries
        return self._find(vectors, np.full(len(queries), -1), min(self.k, self.count))

    def of_items(self, start: int, stop: int) -> Nearest:
        """The nearest other items of the items start .. stop - 1."""
        return self._find(self._items[start:stop], self._column[start:stop], min(self.k, self.count - 1))

    def _place(self) -> None:
        """Centre and scale the items, and keep them in float32 (N, W) with their squared lengths (N,)."""
        size, extra = self._items.shape[1], int(self.metric == "cosine")
        self._centre = np.zeros(size + extra)
        self._centre[:size] = self._items.mean(axis=0, dtype=np.float64)
        above, below = self._items.max(axis=0) - self._centre[:size], self._centre[:size] - self._items.min(axis=0)
        largest = max(above.max(), below.max(), extra)
        self._scale = math.ldexp(1.0, min(1000, -math.frexp(largest)[1]))
        narrow = np.empty((len(self._numbers), size + extra), np.float32)
        squares = np.empty(len(self._numbers))
        step = max(1, _CELLS // size)
        for start in range(0, len(self._numbers), step):
            placed = self._placed(self._items[self._numbers[start : start + step]])
            narrow[start : start + step] = placed
            squares[start : start + step] = np.einsum("nd,nd->n", placed, placed)
        self._narrow, self._squares = self._sent(narrow), self._sent(squares)

    def _placed(self, vectors: Vectors) -> NDArray[np.float64]:
        """(n, D) -> (n, W), centred and scaled. For cosine W is D + 1: what has no direction points there, at right
        angles to all others."""
        if self.metric == "cosine":
            vectors = np.concatenate([vectors, _blank(vectors)[:, None]], 1, dtype=np.float64)
        return np.subtract(vectors, self._centre, dtype=np.float64) * self._scale

    def _sent(self, array: NDArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _find(self, vectors: Vectors, own: NDArray[np.int64], k: int) -> Nearest:
        """vectors (B, D), own (B,): the column of the query itself, -1 if it has none."""
        placed, every = self._placed(vectors), len(self._numbers)
        if np.abs(placed).max(initial=0) > 2.0**40:
            raise ValueError("a query is 2^40 times larger than all items; were both made by the same net?")
        if k == 0:
            return Nearest(np.empty((len(vectors), 0), np.int64), np.empty((len(vectors), 0)))
        todo = np.arange(len(vectors))
        rows, columns = [todo[:0]], [todo[:0]]
        with _full_float32():
            for dtype, width in ((torch.float32, k + _SPARE), (torch.float64, k + _SPARE), (torch.float64, every)):
                width, unsure = min(width, every), [todo[:0]]
                step = min(ROWS, max(1, _CELLS // width))
                for part in (todo[start : start + step] for start in range(0, len(todo), step)):
                    answer = self._candidates(self._sent(placed[part]), self._sent(own[part]), k, width, dtype)
                    sure, found, possible = (tensor.cpu().numpy() for tensor in answer)
                    row, place = np.nonzero(possible & sure[:, None])
                    rows.append(part[row])
                    columns.append(found[row, place])
                    unsure.append(part[~sure])
                todo = np.concatenate(unsure)
        return self._decide(vectors, np.concatenate(rows), self._numbers[np.concatenate(columns)], k)

    def _candidates(
        self, placed: Tensor, own: Tensor, k: int, width: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """placed (b, W), own (b,) -> sure (b,): whether no candidate is off the list; columns (b, width) of the smallest
        lower bounds; possible (b, width): whether they are candidates."""
        size, unit = placed.shape[1], torch.finfo(dtype).eps / 2
        product, single, tiny = (
            size * unit / (1 - size * unit),
            64 * unit + size * _U,
            16 * size * torch.finfo(dtype).tiny,
        )
        squares = placed.square().sum(1)
        lower = torch.empty(len(placed), 0, dtype=dtype, device=self._device)
        columns = torch.empty(len(placed), 0, dtype=torch.long, device=self._device)
        doubled = placed.to(dtype) * -2
        for start in range(0, len(self._numbers), _COLUMNS):
            block = slice(start, start + _COLUMNS)
            if dtype == torch.float32:
                items = self._narrow[block]
            else:
                items = self._sent(self._placed(self._items[self._numbers[block]]))
            bounds = doubled @ items.T
            bounds += (self._squares[block] * (1 - single)).to(dtype)
            bounds.addr_(squares.sqrt().to(dtype), self._squares[block].sqrt().to(dtype), alpha=-2 * product)
            here = ((own >= start) & (own < start + bounds.shape[1])).nonzero()[:, 0]
            bounds[here, own[here] - start] = math.inf
            best, place = bounds.topk(min(width, bounds.shape[1]), largest=False, sorted=False)
            lower, columns = torch.cat([lower, best], 1), torch.cat([columns, place + start], 1)
            if lower.shape[1] > width:
                lower, place = lower.topk(width, largest=False, sorted=False)
                columns = columns.gather(1, place)
        low = lower.double() + (squares * (1 - single))[:, None] - tiny
        theirs = self._squares[columns]
        room = 2 * product * (squares[:, None] * theirs).sqrt() + single * (squares[:, None] + theirs) + tiny
        limit = (low + 2 * room).kthvalue(k, dim=1).values * _SLACK
        sure = (low.amax(1) > limit) | (width == len(self._numbers))
        return sure, columns, low <= limit[:, None]

    def _decide(self, vectors: Vectors, rows: NDArray[np.int64], numbers: NDArray[np.int64], k: int) -> Nearest:
        """Measure the pairs (P,) of query rows and item numbers, at least k a row, and keep the k nearest of each row."""
        distances, step = np.empty(len(rows)), max(1, _CELLS // vectors.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            distances[part] = self._distances(vectors[rows[part]], self._items[numbers[part]])
        order = np.lexsort((numbers, distances, rows))
        counts = np.bincount(rows, minlength=len(vectors))
        chosen = order[(np.cumsum(counts) - counts)[:, None] + np.arange(k)]
        return Nearest(numbers[chosen], distances[chosen])

    def _distances(self, a: Vectors, b: Vectors) -> NDArray[np.float64]:
        """(n, D), (n, D) -> (n,)"""
        difference = np.subtract(a, b, dtype=np.float64)
        difference *= difference
        squared = _sum(difference)
        # numpy's root rounds as IEEE asks; torch's may be off by the last bit, and not on every machine.
        return np.sqrt(squared) if self.metric == "euclidean" else np.where(_blank(a) != _blank(b), 1.0, squared / 2)


def _check(vectors: Vectors, noun: str) -> None:
    if not vectors.size or max(abs(float(vectors.max())), abs(float(vectors.min()))) <= _LARGEST:
        return
    number = next(n for n, row in enumerate(vectors) if not (abs(row.astype(np.float64)) <= _LARGEST).all())
    raise ValueError(f"{noun} {number} holds NaN, infinity or a number beyond 2^200")


def _useful(items: Vectors, k: int) -> NDArray[np.int64]:
    """The numbers of the items that can be a neighbour of any: of equal ones the first k + 1, since equal distances go
    by number. Without this, thousands of black clips would all be candidates of each other."""
    seen: Counter[bytes] = Counter()
    kept = []
    for number, row in enumerate(items):
        digest = blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()
        seen[digest] += 1
        if seen[digest] <= k + 1:
            kept.append(number)
    return np.array(kept)


def _directions(vectors: Vectors) -> NDArray[np.float64]:
    """(n, D) -> (n, D) of length 1; zeros stay zeros."""
    out, step = np.empty(vectors.shape), max(1, _CELLS // vectors.shape[1])
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step].astype(np.float64)
        blank = _blank(block)
        # First by the largest entry: multiples of one vector then get the same bits.
        block /= np.where(blank, 1.0, np.abs(block).max(axis=1))[:, None]
        block /= np.where(blank, 1.0, np.sqrt(_sum(block * block)))[:, None]
        out[start : start + step] = block
    return out


def _blank(vectors: Vectors) -> NDArray[np.bool_]:
    """(n, D) -> (n,): whether a vector is all zeros."""
    return np.logical_not(vectors.any(axis=1))


def _sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, D) -> (n,), by halves: a library's own sum may add in another order on another machine."""
    while (size := values.shape[1]) > 1:
        half = size // 2
        folded = values[:, :half] + values[:, half : 2 * half]
        if size % 2:
            folded[:, 0] += values[:, -1]
        values = folded
    return values[:, 0]


@contextmanager
def _full_float32() -> Iterator[None]:
    """Products in float32 mean float32, whatever shortcuts the process allows elsewhere: the bounds rely on it."""
    places = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]  # made at run time
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision
