"""How fast random batches of features are read: Longtake's store against other ways to keep the same arrays.

    python benches/feature_reading.py [--videos 2000] [--batch 64] [--length 28] [--width 1536] [--folder DIR]

Everything is measured in the same run on a warm cache, best of several rounds taken in turns, and returned as float16
(B, L, D). The memcpy line copies from one array in memory: no storage can be faster. Trust the ratios, not the times.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr

from storage.features import FeatureStore

Reader = Callable[[list[int]], np.ndarray]
ROUNDS = 5
SLOW_BATCHES = 4
"""Batches in a round of a slow way: enough to time it, few enough to wait for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=2000, help="videos in the store")
    parser.add_argument("--batch", type=int, default=64, help="videos in a batch")
    parser.add_argument("--length", type=int, default=28, help="steps of a video")
    parser.add_argument("--width", type=int, default=1536, help="numbers of a step")
    parser.add_argument("--folder", type=Path, help="where the files go for the time of the run")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    data = rng.standard_normal((options.videos, options.length, options.width), np.float32).astype(np.float16)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        readers = dict(build(Path(folder), data))
        speeds = measure(readers, data, options.batch)
    ours = speeds["Longtake, whole batches"]
    print(f"{options.videos} x [{options.length}, {options.width}] float16, batches of {options.batch}")
    print(f"{'':32}{'videos/s':>10}{'Longtake is':>16}")
    for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        print(f"{name:32}{speed:>10,.0f}{ours / speed:>14.2f} x")


def build(folder: Path, data: np.ndarray) -> Iterator[tuple[str, Reader]]:
    """Write the data in every form; each yields a function from video numbers (B,) to (B, L, D)."""
    ids = [f"video{n}" for n in range(len(data))]
    shape = data.shape[1:]

    def stacked(read: Callable[[int], Any]) -> Reader:
        def batch(numbers: list[int]) -> np.ndarray:
            out = np.empty((len(numbers), *shape), np.float16)
            for place, n in zip(out, numbers, strict=True):
                place[:] = read(n)
            return out

        return batch

    yield "memcpy limit", stacked(data.__getitem__)

    store = FeatureStore.create(folder / "ours", provenance={"extractor_key": "bench"})
    with store.writer() as writer:
        for video_id, array in zip(ids, data, strict=True):
            writer.add(video_id, "key", array)
    view = store.view()
    yield "Longtake, whole batches", lambda numbers: view.read_batch([ids[n] for n in numbers], dtype=np.float16)[0]
    yield "Longtake, as float32", lambda numbers: view.read_batch([ids[n] for n in numbers])[0]
    yield "Longtake, one by one", stacked(lambda n: view.read(ids[n]))

    table = view.table()
    names = set(table["segment"].to_pylist())
    arrays = {name: zarr.open_array(store.path / name / "data", mode="r") for name in names}
    segment = dict(zip(table["video_id"].to_pylist(), table["segment"].to_pylist(), strict=True))
    starts = {i: s for opened in view.segments for i, s in zip(opened.ids, opened.starts.tolist(), strict=True)}
    length = shape[0]
    yield (
        "the same, by zarr-python",
        stacked(lambda n: arrays[segment[ids[n]]][starts[ids[n]] : starts[ids[n]] + length]),
    )

    with h5py.File(folder / "all.h5", "w") as file:
        for video_id, array in zip(ids, data, strict=True):
            file[video_id] = array
    opened_h5 = h5py.File(folder / "all.h5", "r")
    yield "HDF5, a data set a video", stacked(lambda n: opened_h5[ids[n]][()])

    (folder / "npy").mkdir()
    for video_id, array in zip(ids, data, strict=True):
        np.save(folder / "npy" / f"{video_id}.npy", array)
    yield "one .npy a video", stacked(lambda n: np.load(folder / "npy" / f"{ids[n]}.npy"))

    np.save(folder / "all.npy", data)
    mapped = np.load(folder / "all.npy", mmap_mode="r")
    yield "one .npy for all, mapped", stacked(mapped.__getitem__)

    if importlib.util.find_spec("lmdb"):
        yield "LMDB", stacked(_lmdb(folder / "lmdb", ids, data))


def _lmdb(folder: Path, ids: list[str], data: np.ndarray) -> Callable[[int], np.ndarray]:
    import lmdb

    environment = lmdb.open(str(folder), map_size=2 * data.nbytes + 2**28)
    with environment.begin(write=True) as transaction:
        for video_id, array in zip(ids, data, strict=True):
            transaction.put(video_id.encode(), array.tobytes())
    reading = environment.begin(buffers=True)
    return lambda n: np.frombuffer(reading.get(ids[n].encode()), np.float16).reshape(data.shape[1:])


def measure(readers: dict[str, Reader], data: np.ndarray, batch: int) -> dict[str, float]:
    """The best videos/s of each reader; the rounds take turns so that a busy machine is unfair to nobody."""
    rng = np.random.default_rng(1)
    for name, read in readers.items():
        numbers = rng.integers(len(data), size=batch).tolist()
        if not np.array_equal(read(numbers), data[numbers]):
            raise SystemExit(f"{name} reads wrong values")
    best = dict.fromkeys(readers, 0.0)
    for round_number in range(ROUNDS):
        for name, read in readers.items():
            order = rng.permutation(len(data)).tolist()
            batches = [order[at : at + batch] for at in range(0, len(order), batch)]
            if 0 < best[name] < 2000 or round_number == 0:  # the first round also warms the cache
                batches = batches[:SLOW_BATCHES]
            began = time.perf_counter()
            for numbers in batches:
                read(numbers)
            best[name] = max(best[name], sum(map(len, batches)) / (time.perf_counter() - began))
    return best


if __name__ == "__main__":
    main()
