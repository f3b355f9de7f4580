"""Shards of an extraction: some videos with all that is needed to extract from them, as plain data for any process.

A shard is idempotent: rows that its stores already hold are not computed again, so a shard that runs twice, or again after a
worker was lost, costs only the missing rows."""

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
from tasks.extraction.engine import Feature, RowResult, Video, extract
from tasks.extraction.extractors import FeatureOptions
from tasks.extraction.nets import open_net
from tasks.framework.runtime import Runtime

_OPTIONS: TypeAdapter[Any] = TypeAdapter(FeatureOptions)
_SAMPLING: TypeAdapter[Any] = TypeAdapter(Sampling)


@dataclass(frozen=True)
class PendingRows:
    """One feature of a shard: how it is computed, its store, and the rows to compute (video id -> record key)."""

    name: str
    options: dict[str, Any]
    store: str
    weights: str
    sampling: dict[str, Any] | None
    plan: str
    """the sampling's name"""
    rows: dict[str, str]


@dataclass(frozen=True)
class Shard:
    """Some videos and the rows to compute from them."""

    videos: tuple[Video, ...]
    features: tuple[PendingRows, ...]
    tagger: str | None
    runtime: Runtime


def run_shards(shards: Iterable[Shard], runtime: Runtime) -> Iterator[RowResult]:
    """Run shards where the recipe's runtime says: in this process or on a cluster. Yields the result of each row."""
    if runtime.runner == "local":
        yield from _run_locally(shards, runtime)
    else:
        from tasks.extraction.cluster import run_on_cluster

        yield from run_on_cluster(shards, runtime)


def _run_locally(shards: Iterable[Shard], runtime: Runtime) -> Iterator[RowResult]:
    """One shard after another through the same nets: batches are filled across shards."""
    remaining = iter(shards)
    first = next(remaining, None)
    if first is None:
        return
    with ExitStack() as stack:
        features = [_open(rows, first, stack) for rows in first.features]

        def videos() -> Iterator[Video]:
            shard: Shard | None = first
            while shard is not None:
                for feature, rows in zip(features, shard.features, strict=True):
                    fresh = FeatureStore.open(Path(rows.store)).view().fresh(rows.rows)
                    feature.pending.update({id: key for id, key in rows.rows.items() if id not in fresh})
                yield from shard.videos
                shard = next(remaining, None)

        yield from extract(features, videos(), runtime)


def _open(rows: PendingRows, shard: Shard, stack: ExitStack) -> Feature:
    options = _OPTIONS.validate_python(rows.options)
    tagger = Path(shard.tagger) if shard.tagger else None
    net = open_net(options, rows.weights, tagger, shard.runtime.torch_device(), shard.runtime.precision)
    sampling = _SAMPLING.validate_python(rows.sampling) if rows.sampling else None
    averaged = options.over_time == "mean"
    store = FeatureStore.open(Path(rows.store))
    mirror = mirror_of(store, shard.runtime)
    writer = stack.enter_context(store.writer(published=mirror.push_segment if mirror else None))
    return Feature(
        rows.name, net, net.request(sampling, rows.name, rows.plan), options.output_name, averaged, writer, {}
    )


def mirror_of(store: FeatureStore, runtime: Runtime) -> Mirror | None:
    """The store's copy in the bucket, if the run keeps one."""
    if not runtime.feature_bucket:
        return None
    name = f"{store.path.parent.name}/{store.path.name}"
    return RemoteFeatures(runtime.feature_bucket).mirror(name, store.path)
