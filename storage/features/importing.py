"""Importing ready-made features into a feature store of their own, checked row by row.

What was imported, from where and when is a group of its own below <store>/imports, one for each source. Bad rows are
problems, left out and listed; the rest goes in. The same source again changes nothing, another one under the same name
replaces the rows of the ids it has."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import LocalStore

from storage.errors import BadInput, Mismatch, UnsafeId, wrap_os_errors
from storage.features.import_sources import UNREADABLE, WHOLE, ImportSource, MatrixPart, SourceEntry, open_source
from storage.features.maintenance import ProgressCallback
from storage.features.segments import Shape, row_crc32
from storage.features.store import FeatureDType, FeatureStore
from storage.files.atomic import sync_file, sync_folder
from storage.files.hashing import digest_file, digest_rows
from storage.records import Problem, check_video_id


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    imported: rows written now; already: rows that were there, unchanged; unknown: ids the data set does not have, left
    out; missing: ids of the data set without a feature in this source; problems: entries left out and why; digest: the
    store's digest afterwards; source_hash: the hash of the source's bytes; feature_shape: the shape of one step."""

    name: str
    imported: int
    already: int
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    problems: tuple[Problem, ...]
    digest: str
    source_hash: str
    feature_shape: tuple[int, ...]

    def summary(self) -> str:
        """One line for people."""
        done = f"{self.imported} imported" if self.imported else "nothing to do"
        counts = {"already there": self.already, "unknown to the data set": len(self.unknown)}
        counts |= {"without features": len(self.missing), "left out as bad": len(self.problems)}
        return ", ".join([f"'{self.name}': {done}", *(f"{count} {what}" for what, count in counts.items() if count)])


Progress = ProgressCallback | None


def import_features(
    store_path: Path,
    source: Path,
    *,
    ids: Path | None = None,
    video_keys: Mapping[str, str] | None = None,
    known_ids: Collection[str] | None = None,
    name: str,
    dtype: FeatureDType | None = None,
    part: MatrixPart = WHOLE,
    progress: ProgressCallback | None = None,
) -> ImportReport:
    """Copy the features in `source` into the store at `store_path`, making it if need be.

    source: a folder of <id>.npy, one .npy [N, L, D] or [N, D] with `ids` (or `part` of such an array in HDF5), .npz or HDF5
    keyed by id; a vector [D] becomes [1, D], and L may be 0. known_ids: the data set's ids, None to take all. A row's key is
    video_keys[id], else it names the source. dtype: None keeps the store's, else what Longtake exported in, else float16."""
    with open_source(source, ids, part) as opened:
        entries, unknown = _wanted(opened, known_ids)
        if not entries:
            raise BadInput(_explain_nothing_imported(opened, unknown, known_ids))
        # of the source's bytes; of several files, of their names and hashes
        hashes = [(file.name, digest_file(file)) for file in opened.files]
        source_hash = hashes[0][1] if len(hashes) == 1 else digest_rows(hashes)
        shape = Counter(_step(entry) for entry in entries).most_common(1)[0][0]
        store = _open_store(store_path, name, shape, dtype, opened)
        key = f"imported:{source_hash[:16]}"
        rows = [(entry, (video_keys or {}).get(entry.id, key)) for entry in entries]
        present, imported = _copy(store, opened, rows, shape, progress)
    if present:
        _record(store, opened, source_hash, shape, len(present))
    missing = tuple(sorted(set(known_ids or ()) - present))
    left_out = (tuple(unknown), missing, tuple(opened.problems))
    return ImportReport(name, imported, len(present) - imported, *left_out, store.digest(), source_hash, shape)


def imports(store: FeatureStore) -> list[dict[str, Any]]:
    """What was imported into a store, oldest first."""
    return [json.loads(note.read_bytes())["attributes"] for note in sorted(store.path.glob("imports/*/zarr.json"))]


def _wanted(source: ImportSource, known: Collection[str] | None) -> tuple[list[SourceEntry], list[str]]:
    """The entries worth loading, and the ids that the data set does not know."""
    known = None if known is None else frozenset(known)
    entries: dict[str, SourceEntry] = {}
    unknown = []
    where, problems = source.files[0].name, source.problems
    for entry in source.entries:
        try:
            check_video_id(entry.id)
        except UnsafeId as error:
            problems.append(Problem(entry.id, "unsafe_id", str(error), where, True))
            continue
        if known is not None and entry.id not in known:
            unknown.append(entry.id)
        elif entry.id in entries:
            problems.append(Problem(entry.id, "duplicate", "comes twice; the first one counts", where, True))
        elif not entry.shape or 0 in _step(entry):
            problems.append(Problem(entry.id, "empty", f"has shape {list(entry.shape)}: no values", where, True))
        else:
            entries[entry.id] = entry
    return list(entries.values()), unknown


def _step(entry: SourceEntry) -> tuple[int, ...]:
    """The shape of one step: [D] and [L, D] -> (D,), [L, R, D] -> (R, D)."""
    return entry.shape[1:] if len(entry.shape) > 1 else entry.shape


def _copy(
    store: FeatureStore, source: ImportSource, rows: list[tuple[SourceEntry, str]], feature_shape: Shape, report: Progress
) -> tuple[set[str], int]:
    """Write what is not there yet -> ids whose row is in the store now, number of rows written."""
    view, where, problems = store.view(), source.path.name, source.problems
    present: set[str] = set()
    imported = 0
    with store.writer() as writer:
        for done, (entry, key) in enumerate(rows, 1):
            try:
                if _step(entry) != feature_shape:
                    raise BadInput(f"has steps of shape {list(_step(entry))}, most have {list(feature_shape)}")
                array = entry.load().reshape(-1, *feature_shape)
                with np.errstate(over="ignore"):
                    stored = array.astype(store.dtype)
                if view.newest_crc32(entry.id, key) != row_crc32(stored):
                    note = entry.note()
                    writer.add(entry.id, key, array, note.pts, note.damaged)
                    imported += 1
                present.add(entry.id)
            except BadInput as error:
                problems.append(Problem(entry.id, "bad_features", str(error), where, True))
            except UNREADABLE as error:
                problems.append(Problem(entry.id, "unreadable", str(error), where, True))
            if report:
                report(done, len(rows))
    return present, imported


def _open_store(path: Path, name: str, feature_shape: Shape, dtype: FeatureDType | None, source: ImportSource) -> FeatureStore:
    provenance = {"extractor_key": f"imported:{name}", "kind": "imported", "name": name}
    known = FeatureStore.open(path).dtype.name if (path / "zarr.json").exists() else source.dtype
    chosen = dtype or ("float32" if known == "float32" else "float16")
    store = FeatureStore.create(path, provenance=provenance, dtype=chosen)
    if store.feature_shape not in (None, feature_shape):
        found = f"'{name}' in {path} has {list(store.feature_shape or ())}; import it under another name"
        raise Mismatch(f"{source.path} has steps of shape {list(feature_shape)}, but {found}")
    return store


def _record(store: FeatureStore, source: ImportSource, source_hash: str, feature_shape: Shape, rows: int) -> None:
    """Note what was imported, last, so that the note stands for a finished import."""
    root = store.path / "imports"
    same = {"content_hash": source_hash, "rows": rows, "format": source.form}
    if any(note.items() >= same.items() for note in imports(store)[-1:]):
        return
    now = datetime.now(UTC)
    note = {"imported": True, "name": store.name, "source": source.path.name, "format": source.form}
    note |= {"content_hash": source_hash, "shape": ["L", *feature_shape], "rows": rows}
    note["time"] = now.isoformat(timespec="seconds")
    with wrap_os_errors(root):
        if not (root / "zarr.json").exists():
            zarr.create_group(store=LocalStore(root), zarr_format=3)
        folder = root / f"{now:%Y%m%dT%H%M%S%f}-{source_hash[:16]}"
        zarr.create_group(store=LocalStore(folder), attributes=note, zarr_format=3)
        for path in (root, folder):
            sync_file(path / "zarr.json")
            sync_folder(path)


def _explain_nothing_imported(source: ImportSource, unknown: list[str], known: Collection[str] | None) -> str:
    """Why not one row can be imported."""
    if unknown:
        theirs = f", but the data set's are such as {min(known)!r}" if known else ""
        found = f"it has ids such as {unknown[0]!r}{theirs}"
        return f"no id of {source.path} is in the data set: {found}; rename them, or check the data set"
    for problem in source.problems:
        return f"nothing in {source.path} can be imported: {problem.item}: {problem.reason}"
    return f"{source.path} is empty; it should hold the features of each video under its id"
