"""Find neighbours: the training videos nearest to each video, by one of its features averaged over time.

The unit that resumes is a block of rows: its file name has its range, and a killed run goes on with the missing blocks. The
search is exact and gives the same bits on every machine."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, field_validator

from models.neighbours import ROWS, Metric, Nearest, NearestItems
from storage.catalogue import Catalogue
from storage.errors import BadInput, MissingFeatures
from storage.files.atomic import write_parquet
from storage.neighbours import NeighbourMetadata, block_path, neighbour_table, read_block
from storage.options import Options
from storage.records import SPLITS, ArtifactRef, Problem, Split
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import progress_bar
from tasks.framework.quarantine import set_aside
from tasks.framework.stage import StageContext, StageResult, stage


class NeighbourOptions(Options):
    """Which videos are neighbours."""

    feature: str
    """which of the recipe's features is compared, averaged over time"""
    k: int = Field(5, ge=1)
    """how many neighbours of each video are kept"""
    metric: Metric = "euclidean"
    """euclidean or cosine"""
    source_pattern: str = ""
    """regular expression whose first group names the source of a video, looked for in its file's name; videos of the same source
    are no neighbours then. MSVD's clips: '^(.{11})_\\d+_\\d+'. Left out: every other video may be one"""
    queries: tuple[Split, ...] = Field(("train",), min_length=1)
    """the splits whose videos get neighbours; the neighbours are training videos always"""

    @field_validator("source_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression ({error})") from error
        if pattern and not groups:
            raise ValueError(f"{pattern!r} has no group to name a source by: put one in brackets")
        return pattern


@dataclass(frozen=True)
class PooledFeature:
    """The videos of a split that have the feature, and its means (N, D), float32 where that is exact."""

    ids: list[str]
    vectors: np.ndarray
    left_out: list[Problem]


@stage(version=1, device=True)
def find_neighbours(context: StageContext, options: NeighbourOptions, videos: ArtifactRef, features: ArtifactRef) -> StageResult:
    access = FeatureAccess.open(context.workspace, context.path(features), (options.feature,))
    catalogue = Catalogue(context.path(videos), context.data)
    needed = [split for split in SPLITS if split == "train" or split in options.queries]
    pooled = {split: pool(access, options.feature, catalogue.ids(split)) for split in needed}
    items, queries = pooled["train"], {split: pooled[split] for split in needed if split in options.queries}
    count = sum(len(split.ids) for split in queries.values())
    if not items.ids or not count:
        reason = f"no {'video to compare' if items.ids else 'training video'} has '{options.feature}' features"
        raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")
    key, contents = access.about[options.feature]["key"], _digest(pooled)
    metadata = NeighbourMetadata(options.feature, key, options.metric, options.k, len(items.ids), contents)
    missing = [block for block in _blocks(queries) if read_block(block_path(context.folder, *block), metadata) is None]
    with progress_bar("finding neighbours", count, "videos") as bar:
        bar.update_to(count - sum(stop - start for _, start, stop in missing))
        sources = _sources(catalogue, options.source_pattern)
        more = max(Counter(sources[id] for id in items.ids).values()) if options.source_pattern else 0
        search = NearestItems(items.vectors, options.k + more, options.metric, context.runtime.torch_device())
        for split, start, stop in missing:
            ids, vectors = queries[split].ids[start:stop], queries[split].vectors[start:stop]
            found = search.of_items(start, stop) if split == "train" else search.of(vectors)
            if options.source_pattern:
                found = _of_other_sources(found, [sources[id] for id in ids], [sources[id] for id in items.ids], options.k)
            table = neighbour_table(ids, split, items.ids, found.indices, found.distances, metadata)
            write_parquet(block_path(context.folder, split, start, stop), table)
            bar.advance(stop - start)
    blocks = [pq.read_table(block_path(context.folder, *block)) for block in _blocks(queries)]
    write_parquet(context.folder / "neighbours.parquet", pa.concat_tables(blocks).combine_chunks())
    left_out = [problem for split in pooled.values() for problem in split.left_out]
    set_aside(context, left_out)
    shutil.rmtree(context.folder / "blocks")
    return StageResult(count, {"videos": count, "among": len(items.ids), "left_out": len(left_out)})


def _sources(catalogue: Catalogue, pattern: str) -> dict[str, str]:
    """video -> the name of its source: what the pattern finds in its file's name, or itself."""
    found = {}
    for id, record in catalogue.records.items():
        named = re.search(pattern, Path(record.source or id).name) if pattern else None
        found[id] = named[1] if named else id
    return found


def _of_other_sources(nearest: Nearest, own: Sequence[str], items: Sequence[str], k: int) -> Nearest:
    """The k nearest of each query that are of another source; fewer items than that leave the rest out for all."""
    other = np.array([[items[i] != source for i in row] for row, source in zip(nearest.indices, own, strict=True)])
    order = np.argsort(~other, axis=1, kind="stable")[:, : min(k, int(other.sum(1).min()))]
    return Nearest(np.take_along_axis(nearest.indices, order, 1), np.take_along_axis(nearest.distances, order, 1))


def pool(access: FeatureAccess, name: str, ids: Sequence[str]) -> PooledFeature:
    """The mean of every video's feature over all axes but the last."""
    usable: list[str] = []
    left_out: list[Problem] = []
    vectors = np.zeros((len(ids), access.sizes[name]), np.float32)  # zeros, since all rows may be cast below
    with progress_bar("averaging features", len(ids), "videos") as bar:
        for id in ids:
            bar.advance()
            steps = access.views[name].read(id, access.rows[name][id]) if access.usable([id]) else None
            if steps is None or not len(steps):
                reason = f"it has no '{name}' features, so it takes no part in the search for nearest neighbours"
                left_out.append(Problem(id, "no_neighbours", reason))
                continue
            # float16 rows add up in float64 without any rounding, in whatever order.
            vector = steps.reshape(-1, steps.shape[-1]).mean(axis=0, dtype=np.float64)
            if not np.isfinite(vector).all():
                reason = f"the '{name}' features of {id} hold NaN or infinity, so nothing can be near it"
                raise BadInput(f"{reason}; 'longtake features verify' tells whether the store is damaged")
            if vectors.dtype == np.float32 and not np.array_equal(vector.astype(np.float32), vector):
                vectors = vectors.astype(np.float64)
            vectors[len(usable)] = vector
            usable.append(id)
    return PooledFeature(usable, vectors[: len(usable)], left_out)


def _digest(pooled: dict[Split, PooledFeature]) -> str:
    """The hash of what is compared, stored with every block: blocks of a run on other rows are not reused."""
    state = blake2b(digest_size=16)
    for split, found in pooled.items():
        state.update("\n".join([split, *found.ids, str(found.vectors.dtype)]).encode())
        state.update(np.ascontiguousarray(found.vectors).data)
    return state.hexdigest()


def _blocks(queries: dict[Split, PooledFeature]) -> Iterator[tuple[Split, int, int]]:
    for split, found in queries.items():
        for start in range(0, len(found.ids), ROWS):
            yield split, start, min(start + ROWS, len(found.ids))
