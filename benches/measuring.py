"""What the benches share: timing, limits that a run must hold, arguments, and a training whose waiting for data is measured."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_MISSED: list[str] = []


def arguments(doc: str | None, *places: str, **defaults: Any) -> Any:
    """The command line: `places` are positional (with "?", optional), every default is an option of its name and type. The help
    is the bench's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for place in places:
        parser.add_argument(place.rstrip("?"), nargs="?" if place.endswith("?") else None)
    for name, default in defaults.items():
        many = isinstance(default, list)
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            kind = type(default[0] if many else default)
            parser.add_argument(f"--{name}", type=kind, nargs="+" if many else None, default=default)
    return parser.parse_args()


def require(held: bool, otherwise: str) -> None:
    """Note a limit that the run does not hold."""
    if not held:
        _MISSED.append(otherwise)


def exit_by_limits() -> None:
    """Print the limits that were missed; exit with 1 if there are any."""
    for what in _MISSED:
        print(f"missed: {what}")
    sys.exit(1 if _MISSED else 0)


class Took(NamedTuple):
    """Seconds by the clock, and of processor time."""

    wall: float
    cpu: float

    def over(self, other: Took) -> str:
        return f"{self.cpu / other.cpu:.2f} (wall {self.wall / other.wall:.2f})"


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def timed(work: Callable[[], object]) -> Took:
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    return Took(time.perf_counter() - wall, cpu_seconds() - cpu)


def best_of(runs: Sequence[Callable[[], object]], rounds: int) -> list[Took]:
    """The least times of each run; all take turns, so that a busy moment hits all."""
    took: list[list[Took]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, times in zip(runs, took, strict=True):
            times.append(timed(run))
    return [Took(*map(min, zip(*times, strict=True))) for times in took]


class AwaitedBatches:
    """Batches that record how long the training waited for them."""

    def __init__(self, batches: Any):
        self.batches, self.waited = batches, 0.0
        self.steps_per_epoch = batches.steps_per_epoch

    def __call__(self, epoch: int, skip: int) -> Iterator[Any]:
        coming = self.batches(epoch, skip)
        while True:
            began = time.perf_counter()
            batch = next(coming, None)
            self.waited += time.perf_counter() - began
            if batch is None:
                return
            yield batch


def filled_store(path: Path, arrays: Iterable[np.ndarray], **writing: float) -> Any:
    """A feature store of videos video0, video1, .. with these rows, all of key "key"."""
    from storage.features.store import FeatureStore

    store = FeatureStore.create(path, provenance={"extractor_key": "bench"})
    with store.writer(**writing) as writer:
        for n, array in enumerate(arrays):
            writer.add(f"video{n}", "key", array)
    return store


def sa_lstm_training(view: Any, videos: int, vocabulary: int = 10_000) -> tuple[AwaitedBatches, Iterator[Any]]:
    """SA-LSTM on a feature store with one caption per video, the least that a step can compute for what it reads: its batches
    of `videos`, and an iterator of which each item is a step."""
    import torch

    from models.captioners.lstm import SaLstmOptions
    from models.losses.cross_entropy import CrossEntropy
    from models.training.loop import FitOptions, fit
    from models.training.objective import Objective
    from models.zoo import build_captioner
    from tasks.framework.feature_access import FeatureAccess
    from tasks.training.batches import CaptionBatches

    ids = sorted(view.lengths())
    random = np.random.default_rng(2)
    width = len(view.read(ids[0])[0])
    access = FeatureAccess(("look",), {"look": view}, {"look": dict.fromkeys(ids, "key")}, {"look": {"size": width}})
    captions = {id: [[1, *random.integers(4, vocabulary, size=10).tolist(), 2]] for id in ids}
    batches = AwaitedBatches(CaptionBatches(access, captions, {id: [0] for id in ids}, ids, videos, 1, seed=0))
    torch.manual_seed(0)
    captioner = build_captioner(SaLstmOptions(features=("look",)), access.sizes, vocabulary)
    options = FitOptions(epochs=2, learning_rate=5e-4)
    return batches, fit(captioner, Objective(xe=(1.0, CrossEntropy(0.0))), batches, options)
