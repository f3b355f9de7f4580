"""Shards of an extraction: some videos with all that is needed to extract from them, as plain data for any process.

A shard is idempotent on a cluster: rows that its stores already hold are not computed again, so a shard that runs twice, or again
after a worker was lost, costs only the missing rows."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from storage.features.s3_sync import Mirror, RemoteFeatures
from storage.features.store import FeatureStore
from storage.media.frame_sampling import Sampling
from tasks.extraction.engine import Feature, RowResult, Video, extract
from tasks.extraction.nets import Engine, open_net, spec_of
from tasks.framework.runtime import Runtime


@dataclass(frozen=True)
class PendingRows:
    """One feature of a shard: how it is computed, its store, and the rows to compute (video id -> record key)."""

    name: str
    options: Any
    """one of FeatureOptions that is extracted"""
    store: str
    weights: str
    sampling: Sampling | None
    plan: str
    """the sampling's name"""
    rows: dict[str, str]
    engine: Engine = "torch"


@dataclass(frozen=True)
class Shard:
    """Some videos and the rows to compute from them."""

    videos: tuple[Video, ...]
    features: tuple[PendingRows, ...]
    tagger: str | None
    runtime: Runtime


def run_shards(shards: Iterable[Shard], runtime: Runtime, again: bool = False) -> Iterator[RowResult]:
    """Run shards where the recipe's runtime says: in this process or on a cluster. Yields the result of each row;
    `again`: these shards may have run before, so rows that the stores have are left out."""
    if runtime.runner != "local":
        from tasks.extraction.cluster import run_on_cluster

        yield from run_on_cluster(shards, runtime)
        return
    if (gpus := runtime.gpu_count()) > 1:
        from tasks.extraction.gpu_processes import run_on_gpus

        yield from run_on_gpus(shards, runtime, gpus)
        return
    remaining = iter(shards)  # one shard after another through the same nets: batches are filled across shards
    first = next(remaining, None)
    if first is None:
        return
    with ExitStack() as stack:
        features = [_open(rows, first, stack) for rows in first.features]

        def videos() -> Iterator[Video]:
            for shard in chain([first], remaining):
                for feature, rows in zip(features, shard.features, strict=True):
                    fresh = FeatureStore.open(Path(rows.store)).view().fresh(rows.rows) if again else ()
                    feature.pending.update({id: key for id, key in rows.rows.items() if id not in fresh})
                yield from shard.videos

        yield from extract(features, videos(), runtime)
    if gpus:  # whoever trains next has all of its memory
        open_net.cache_clear()
        features.clear()
        torch.cuda.empty_cache()


def extract_shard(shard: Shard) -> list[RowResult]:
    """One shard in a process of its own, with one result per pending row: also for those that an earlier try, whose process was
    lost, left in the stores."""
    results = list(run_shards([shard], shard.runtime, again=True))
    known = {(result.feature, result.id) for result in results}
    wanted = ((feature.name, id) for feature in shard.features for id in feature.rows)
    return results + [RowResult(*row) for row in wanted if row not in known]


def _open(rows: PendingRows, shard: Shard, stack: ExitStack) -> Feature:
    runtime, options, tagger = shard.runtime, rows.options, Path(shard.tagger) if shard.tagger else None
    device, threads = runtime.torch_device(), runtime.threads or 1
    torch.set_num_threads(threads)  # what this process computes itself: conversions, the word tagger
    net = open_net(spec_of(options, rows.weights, tagger, device, runtime.precision, rows.engine, threads))
    store = FeatureStore.open(Path(rows.store))
    mirror = mirror_of(store, runtime)
    writer = stack.enter_context(store.writer(published=mirror.push_segment if mirror else None))
    request = net.request(rows.sampling, rows.name, rows.plan)
    return Feature(rows.name, net, request, options.output_name, options.over_time == "mean", writer, {})


def mirror_of(store: FeatureStore, runtime: Runtime) -> Mirror | None:
    """The store's copy in the bucket, if the run keeps one."""
    if not runtime.feature_bucket:
        return None
    name = f"{store.path.parent.name}/{store.path.name}"
    return RemoteFeatures(runtime.feature_bucket).mirror(name, store.path)
