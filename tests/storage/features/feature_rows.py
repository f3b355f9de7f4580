"""Toy features that carry their own number, stores of them, and a process that writes them until it is done or killed.

python -m tests.storage.features.feature_rows STORE PUBLISH_SECONDS NUMBER...
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from storage.features.segments import segment_names
from storage.features.store import FeatureStore
from storage.features.view import View
from tests import ROOT

D = 6


def features(n: int) -> np.ndarray:
    """Number -> [1 + n % 5, D] float16 that only this number has."""
    return np.random.default_rng(n).normal(size=(1 + n % 5, D)).astype(np.float16)


def make(path: Path, *numbers: int, key: str = "k", **options) -> FeatureStore:
    """The store at `path`, with one more segment that holds the rows of these numbers."""
    store = FeatureStore.create(path, provenance={"extractor_key": "net-1", "name": "resnet"}, **options)
    if numbers:
        with store.writer() as writer:
            for n in numbers:
                writer.add(f"v{n}", key, features(n), pts=np.arange(1 + n % 5) / 4)
    return store


def all_right(view: View) -> bool:
    """Whether every video in the view has the features of its number."""
    return all(np.array_equal(view.read(i), features(int(i[1:]))) for i in view.lengths())


def times(view: View, video: int | str) -> list[float]:
    pts = view.pts(video if isinstance(video, str) else f"v{video}")
    assert pts is not None
    return pts.tolist()


def only_chunk(store: FeatureStore, number: int = 0) -> Path:
    (name,) = segment_names(store.path)
    return store.path / name / "data" / f"c.{number}.0"


def start_writer(path: Path, publish_seconds: float, numbers: range) -> subprocess.Popen:
    """A process that is about to write what the store does not have yet of these numbers."""
    command = [sys.executable, "-m", "tests.storage.features.feature_rows", str(path), str(publish_seconds), *map(str, numbers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def _write(path: Path, publish_seconds: float, numbers: list[int]) -> None:
    store = make(path)
    wanted = {f"v{n}": "k" for n in numbers}
    fresh = store.view().fresh(wanted)
    print("ready", flush=True)
    with store.writer(publish_seconds=publish_seconds) as writer:
        for n in numbers:
            if f"v{n}" not in fresh:
                writer.add(f"v{n}", "k", features(n), pts=np.arange(1 + n % 5) / 4)
                time.sleep(0.002)


if __name__ == "__main__":
    _write(Path(sys.argv[1]), float(sys.argv[2]), [int(n) for n in sys.argv[3:]])
