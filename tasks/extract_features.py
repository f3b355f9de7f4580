"""Extract features: decode every video once for all the extractors that are stale for it, write rows to Zarr stores.

The unit that resumes is a video: a row exists once its segment's index does. A row depends on its own video alone, so a
killed and resumed extraction gives the same bits as an undisturbed one."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.atomic import write_json, write_parquet
from storage.catalogue import Catalogue, problem_table
from storage.errors import BadMedia, MissingFeatures
from storage.feature_view import View
from storage.feature_writing import SegmentWriter
from storage.features import FeatureStore
from storage.fingerprints import digest
from storage.media import Sampled
from storage.options import Options
from storage.records import SPLITS, ArtifactRef, Problem
from storage.sampling import Sampling
from storage.workspace import Done, Workspace
from tasks.catalogue import nameless
from tasks.extractors import Extractor, FeatureOptions, Source, find_source, open_extractor
from tasks.frames import read_frames
from tasks.progress import meter
from tasks.sample_frames import read_plan
from tasks.stage import Foresight, Made, Work, stage

_MANY_SEGMENTS = 32  # of small updates; merged, so that opening a store stays quick


class ExtractOptions(Options):
    """All features of a recipe and how their frames are chosen."""

    dataset: str
    """name of the data set: stores of different sets stay apart"""
    features: dict[str, FeatureOptions]
    sampling: dict[str, Sampling]


def sources_of(workspace: Workspace, options: ExtractOptions, tagger: ArtifactRef | None) -> dict[str, Source]:
    return {
        name: find_source(workspace, options.dataset, name, feature, options.sampling, tagger)
        for name, feature in options.features.items()
    }


def _foresee(
    workspace: Workspace,
    data: Path,
    options: ExtractOptions,
    videos: ArtifactRef,
    tagger: ArtifactRef | None = None,
    **plans: ArtifactRef,
) -> Foresight:
    """Features of each split depend on their extractor and on that split's videos only."""
    sources = sources_of(workspace, options, tagger)
    parts = {
        f"{name}/{split}": digest(source.key, videos.parts[f"videos/{split}"])
        for name, source in sources.items()
        for split in SPLITS
    }
    return Foresight({name: source.key for name, source in sources.items()}, parts, sources)


def _changes(workspace: Workspace, before: Done, sources: dict[str, Source]) -> str:
    old = before.ingredients["extra"]
    changed = [name for name, source in sources.items() if old.get(name) != source.key]
    return f"{', '.join(changed)} is made in another way" if changed else "fewer features are wanted"


def _intact(work: Work, done: Done) -> bool:
    """The rows live outside the result's own folder: are they still there?"""
    rows = read_rows(work.folder)
    for name, source in work.memo.items():
        path, wanted = work.workspace.features / source.store, rows.get(name, {})
        if not (path / "zarr.json").is_file() or len(FeatureStore.open(path).view().fresh(wanted)) < len(wanted):
            return False
    return True


def _again(work: Work) -> str:
    if not work.runtime.retry_quarantined:
        return ""
    failed = {record for source in work.memo.values() for record in work.ledger.failures(source.key)}
    return f"{len(failed)} quarantined videos are tried again" if failed else ""


def read_rows(folder: Path) -> dict[str, dict[str, str]]:
    """feature -> video id -> key of its row, for every row of an extraction."""
    table = pq.read_table(folder / "rows.parquet")
    wanted: dict[str, dict[str, str]] = {name: {} for name in table["feature"].unique().to_pylist()}
    columns = (table[name].to_pylist() for name in ("feature", "id", "key"))
    for feature, id, key in zip(*columns, strict=True):
        wanted[feature][id] = key
    return wanted


@dataclass(frozen=True)
class _Running:
    """One extractor at work."""

    source: Source
    store: FeatureStore
    sampling: str
    extractor: Extractor
    writer: SegmentWriter
    todo: dict[str, str]
    """video id -> record key of the rows it still owes"""


@stage(version=1, foresee=_foresee, intact=_intact, changes=_changes, again=_again)
def extract_features(
    work: Work,
    options: ExtractOptions,
    videos: ArtifactRef,
    tagger: ArtifactRef | None = None,
    **plans: ArtifactRef,
) -> Made:
    catalogue = Catalogue(work.path(videos), work.data)
    sources: dict[str, Source] = work.memo
    planned = {name: read_plan(work.path(ref)) for name, ref in plans.items()}
    with ExitStack() as stack:
        started = [
            _start(work, stack, options, catalogue, source, planned[f"frames_{source.sampling}"], tagger)
            for source in sources.values()
            if source.sampling is not None
        ]
        running = [r for r in started if r is not None]
        _extract(work, options, catalogue, running)
    for r in running:
        if len(r.store.view().segments) > _MANY_SEGMENTS:
            r.store.compact()
    rows, problems = _settle(work, catalogue, sources)
    write_parquet(work.folder / "rows.parquet", rows)
    write_parquet(work.folder / "quarantine.parquet", problem_table(problems))
    write_json(work.folder / "features.json", {name: _about(work, source) for name, source in sources.items()})
    figures = {r.source.name: len(r.todo) for r in running}
    return Made(rows.num_rows, {"rows": rows.num_rows, "quarantined": len(problems), "extracted": figures})


def _start(
    work: Work,
    stack: ExitStack,
    options: ExtractOptions,
    catalogue: Catalogue,
    source: Source,
    planned: set[str],
    tagger: ArtifactRef | None,
) -> _Running | None:
    """Open a feature's store, find out which rows it owes, and load its net only if there are any."""
    sampling = options.sampling[source.sampling or ""].model_dump(mode="json")
    provenance = {"extractor_key": source.key, "name": source.name, "words": source.words, "sampling": sampling}
    store = FeatureStore.create(work.workspace.features / source.store, provenance=provenance | versions())
    if work.runtime.retry_quarantined:
        work.ledger.forget_failures(source.key)
    wanted = {id: key for id, key in catalogue.usable_keys.items() if id in planned}
    failed = work.ledger.failures(source.key)
    fresh = store.view().fresh(wanted)
    todo = {id: key for id, key in wanted.items() if id not in fresh and key not in failed}
    if not todo:
        return None
    folder = work.path(tagger) if tagger else None
    extractor = open_extractor(options.features[source.name], folder, work.runtime.torch_device())
    return _Running(source, store, source.sampling or "", extractor, stack.enter_context(store.writer()), todo)


def _extract(work: Work, options: ExtractOptions, catalogue: Catalogue, running: list[_Running]) -> None:
    """Decode every video that some extractor owes a row for, once, and give each its frames."""
    owed = {id: [r for r in running if id in r.todo] for id in catalogue.usable_keys}
    wanted = {id: {r.sampling: options.sampling[r.sampling] for r in owing} for id, owing in owed.items() if owing}
    if not wanted:
        return
    sizes = {r.extractor.size for r in running}
    size = sizes.pop() if len(sizes) == 1 else None
    with meter("extracting features", len(wanted), "videos") as shown:
        for id, answer in read_frames(work, catalogue, wanted, size):
            for r in owed[id]:
                if isinstance(answer, BadMedia):
                    reason = nameless(answer.reason, catalogue.path_of(id))
                    work.ledger.note_failure(r.todo[id], r.source.key, answer.kind, reason)
                else:
                    _write_row(r, id, answer[r.sampling])
            shown.advance()


def _write_row(running: _Running, id: str, sampled: Sampled) -> None:
    # One video is one batch: a row must not depend on which videos happen to be extracted beside it.
    rows = running.extractor(sampled.images)
    running.writer.add(id, running.todo[id], rows.astype(np.float16), sampled.pts, sampled.damaged)


def _settle(work: Work, catalogue: Catalogue, sources: dict[str, Source]) -> tuple[pa.Table, list[Problem]]:
    """What there is now: the rows of every feature, and what could not be extracted."""
    columns: dict[str, list[str]] = {"feature": [], "id": [], "key": []}
    problems: dict[str, Problem] = {}
    for name, source in sources.items():
        view = FeatureStore.open(work.workspace.features / source.store).view()
        keys = catalogue.usable_keys if source.sampling else newest_keys(view, catalogue.records)
        for id in sorted(view.fresh(keys)):
            columns["feature"].append(name)
            columns["id"].append(id)
            columns["key"].append(keys[id])
        failed = work.ledger.failures(source.key) if source.sampling else {}
        for id, key in catalogue.usable_keys.items():
            if key in failed:
                kind, reason = failed[key]
                problems[id] = Problem(id, kind, reason, catalogue.records[id].source or "", quarantined=True)
    return pa.table(columns), list(problems.values())


def newest_keys(view: View, ids: Collection[str]) -> dict[str, str]:
    """video id -> key of its newest row, of the ids that have one. Imported rows have keys of their own."""
    table = view.table()
    rows = zip(table["video_id"].to_pylist(), table["video_key"].to_pylist(), strict=True)
    return {id: key for id, key in rows if id in ids}


def _about(work: Work, source: Source) -> dict[str, Any]:
    """What later stages and the report need to know of a feature."""
    tail = FeatureStore.open(work.workspace.features / source.store).tail
    if tail is None:
        raise MissingFeatures(
            f"no video gave any '{source.name}' features; 'longtake status' lists why each one is in the quarantine"
        )
    return {**asdict(source), "size": tail[-1]}


def versions() -> dict[str, str]:
    """Which software made a row."""
    return {name: version(name) for name in ("longtake", "torch", "torchvision", "timm", "av", "decord")}
