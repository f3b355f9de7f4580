"""Exact nearest neighbours against other ways to find them, in one run.

    python benches/neighbours.py [--sizes 5000x512 6500x2048] [--neighbours 5] [--rounds 3] [--threads 0]

Vectors are float16 numbers like pooled features: a few hundred heaps, some items twice. Each way gives the nearest others
of every item; best of several rounds taken in turns. 'differ' counts the items whose list is not that of a plain search in
double precision: float32 gets some wrong. scikit-learn and faiss take part where they are installed. Trust the ratios, not
the times."""

import importlib.util
import time
from collections.abc import Callable

import numpy as np
import torch
from measuring import arguments

from models.neighbours import ROWS, NearestItems

Search = Callable[[np.ndarray, int], np.ndarray]
"""items (N, D) float32, k -> numbers (N, k)"""


def main() -> None:
    options = arguments(__doc__, sizes=["5000x512", "6500x2048"], neighbours=5, rounds=3, threads=0)
    if options.threads:
        torch.set_num_threads(options.threads)
    searches = {"Longtake, exact": ours, "numpy, float64": plain(np.float64), "numpy, float32": plain(np.float32)}
    for name, package, search in (("scikit-learn", "sklearn", scikit_learn), ("faiss, flat", "faiss", faiss_flat)):
        if importlib.util.find_spec(package):
            searches[name] = search
        else:
            print(f"{name}: not measured, {package} is not installed")
    for size in options.sizes:
        count, width = map(int, size.split("x"))
        compare(searches, drawn(count, width), options.neighbours, options.rounds)


def drawn(count: int, width: int) -> np.ndarray:
    """(N, D) float32 of float16 numbers, all positive like the output of a rectified net; one in fifty is a copy."""
    random = np.random.default_rng(0)
    heaps = random.standard_normal((300, width), np.float32)
    items = heaps[random.integers(0, len(heaps), count)] + 0.5 * random.standard_normal((count, width), np.float32)
    items = np.maximum(items, 0).astype(np.float16).astype(np.float32)
    copies = random.choice(count, count // 50, replace=False)
    items[copies] = items[random.choice(count, len(copies))]
    return items


def compare(searches: dict[str, Search], items: np.ndarray, k: int, rounds: int) -> None:
    seconds = dict.fromkeys(searches, float("inf"))
    found: dict[str, np.ndarray] = {}
    for _ in range(rounds):
        for name, search in searches.items():
            began = time.perf_counter()
            found[name] = search(items, k)
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    right = by_differences(items, k, found["Longtake, exact"])
    print(f"\n{len(items):,} x {items.shape[1]}, {k} neighbours, {torch.get_num_threads()} threads of torch")
    print(f"{'':24}{'seconds':>10}{'Longtake is':>16}{'differ':>10}")
    for name, cost in sorted(seconds.items(), key=lambda item: item[1]):
        wrong = int((found[name] != right).any(1).sum())
        print(f"{name:24}{cost:>10.2f}{cost / seconds['Longtake, exact']:>14.2f} x{wrong:>10,}")


def by_differences(items: np.ndarray, k: int, claimed: np.ndarray) -> np.ndarray:
    """The true lists (N, k): differences in double precision of all that double products cannot tell from a k-th claimed."""
    exact, right = items.astype(np.float64), np.empty_like(claimed)
    squares = (exact * exact).sum(1)
    for start in range(0, len(items), ROWS):
        products = squares - 2 * (exact[start : start + ROWS] @ exact.T)
        for n, row in enumerate(products, start):
            limit = max(((exact[j] - exact[n]) ** 2).sum() for j in claimed[n])
            near = np.flatnonzero(row + squares[n] <= limit + 1e-9 * squares.max())
            near = near[near != n]
            distances = ((exact[near] - exact[n]) ** 2).sum(1)
            right[n] = near[np.lexsort((near, distances))[:k]]
    return right


def ours(items: np.ndarray, k: int) -> np.ndarray:
    search = NearestItems(items, k)
    starts = range(0, len(items), ROWS)
    return np.concatenate([search.of_items(n, min(n + ROWS, len(items))).indices for n in starts])


def plain(dtype: type[np.floating]) -> Search:
    """Blocks of |a|² + |b|² - 2ab in one precision, and the smallest k of each row."""

    def search(items: np.ndarray, k: int) -> np.ndarray:
        vectors = items.astype(dtype)
        squares, found = (vectors * vectors).sum(1), []
        for start in range(0, len(items), ROWS):
            distances = squares - 2 * (vectors[start : start + ROWS] @ vectors.T)
            rows = np.arange(len(distances))
            distances[rows, start + rows] = np.inf
            best = np.sort(np.argpartition(distances, k, axis=1)[:, :k], axis=1)
            order = np.argsort(np.take_along_axis(distances, best, 1), axis=1, kind="stable")
            found.append(np.take_along_axis(best, order, 1))
        return np.concatenate(found)

    return search


def scikit_learn(items: np.ndarray, k: int) -> np.ndarray:
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(items).kneighbors(return_distance=False)


def faiss_flat(items: np.ndarray, k: int) -> np.ndarray:
    import faiss

    index = faiss.IndexFlatL2(items.shape[1])
    index.add(items)
    found = index.search(items, k + 1)[1]
    others = [row[row != n][:k] for n, row in enumerate(found)]
    return np.stack(others)


if __name__ == "__main__":
    main()
