"""Catalogue: read the annotations, fingerprint and probe every file, list what is missing or broken."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import groupby
from pathlib import Path

from storage.catalogue import Catalogue, Changes, DatasetSnapshot, compare, snapshot_dataset, write_catalogue
from storage.datasets import DatasetOptions, read_dataset
from storage.errors import BadMedia
from storage.files.file_cache import CachedProbe, FileCache
from storage.media.decode_pool import DecodePool
from storage.media.probe import Probe, probe, probe_several
from storage.workspace import Completion, Workspace
from tasks.framework.progress import progress_bar, progress_on_demand
from tasks.framework.stage import KeyInputs, StageContext, StageResult, stage

PROBE_VERSION = 2  # bump when probing finds other facts; 2: cuts, late starts and B-frames in AVI
PROBE_FIELDS = tuple(field.name for field in fields(Probe) if field.name != "pts")
_PICTURES, _PICTURES_TOGETHER = (".jpg", ".jpeg", ".png", ".webp", ".bmp"), 16
_NOTE_EVERY = 64  # probes written to the file cache at once: what a kill can cost


def _key_inputs(workspace: Workspace, data: Path, options: DatasetOptions) -> KeyInputs:
    dataset = read_dataset(options, data)
    with progress_on_demand("fingerprinting new files", "files") as progress:
        snapshot = snapshot_dataset(dataset, FileCache(workspace.file_cache_path), progress)
    return KeyInputs(snapshot.key, snapshot.parts, snapshot)


def _explain_stale(workspace: Workspace, before: Completion, snapshot: DatasetSnapshot) -> str:
    return str(changes_since(workspace, before, snapshot))


def changes_since(workspace: Workspace, before: Completion | None, snapshot: DatasetSnapshot) -> Changes:
    """What happened to the videos since a catalogue was made."""
    if before is None:
        return Changes(added=len(snapshot.record_keys))
    return compare(Catalogue(workspace.root / before.ref.uri, snapshot.dataset.root), snapshot)


def _rerun_reason(context: StageContext) -> str:
    bad = _bad_probes(context) if context.runtime.retry_quarantined else []
    return f"{len(bad)} files that could not be read are tried again" if bad else ""


def _bad_probes(context: StageContext) -> list[str]:
    known = context.file_cache.probes(context.prepared.contents.values(), PROBE_VERSION, times=False)
    return [key for key, probed in known.items() if probed.metadata is None]


# 2: probing finds other metadata
@stage(version=2, key_inputs=_key_inputs, explain_stale=_explain_stale, rerun_reason=_rerun_reason)
def catalogue(context: StageContext, options: DatasetOptions) -> StageResult:
    snapshot: DatasetSnapshot = context.prepared
    if context.runtime.retry_quarantined:
        context.file_cache.forget_probes(_bad_probes(context), PROBE_VERSION)
    paths = {key: snapshot.dataset.root / source for source, key in sorted(snapshot.contents.items())}
    probes = probe_files(context, paths, times=False)
    counts = write_catalogue(context.folder, snapshot, probes)
    return StageResult(len(snapshot.dataset.videos), {"dataset": snapshot.dataset.name, **counts})


def probe_files(context: StageContext, paths: Mapping[str, Path], times: bool) -> dict[str, CachedProbe]:
    """Facts of files by content hash, from the file cache; what it does not know yet is probed and noted. A broken file is
    noted too, and not tried again until its bytes change."""
    known = context.file_cache.probes(paths, PROBE_VERSION, times)
    todo = [key for key in paths if key not in known]
    if not todo:
        return known
    found: dict[str, CachedProbe] = {}
    with (
        progress_bar("probing videos", len(todo), "files") as shown,
        DecodePool(context.runtime.decoders, context.runtime.decode_timeout) as pool,
    ):
        for key, answer in zip(todo, _probe_all(pool, [paths[key] for key in todo]), strict=True):
            if isinstance(answer, BadMedia):
                found[key] = CachedProbe(None, None, answer.kind, nameless(answer.reason, paths[key]))
            else:
                found[key] = CachedProbe({name: getattr(answer, name) for name in PROBE_FIELDS}, answer.pts)
            shown.advance()
            if len(found) >= _NOTE_EVERY:
                context.file_cache.note_probes(found, PROBE_VERSION)
                found = {}
    context.file_cache.note_probes(found, PROBE_VERSION)
    return context.file_cache.probes(paths, PROBE_VERSION, times)


def _probe_all(pool: DecodePool, paths: list[Path]) -> Iterator[Probe | BadMedia]:
    """The probe of each file. Pictures go several at a time, since each takes less time than a message; if that costs a process,
    one by one."""
    together = [tuple(group) for _, group in groupby(enumerate(paths), _probed_together)]
    for group, found in pool.run(probe_several, [tuple(path for _, path in group) for group in together]):
        if isinstance(found, BadMedia) and len(group) > 1:
            yield from (answer for _, answer in pool.run(probe, group))
        else:
            yield from [found] if isinstance(found, BadMedia) else found


def _probed_together(numbered: tuple[int, Path]) -> int:
    """The same for files that are probed together: a few consecutive pictures."""
    number, path = numbered
    return -(number // _PICTURES_TOGETHER) - 1 if path.suffix.lower() in _PICTURES else number


def nameless(reason: str, path: Path) -> str:
    """A reason that holds for every file with these bytes, wherever it lies."""
    return reason.replace(str(path), "the file")
