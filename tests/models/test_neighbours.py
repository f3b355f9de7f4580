"""Nearest neighbours are those of a plain search in double precision, whatever the data do to float32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models import neighbours as module
from models.neighbours import Metric, Nearest, NearestItems

METRICS: tuple[Metric, ...] = ("euclidean", "cosine")


def all_of(items: np.ndarray, k: int, metric: Metric = "euclidean", rows: int = 512) -> Nearest:
    """The neighbours of every item, asked in blocks of `rows`."""
    search = NearestItems(items, k, metric)
    found = [search.of_items(start, min(start + rows, len(items))) for start in range(0, len(items), rows)]
    return Nearest(np.concatenate([f.indices for f in found]), np.concatenate([f.distances for f in found]))


def brute(items: np.ndarray, queries: np.ndarray, metric: Metric) -> np.ndarray:
    """Every distance, (B, N): euclidean in double precision; cosine in a longer one, since 1 - cos cancels near twins."""
    if metric == "euclidean":
        items, queries = items.astype(np.float64), queries.astype(np.float64)
        return np.stack([np.sqrt(((items - query) ** 2).sum(1)) for query in queries])
    items, queries = items.astype(np.longdouble), queries.astype(np.longdouble)
    lengths = np.sqrt((items**2).sum(1)), np.sqrt((queries**2).sum(1))
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = 1 - (queries @ items.T) / (lengths[1][:, None] * lengths[0])
    none = (lengths[1] == 0)[:, None], lengths[0] == 0
    distances[none[0] | none[1]] = 1
    distances[none[0] & none[1]] = 0
    return distances.astype(np.float64)


def nearest_by_force(items: np.ndarray, k: int, metric: Metric) -> tuple[np.ndarray, np.ndarray]:
    distances = brute(items, items, metric)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, : min(k, len(items) - 1)]
    return order, np.take_along_axis(distances, order, 1)


def assert_as_near_as_can_be(found: Nearest, items: np.ndarray, metric: Metric, tolerance: float) -> None:
    """For data with ties that rounding may break: every distance is right, and so is the distance at every rank."""
    everything = brute(items, items, metric)
    numbers = found.indices
    k = numbers.shape[1]
    measured = np.take_along_axis(everything, numbers, 1)
    np.fill_diagonal(everything, np.inf)
    np.testing.assert_allclose(found.distances, measured, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found.distances, np.sort(everything, axis=1)[:, :k], rtol=0, atol=tolerance)
    assert (numbers != np.arange(len(items))[:, None]).all()
    assert all(len(set(row)) == k for row in numbers.tolist())


def drawn(kind: str, count: int, size: int) -> np.ndarray:
    """Data that is hard on float32 in one way each."""
    random = np.random.default_rng(7)
    plain = random.normal(size=(count, size))
    match kind:
        case "float16":
            return plain.astype(np.float16).astype(np.float32)
        case "far from the origin":
            return plain + 1e5
        case "two tight heaps":
            return plain * 1e-4 + random.choice([-1, 1], (count, 1))
        case "one giant":
            return np.concatenate([plain[1:], plain[:1] * 1e7])
        case "huge":
            return (plain * 1e35).astype(np.float32)
        case "tiny":
            return (plain * 1e-40).astype(np.float32)
        case "close to one line":
            return plain * 1e-6 + np.linspace(1, 2, count)[:, None]
    raise KeyError(kind)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "kind", ["float16", "far from the origin", "two tight heaps", "one giant", "huge", "tiny", "close to one line"]
)
def test_the_answer_is_that_of_a_plain_search_in_double_precision(kind: str, metric: Metric) -> None:
    items = drawn(kind, 400, 48)
    found = all_of(items, 6, metric)
    numbers, distances = nearest_by_force(items, 6, metric)
    assert np.array_equal(found.indices, numbers)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("metric", METRICS)
def test_five_thousand_items_of_512_numbers_agree_with_a_plain_search(metric: Metric) -> None:
    items = np.random.default_rng(0).normal(size=(5000, 512)).astype(np.float16).astype(np.float32)
    found, plain = all_of(items, 5, metric), torch.from_numpy(items).double()
    if metric == "cosine":
        plain = plain / plain.norm(dim=1, keepdim=True)
        every = 1 - plain @ plain.T
    else:
        squares = (plain * plain).sum(1)
        every = (squares[:, None] + squares - 2 * plain @ plain.T).clamp_(min=0).sqrt()
    distances, numbers = every.fill_diagonal_(torch.inf).topk(5, largest=False)
    assert np.array_equal(found.indices, numbers.numpy())
    assert np.abs(found.distances - distances.numpy()).max() < 1e-9


small = arrays(
    np.float32,
    st.tuples(st.integers(2, 24), st.integers(1, 9)),
    elements=st.integers(-3, 3).map(float) | st.sampled_from([0.0, 1000.0, 2.0**-10]),
)


@settings(max_examples=60, deadline=None)
@given(small, st.integers(1, 30))
def test_duplicates_and_ties_are_ordered_by_number(items: np.ndarray, k: int) -> None:
    """Sums of these squares are exact in float64, so that a tie is a tie in any order of adding."""
    found = all_of(items, k)
    numbers, distances = nearest_by_force(items, k, "euclidean")
    assert np.array_equal(found.indices, numbers)
    assert np.array_equal(found.distances, distances)


wild = arrays(
    np.float32,
    st.tuples(st.integers(2, 16), st.integers(1, 6)),
    elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False) | st.sampled_from([0.0, 1.0, 1e-30, 1e30]),
)


@settings(max_examples=60, deadline=None)
@given(wild, st.integers(1, 20))
def test_nothing_nearer_is_left_out_of_any_numbers(items: np.ndarray, k: int) -> None:
    found = all_of(items, k)
    size = float(np.abs(items).max()) or 1.0
    assert_as_near_as_can_be(found, items, "euclidean", 1e-13 * size)


@settings(max_examples=60, deadline=None)
@given(small, st.integers(1, 30))
def test_cosine_ignores_length_and_sets_vectors_of_zeros_apart(items: np.ndarray, k: int) -> None:
    found = all_of(items, k, "cosine")
    assert_as_near_as_can_be(found, items, "cosine", 1e-12)


def test_vectors_of_zeros_are_one_away_from_all_in_the_order_of_numbers() -> None:
    items = np.random.default_rng(1).normal(size=(40, 7))
    items[[3, 20]] = 0
    found = all_of(items, 5, "cosine")
    assert found.indices[3].tolist() == [20, 0, 1, 2, 4] and found.distances[3].tolist() == [0, 1, 1, 1, 1]
    assert found.indices[20].tolist() == [3, 0, 1, 2, 4]


def test_multiples_of_one_vector_are_twins_by_cosine_to_the_last_bit() -> None:
    direction = np.array([0.1, 0.7, -0.3, 0.9], np.float16).astype(np.float64)
    items = np.stack([direction * factor for factor in (1, 3, 7, 0.125, 1000, 11)])
    found = all_of(items, 5, "cosine")
    assert not found.distances.any()
    assert found.indices[2].tolist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("metric", METRICS)
def test_thousands_of_equal_items_cost_no_more_than_others(metric: Metric) -> None:
    items = np.ones((3000, 16))
    items[::1000] = np.arange(48.0).reshape(3, 16)
    found = all_of(items, 3, metric)
    assert found.indices[5].tolist() == [1, 2, 3] and found.indices[1].tolist() == [2, 3, 4]
    assert found.indices[-1].tolist() == [1, 2, 3] and found.distances[5].tolist() == [0, 0, 0]
    assert len(NearestItems(items, 3, metric)._kept) == 3 + 4


@pytest.mark.parametrize(("count", "k"), [(1, 3), (2, 3), (3, 3), (4, 3)])
def test_there_are_no_more_neighbours_than_other_items(count: int, k: int) -> None:
    items = np.arange(float(count))[:, None]
    found = all_of(items, k)
    assert found.indices.shape == found.distances.shape == (count, min(k, count - 1))
    assert NearestItems(items, k).of(np.array([[0.25]])).indices.tolist() == [list(range(min(count, k)))]


@pytest.mark.parametrize("metric", METRICS)
def test_other_vectors_find_the_items_nearest_to_them_their_equals_included(metric: Metric) -> None:
    random = np.random.default_rng(3)
    items, queries = random.normal(size=(60, 9)), random.normal(size=(700, 9))
    queries[:60] = items
    found = NearestItems(items, 4, metric).of(queries)
    assert np.array_equal(found.indices, np.argsort(brute(items, queries, metric), axis=1)[:, :4])
    assert found.indices[:60, 0].tolist() == list(range(60)) and not found.distances[:60, 0].any()


def bits(found: Nearest) -> tuple[bytes, bytes]:
    return found.indices.tobytes(), found.distances.tobytes()


@pytest.mark.parametrize("metric", METRICS)
def test_bits_do_not_depend_on_blocks_or_threads(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    items = np.concatenate([drawn("two tight heaps", 40, 33), drawn("one giant", 20, 33)])
    expected = bits(all_of(items, 4, metric))
    assert bits(all_of(items, 4, metric, rows=7)) == expected
    torch.set_num_threads(2)
    assert bits(all_of(items, 4, metric)) == expected
    for name, value in {"_COLUMNS": 13, "ROWS": 5, "_CELLS": 200}.items():
        monkeypatch.setattr(module, name, value)
        assert bits(all_of(items, 4, metric)) == expected, name


@pytest.fixture
def _coarse_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_coarse_products")
def test_shortcuts_that_the_process_allows_elsewhere_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = NearestItems._candidates

    def noting(*args) -> np.ndarray:
        seen.append(torch.backends.cuda.matmul.fp32_precision)
        return real(*args)

    monkeypatch.setattr(NearestItems, "_candidates", noting)
    all_of(np.eye(4), 2)
    assert seen == ["ieee"] and torch.get_float32_matmul_precision() == "high"


def test_what_cannot_be_compared_is_refused_with_its_number() -> None:
    items = np.zeros((5, 3), np.float32)
    for bad in (np.nan, np.inf, -np.inf):
        items[3, 1] = bad
        with pytest.raises(ValueError, match="item 3 holds NaN"):
            NearestItems(items, 2)
        with pytest.raises(ValueError, match="query 3 holds NaN"):
            NearestItems(np.eye(3), 2).of(items)
    with pytest.raises(ValueError, match=r"beyond 2\^200"):
        NearestItems(np.full((2, 2), 1e90), 1)
    with pytest.raises(ValueError, match="at least one neighbour"):
        NearestItems(np.eye(3), 0)
    with pytest.raises(ValueError, match="one at least"):
        NearestItems(np.empty((0, 3)), 1)
    with pytest.raises(ValueError, match="larger than all items"):
        NearestItems(np.eye(3), 1).of(np.full((1, 3), 1e20))
