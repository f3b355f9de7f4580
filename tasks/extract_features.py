"""Extract features: decode every video once for all the extractors that are stale for it, write rows to Zarr stores.

The unit that resumes is a video: a row exists once its segment's index does. A row depends on its own video alone, so a
killed and resumed extraction gives the same bits as an undisturbed one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from storage.catalogue import Catalogue
from storage.errors import Mismatch, MissingFeatures
from storage.features.store import FeatureStore
from storage.files.atomic import write_json, write_parquet
from storage.files.hashing import digest
from storage.media.frame_sampling import Sampling
from storage.options import Options
from storage.records import SPLITS, ArtifactRef, Problem
from storage.workspace import Completion, Workspace
from tasks.catalogue import nameless
from tasks.extraction.engine import Video
from tasks.extraction.extractors import BackboneFeature, FeatureOptions, FeatureSource, find_source, labels_of
from tasks.extraction.frames import probes_of
from tasks.extraction.nets import Engine, arithmetic_of, engine_of
from tasks.extraction.shards import PendingRows, Shard, mirror_of, run_shards
from tasks.framework.feature_access import read_rows
from tasks.framework.progress import console, progress_bars
from tasks.framework.quarantine import set_aside
from tasks.framework.stage import KeyInputs, StageContext, StageResult, stage
from tasks.sample_frames import FramePlan

_MANY_SEGMENTS = 32  # of small updates; merged, so that opening a store stays quick


class ExtractOptions(Options):
    """All features of a recipe and how their frames are chosen."""

    dataset: str
    """name of the data set: stores of different sets stay apart"""
    features: dict[str, FeatureOptions]
    sampling: dict[str, Sampling]


def _key_inputs(
    workspace: Workspace,
    data: Path,
    options: ExtractOptions,
    videos: ArtifactRef,
    tagger: ArtifactRef | None = None,
    frame_plans: tuple[ArtifactRef, ...] = (),
) -> KeyInputs:
    """Features of each split depend on their extractor and on that split's videos only."""
    sources = {
        name: find_source(workspace, options.dataset, name, feature, options.sampling, tagger)
        for name, feature in options.features.items()
    }
    keys = {name: source.key for name, source in sources.items()}
    kinds = {split: videos.parts[f"videos/{split}"] for split in SPLITS}
    parts = {f"{name}/{split}": digest(key, kind) for name, key in keys.items() for split, kind in kinds.items()}
    return KeyInputs(keys, parts, sources)


def _explain_stale(workspace: Workspace, before: Completion, sources: dict[str, FeatureSource]) -> str:
    old = before.ingredients["extra"]
    if absent := [source.name for source in sources.values() if source.missing_weights]:
        return f"the weights of {', '.join(absent)} are not here yet; they are fetched first"
    changed = [name for name, source in sources.items() if old.get(name) != source.key]
    return f"{', '.join(changed)} is made in another way" if changed else "fewer features are wanted"


def _is_valid(context: StageContext, done: Completion) -> bool:
    """The rows live outside the result's own folder: are they still there?"""
    rows = read_rows(context.folder)
    for name, source in context.prepared.items():
        path, wanted = context.workspace.features / source.store, rows.get(name, {})
        if not (path / "zarr.json").is_file() or len(FeatureStore.open(path).view().fresh(wanted)) < len(wanted):
            return False
    return True


def _rerun_reason(context: StageContext) -> str:
    if not context.runtime.retry_quarantined:
        return ""
    failed = {record for source in context.prepared.values() for record in context.file_cache.failures(source.key)}
    return f"{len(failed)} quarantined videos are tried again" if failed else ""


# 2: batches of one size, filled across videos; any backbone
@stage(
    version=2, device=True, key_inputs=_key_inputs, is_valid=_is_valid, explain_stale=_explain_stale, rerun_reason=_rerun_reason
)
def extract_features(
    context: StageContext,
    options: ExtractOptions,
    videos: ArtifactRef,
    tagger: ArtifactRef | None = None,
    frame_plans: tuple[ArtifactRef, ...] = (),
) -> StageResult:
    catalogue = Catalogue(context.path(videos), context.data)
    sources: dict[str, FeatureSource] = context.prepared
    plans = {name: FramePlan(context.path(ref)) for name, ref in zip(options.sampling, frame_plans, strict=True)}
    pending = {
        name: _pending(context, options, catalogue, source, plans.get(source.sampling or ""))
        for name, source in sources.items()
        if source.extracted
    }
    missing = {name: rows for name, rows in pending.items() if rows}
    extracted = _extract(context, options, catalogue, missing, plans, tagger)
    for name in pending:
        store = FeatureStore.open(context.workspace.features / sources[name].store)
        mirror = mirror_of(store, context.runtime)
        if len(store.view().segments) > _MANY_SEGMENTS:
            (mirror or store).compact()
        if mirror:
            mirror.push()
    rows, problems = _settle(context, catalogue, sources)
    write_parquet(context.folder / "rows.parquet", rows)
    set_aside(context, problems)
    write_json(context.folder / "features.json", {name: _about(context, source) for name, source in sources.items()})
    return StageResult(rows.num_rows, {"rows": rows.num_rows, "quarantined": len(problems), "extracted": extracted})


def _pending(
    context: StageContext, options: ExtractOptions, catalogue: Catalogue, source: FeatureSource, plan: FramePlan | None
) -> dict[str, str]:
    """Make sure that a feature's store is there; video id -> record key of the rows that it lacks."""
    sampling = options.sampling[source.sampling].model_dump(mode="json") if source.sampling else None
    provenance = {"extractor_key": source.key, "name": source.name, "words": source.description, "sampling": sampling}
    feature = options.features[source.name]
    engine = _engine(context, feature)
    device = context.runtime.torch_device()
    arithmetic = arithmetic_of(feature, device, context.runtime.precision)
    made: dict[str, Any] = {"weights": source.weights, "options": feature.model_dump(mode="json"), "engine": engine}
    made |= {"device": device_name(device), "arithmetic": arithmetic}
    if isinstance(feature, BackboneFeature) and feature.is_of_transformers:
        made |= {"transformers": version("transformers"), "classes": labels_of(feature)}
    path = context.workspace.features / source.store
    store = FeatureStore.create(path, provenance=provenance | made | versions())
    if not len(store.view()) and any(store.provenance.get(name) != made[name] for name in ("engine", "device", "arithmetic")):
        store.set_provenance(**{name: made[name] for name in ("engine", "device", "arithmetic")})
    if mirror := mirror_of(store, context.runtime):
        mirror.pull()
    if context.runtime.retry_quarantined:
        context.file_cache.forget_failures(source.key)
    wanted = {id: key for id, key in catalogue.usable_keys.items() if plan is None or id in plan}
    failed = context.file_cache.failures(source.key)
    fresh = store.view().fresh(wanted)
    return {id: key for id, key in wanted.items() if id not in fresh and key not in failed}


def _extract(
    context: StageContext,
    options: ExtractOptions,
    catalogue: Catalogue,
    pending: dict[str, dict[str, str]],
    plans: dict[str, FramePlan],
    tagger: ArtifactRef | None,
) -> dict[str, int]:
    """Everything that is pending, shard by shard: feature -> how many rows were computed. Failures are noted as they come, so
    that they are not tried again."""
    counts = {name: len(rows) for name, rows in pending.items()}
    if not pending:
        return counts
    sources: dict[str, FeatureSource] = context.prepared
    ids = [id for id in catalogue.usable_keys if any(id in rows for rows in pending.values())]
    features = []
    for name, rows in pending.items():
        source, plan = sources[name], sources[name].sampling or ""
        store, sampling = str(context.workspace.features / source.store), options.sampling.get(plan)
        engine = _engine_of_store(context, options.features[name], FeatureStore.open(Path(store)))
        features.append(PendingRows(name, options.features[name], store, source.weights, sampling, plan, rows, engine))
    weights = str(context.path(tagger) / "tagger.safetensors") if tagger else None

    def shards() -> Iterator[Shard]:
        probes = probes_of(context, catalogue, ids)
        while block := dict(islice(probes, context.runtime.shard)):
            videos = []
            for id, probe in block.items():
                frames = {name: plan.frames(id) for name, plan in plans.items() if id in plan}
                videos.append(Video(id, catalogue.path_of(id), catalogue.records[id].segment, probe, frames))
            here = (replace(f, rows={id: f.rows[id] for id in block if id in f.rows}) for f in features)
            yield Shard(tuple(videos), tuple(here), weights, context.runtime)

    totals = {f"extracting {name}": len(rows) for name, rows in pending.items()}
    with progress_bars(totals, "videos") as shown:
        for outcome in run_shards(shards(), context.runtime):
            shown[f"extracting {outcome.feature}"].advance()
            if outcome.bad is not None:
                counts[outcome.feature] -= 1
                reason = nameless(outcome.bad.reason, catalogue.path_of(outcome.id))
                key = pending[outcome.feature][outcome.id]
                context.file_cache.note_failure(key, sources[outcome.feature].key, outcome.bad.kind, reason)
    return {name: count for name, count in counts.items() if count}


def _engine(context: StageContext, feature: FeatureOptions) -> Engine:
    """The engine that this run would take for a feature."""
    runtime = context.runtime
    chosen = "torch" if runtime.engine == "auto" and runtime.address else runtime.engine
    return engine_of(feature, chosen, runtime.torch_device())


def _engine_of_store(context: StageContext, feature: FeatureOptions, store: FeatureStore) -> Engine:
    """The engine that goes on with a store: the one that made its rows."""
    mine, made = _engine(context, feature), store.provenance.get("engine", "torch")
    if made == mine:
        return mine
    if context.runtime.engine != "auto" or (made == "openvino" and context.runtime.torch_device() != "cpu"):
        why = f"the rows of {store.path} were made by {made}, and {mine} would make others, by rounding"
        remedy = f"set runtime.engine to {made}" + (" and runtime.device to cpu" if made == "openvino" else "")
        raise Mismatch(f"{why}; {remedy} to go on with them, or remove that folder to make all anew")
    words = f"{store.name}: its rows so far were made by {made}, so {made} goes on; remove {store.path} to make all by {mine}"
    console.print(words, highlight=False, markup=False)
    return engine_of(feature, made, "cpu")


def _settle(context: StageContext, catalogue: Catalogue, sources: dict[str, FeatureSource]) -> tuple[pa.Table, list[Problem]]:
    """What there is now: the rows of every feature, and what could not be extracted."""
    rows: list[tuple[str, str, str]] = []
    problems: dict[str, Problem] = {}
    for name, source in sources.items():
        view = FeatureStore.open(context.workspace.features / source.store).view()
        keys = catalogue.usable_keys
        if not source.extracted:  # imported rows have keys of their own, and the newest row of a video counts
            all_rows = view.table().select(["video_id", "video_key"]).to_pylist()
            keys = {row["video_id"]: row["video_key"] for row in all_rows if row["video_id"] in catalogue.records}
        rows += ((name, id, keys[id]) for id in sorted(view.fresh(keys)))
        failed = context.file_cache.failures(source.key) if source.extracted else {}
        for id, key in catalogue.usable_keys.items():
            if key in failed:
                kind, reason = failed[key]
                problems[id] = Problem(id, kind, reason, catalogue.records[id].source or "", quarantined=True)
    return rows_table(rows), list(problems.values())


def rows_table(rows: Iterable[tuple[str, str, str]]) -> pa.Table:
    """(feature, video id, key) of rows as rows.parquet holds them."""
    schema = pa.schema([(name, pa.string()) for name in ("feature", "id", "key")])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _about(context: StageContext, source: FeatureSource) -> dict[str, Any]:
    """What later stages and the report need to know of a feature."""
    feature_shape = FeatureStore.open(context.workspace.features / source.store).feature_shape
    if feature_shape is None:
        reason = f"no video gave any '{source.name}' features"
        raise MissingFeatures(f"{reason}; 'longtake status' lists why each one is in the quarantine")
    return {**source.to_json(), "size": feature_shape[-1], "shape": list(feature_shape)}


def device_name(device: str) -> str:
    """cpu, or the GPU by its name."""
    return "cpu" if device == "cpu" else torch.cuda.get_device_name()


def versions() -> dict[str, str]:
    """Which software made a row."""
    return {name: version(name) for name in ("longtake", "torch", "torchvision", "timm", "av", "decord")}
