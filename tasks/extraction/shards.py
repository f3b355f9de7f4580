"""Shards of an extraction: some videos with all that is needed to extract from them, as plain data for any process.

A shard is idempotent: rows that its stores have already are not made again, so a shard that is run twice, or after a
worker was lost half-way, costs only what was missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from storage.features.s3_sync import Mirror, RemoteFeatures
from storage.features.store import FeatureStore
from storage.media.frame_sampling import Sampling
from tasks.extraction.engine import Feature, Outcome, Video, extract
from tasks.extraction.extractors import FeatureOptions
from tasks.extraction.nets import open_net
from tasks.framework.runtime import Runtime

_OPTIONS: TypeAdapter[Any] = TypeAdapter(FeatureOptions)
_SAMPLING: TypeAdapter[Any] = TypeAdapter(Sampling)


@dataclass(frozen=True)
class Owed:
    """One feature of a shard: how it is made, where its store is, and the rows it lacks (video id -> record key)."""

    name: str
    options: dict[str, Any]
    store: str
    weights: str
    sampling: dict[str, Any] | None
    rows: dict[str, str]


@dataclass(frozen=True)
class Shard:
    """Some videos and the features they owe."""

    videos: tuple[Video, ...]
    features: tuple[Owed, ...]
    tagger: str | None
    runtime: Runtime


def run_shards(shards: Iterable[Shard], runtime: Runtime) -> Iterator[Outcome]:
    """Carry out shards where the recipe's runtime says; what became of each row, as it becomes known."""
    if runtime.runner == "local":
        yield from _run_here(shards, runtime)
    else:
        from tasks.extraction.cluster import run_on_cluster

        yield from run_on_cluster(shards, runtime)


def run_shard(shard: Shard) -> list[Outcome]:
    """One shard in a process of a cluster."""
    return list(_run_here([shard], shard.runtime))


def _run_here(shards: Iterable[Shard], runtime: Runtime) -> Iterator[Outcome]:
    """Shards one after another through the same nets: batches are filled across their borders."""
    coming = iter(shards)
    first = next(coming, None)
    if first is None:
        return
    with ExitStack() as stack:
        features = [_open(owed, first, stack) for owed in first.features]

        def videos() -> Iterator[Video]:
            shard: Shard | None = first
            while shard is not None:
                for feature, owed in zip(features, shard.features, strict=True):
                    feature.owed.update(_still_owed(owed))
                yield from shard.videos
                shard = next(coming, None)

        yield from extract(features, videos(), runtime)


def _open(owed: Owed, shard: Shard, stack: ExitStack) -> Feature:
    options = _OPTIONS.validate_python(owed.options)
    tagger = Path(shard.tagger) if shard.tagger else None
    net = open_net(options, owed.weights, tagger, shard.runtime.torch_device(), shard.runtime.precision)
    sampling = _SAMPLING.validate_python(owed.sampling) if owed.sampling else None
    output = getattr(options, "output_name", "pooled")
    averaged = getattr(options, "over_time", "keep") == "mean"
    store = FeatureStore.open(Path(owed.store))
    mirror = mirror_of(store, shard.runtime)
    writer = stack.enter_context(store.writer(published=mirror.push_segment if mirror else None))
    return Feature(owed.name, net, net.look(sampling, owed.name), output, averaged, writer, {})


def mirror_of(store: FeatureStore, runtime: Runtime) -> Mirror | None:
    """The store's counterpart in the bucket, if the run keeps one."""
    if not runtime.feature_bucket:
        return None
    name = f"{store.path.parent.name}/{store.path.name}"
    return RemoteFeatures(runtime.feature_bucket).mirror(name, store.path)


def _still_owed(owed: Owed) -> dict[str, str]:
    fresh = FeatureStore.open(Path(owed.store)).view().fresh(owed.rows)
    return {id: key for id, key in owed.rows.items() if id not in fresh}
