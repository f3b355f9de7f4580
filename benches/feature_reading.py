"""How fast random batches of features are read: Longtake's store against other ways to keep the same arrays.

    python benches/feature_reading.py [--videos 10000] [--batch 64] [--length 28] [--width 1536] [--folder DIR]

All of it is read from the page cache and returned as float16 (B, L, D). The ways take short turns in random order; what counts
is the median turn. The memcpy line copies from one array in memory: no storage can be faster. Every rival is written as its users
would write it for speed: files opened once, one read transaction, no copy but the one into the batch. At the end the store feeds
a real training of some --steps (0: none): the share of a step that waits for data. Trust the ratios, not the times."""

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from measuring import arguments, filled_store, sa_lstm_training

from storage.features.store import FeatureStore
from storage.features.view import View

Reader = Callable[[list[int]], np.ndarray]
OURS = "Longtake, whole batches"
KEYED, WHOLE, FILES = "HDF5, a data set a video", "HDF5, one data set, a chunk a video", "one .npy per video"
LMDB, ZARR, MAPPED = "LMDB", "zarr-python, a chunk a video", "one .npy for all, mapped"
RIVALS = (KEYED, WHOLE, FILES, LMDB, ZARR, MAPPED)
TURNS = 300
BATCHES = 2  # in a turn: few, so that most turns are over before another process gets the processor
SLOW_SECONDS = 0.02  # a way that needs more for a batch takes every tenth turn only
VOCABULARY = 10_000


def main() -> None:
    place = tempfile.gettempdir()
    options = arguments(__doc__, videos=10_000, batch=64, length=28, width=1536, steps=12, folder=place)
    data = draw(options.videos, options.length, options.width)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = filled_store(Path(folder) / "ours", data)
        readers = dict(build(Path(folder), store, data))
        speeds = measure(readers, data, options.batch)
        print(f"{options.videos} x [{options.length}, {options.width}] float16, batches of {options.batch}")
        print(f"{'':36}{'videos/s':>10}{'Longtake is':>14}{'files':>8}")
        counts = {name: sum(1 for f in path.rglob("*") if f.is_file()) for name, path in folders(Path(folder)).items()}
        for name, speed in sorted(speeds.items(), key=lambda item: -item[1]):
            print(f"{name:36}{speed:>10,.0f}{speeds[OURS] / speed:>12.2f} x{counts.get(name, ''):>8}")
        if options.steps:
            watch_training(store.view(), options.batch, options.steps)


def draw(videos: int, length: int, width: int) -> np.ndarray:
    """(videos, length, width) float16, a block at a time: all of it in float32 would need three times the memory."""
    rng = np.random.default_rng(0)
    data = np.empty((videos, length, width), np.float16)
    for at in range(0, videos, 256):
        block = data[at : at + 256]
        block[:] = rng.standard_normal(block.shape, np.float32)
    return data


def folders(folder: Path) -> dict[str, Path]:
    """Where each way keeps its files."""
    return {OURS: folder / "ours", **{name: folder / str(n) for n, name in enumerate(RIVALS)}}


def build(folder: Path, store: FeatureStore, data: np.ndarray) -> Iterator[tuple[str, Reader]]:
    """Write the data in every form; each yields a function from video numbers (B,) to (B, L, D)."""
    ids = [f"video{n}" for n in range(len(data))]
    shape = data.shape[1:]
    where = folders(folder)
    for name in RIVALS:
        where[name].mkdir()

    def filled(copy: Callable[[int, np.ndarray], Any]) -> Reader:
        def batch(numbers: list[int]) -> np.ndarray:
            out = np.empty((len(numbers), *shape), np.float16)
            for row, n in enumerate(numbers):
                copy(n, out[row])
            return out

        return batch

    def stacked(read: Callable[[int], Any]) -> Reader:
        return filled(lambda n, out: np.copyto(out, read(n)))

    yield "memcpy limit", stacked(data.__getitem__)
    view = store.view()
    yield OURS, lambda numbers: view.read_batch([ids[n] for n in numbers], dtype=np.float16)[0]
    yield "Longtake, one by one", stacked(lambda n: view.read(ids[n]))
    yield "the same, by zarr-python", stacked(_by_zarr(store, view, ids))

    with h5py.File(where[KEYED] / "all.h5", "w") as file:
        for video_id, array in zip(ids, data, strict=True):
            file[video_id] = array
    keyed = h5py.File(where[KEYED] / "all.h5", "r")
    yield KEYED, filled(lambda n, out: keyed[ids[n]].read_direct(out))

    with h5py.File(where[WHOLE] / "all.h5", "w") as file:
        file.create_dataset("all", data=data, chunks=(1, *shape))
    whole = h5py.File(where[WHOLE] / "all.h5", "r")["all"]
    yield WHOLE, filled(lambda n, out: whole.read_direct(out, np.s_[n]))

    for video_id, array in zip(ids, data, strict=True):
        np.save(where[FILES] / f"{video_id}.npy", array)
    yield FILES, stacked(lambda n: np.load(where[FILES] / f"{ids[n]}.npy"))

    np.save(where[MAPPED] / "all.npy", data)
    mapped = np.asarray(np.load(where[MAPPED] / "all.npy", mmap_mode="r"))
    yield MAPPED, stacked(mapped.__getitem__)

    plain = zarr.create_array(where[ZARR], data=data, chunks=(1, *shape), compressors=None, filters=None)
    yield ZARR, stacked(plain.__getitem__)

    if importlib.util.find_spec("lmdb"):
        yield LMDB, stacked(_lmdb(where[LMDB], ids, data))


def _by_zarr(store: FeatureStore, view: View, ids: list[str]) -> Callable[[int], Any]:
    """Our own arrays, indexed through zarr-python."""
    rows = {}
    for segment in view.segments:
        array, ends = zarr.open_array(segment.path / "data", mode="r"), segment.starts + segment.lengths
        for video_id, start, end in zip(segment.ids, segment.starts.tolist(), ends.tolist(), strict=True):
            rows[video_id] = array, slice(start, end)

    def read(n: int) -> Any:
        array, part = rows[ids[n]]
        return array[part]

    return read


def _lmdb(folder: Path, ids: list[str], data: np.ndarray) -> Callable[[int], np.ndarray]:
    import lmdb

    environment = lmdb.open(str(folder), map_size=2 * data.nbytes + 2**28)
    with environment.begin(write=True) as transaction:
        for video_id, array in zip(ids, data, strict=True):
            transaction.put(video_id.encode(), array.tobytes())
    reading = environment.begin(buffers=True)
    keys, shape = [video_id.encode() for video_id in ids], data.shape[1:]
    return lambda n: np.frombuffer(reading.get(keys[n]), np.float16).reshape(shape)  # type: ignore[arg-type]


def measure(readers: dict[str, Reader], data: np.ndarray, batch: int) -> dict[str, float]:
    """The videos/s of each reader in its median turn."""
    rng = np.random.default_rng(1)
    slow: set[str] = set()
    for name, read in readers.items():
        order = rng.permutation(len(data)).tolist()
        for at in range(0, len(order), batch):  # all of it, to warm the cache
            numbers = order[at : at + batch]
            began = time.perf_counter()
            found = read(numbers)
            if time.perf_counter() - began > SLOW_SECONDS:
                slow.add(name)
            if not np.array_equal(found, data[numbers]):
                raise SystemExit(f"{name} reads wrong values")
            if name in slow and name.endswith("zarr-python"):
                break
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(TURNS):
        names = [name for name in readers if name not in slow or turn % 10 == 0]
        for name in rng.permutation(names).tolist():
            first, *measured = (rng.integers(len(data), size=batch).tolist() for _ in range(1 + BATCHES))
            readers[name](first)  # what the last way left in the processor's caches is nobody's fault
            began = time.perf_counter()
            for numbers in measured:
                readers[name](numbers)
            seconds[name].append((time.perf_counter() - began) / (BATCHES * batch))
    return {name: 1 / float(np.median(spent)) for name, spent in seconds.items()}


def watch_training(view: View, videos: int, steps: int) -> None:
    """The share of a training's time that waits for the store."""
    import torch

    batches, training = sa_lstm_training(view, videos, VOCABULARY)
    began = time.perf_counter()
    for number, _ in zip(range(20), batches.batches._batches(0, 0), strict=False):
        made = (time.perf_counter() - began) / (number + 1)
    next(training)  # the first step also sets everything up
    batches.waited, began = 0.0, time.perf_counter()
    for _ in zip(range(steps), training, strict=False):
        pass
    total, waited = time.perf_counter() - began, batches.waited
    print(f"training SA-LSTM on {torch.get_num_threads()} threads, {videos} videos with one caption each in a step:")
    print(f"  a step takes {1000 * total / steps:.0f} ms and waits {1000 * waited / steps:.2f} ms for data:", end=" ")
    print(f"{waited / total:.2%}; making a batch takes {1000 * made:.1f} ms, one ahead of its use")


if __name__ == "__main__":
    main()
