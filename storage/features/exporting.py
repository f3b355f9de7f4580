"""Exporting a feature store to what other tools read: a folder of <id>.npy, or one HDF5 file keyed by video id.

Values are those of each video's newest row, in the store's own precision, checked against their checksums. An export can be
imported again to the same rows, times included. Files appear whole or not at all, and nothing that was there is replaced
unless that is asked for."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadInput, StorageError, UnsafeId, UsageError, wrap_os_errors
from storage.features.import_sources import EXPORT_ATTRIBUTE, EXPORT_NOTE, EXPORT_ROWS, UNREADABLE
from storage.features.maintenance import ProgressCallback
from storage.features.segments import INDEX_SCHEMA, FeatureRow
from storage.features.store import FeatureStore
from storage.files.atomic import sync_file, sync_folder, write_json, write_parquet
from storage.files.hashing import digest_rows
from storage.files.locks import file_identity, working_file
from storage.records import Problem, check_video_id

ExportFormat = Literal["npy", "hdf5"]
_BUSY = "another export holds {path}; wait for it, or choose another --out"


@dataclass(frozen=True)
class ExportReport:
    """What an export did: rows written now, rows that were there already, and what was left out and why."""

    path: Path
    written: int
    already: int
    problems: tuple[Problem, ...]

    def summary(self) -> str:
        """One line for people."""
        done = f"{self.written} written" if self.written else "nothing to do"
        counts = {"already there": self.already, "left out": len(self.problems)}
        return ", ".join([f"{self.path}: {done}", *(f"{count} {what}" for what, count in counts.items() if count)])


def export_features(
    store: FeatureStore,
    form: ExportFormat,
    path: Path,
    *,
    ids: Collection[str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> ExportReport:
    """Write the newest row of every video, or of `ids`, below or to `path`.

    An id that is unsafe as a file name (a slash, a control character, a leading dot, over 200 bytes) or that this file
    system cannot tell from another (such as A and a) is left out and listed; so is a row that differs from its checksum."""
    rows = _Rows(store, ids)
    if not rows.wanted:
        if ids:
            count = len(rows.view.lengths())
            raise BadInput(f"none of the ids asked for is in '{store.name}': it has {count} videos; check the ids")
        raise BadInput(f"'{store.name}' in {store.path} has no rows to export; run 'longtake run' first")
    with wrap_os_errors(path):
        written, already = _FORMS[form](rows, path, overwrite, progress)
    return ExportReport(path, written, already, tuple(rows.problems))


class _Rows:
    """The rows to export, sorted by id, and the problems met on the way."""

    def __init__(self, store: FeatureStore, ids: Collection[str] | None):
        self.store, self.view = store, store.view()
        self.problems: list[Problem] = []
        self.wanted: list[str] = []
        there = self.view.lengths()
        for video_id in sorted(set(there if ids is None else ids)):
            try:
                check_video_id(video_id)
            except UnsafeId as error:
                self.leave_out(video_id, "unsafe_id", str(error))
                continue
            if video_id in there:
                self.wanted.append(video_id)
            else:
                self.leave_out(video_id, "no_features", f"has no row in '{store.name}'; extract or import it first")

    def leave_out(self, video_id: str, kind: str, reason: str) -> None:
        self.problems.append(Problem(video_id, kind, reason, str(self.store.path), True))

    def each(self, progress: ProgressCallback | None) -> Iterator[FeatureRow]:
        """Every intact row; the others become problems."""
        for done, video_id in enumerate(self.wanted, 1):
            try:
                yield self.view.row(video_id)
            except StorageError as error:
                self.leave_out(video_id, "damaged_row", str(error))
            if progress:
                progress(done, len(self.wanted))

    def note(self, crc32s: dict[str, int | None]) -> dict[str, Any]:
        """What an export of these rows (id -> checksum) holds, for people and for importing it again."""
        store = self.store
        content = digest_rows((video_id, str(crc32)) for video_id, crc32 in sorted(crc32s.items()))
        note = {"name": store.name, "dtype": store.dtype.name, "shape": ["L", *(store.feature_shape or ())]}
        return note | {"videos": len(crc32s), "content": content, "provenance": store.provenance}


def _to_npy(rows: _Rows, folder: Path, overwrite: bool, progress: ProgressCallback | None) -> tuple[int, int]:
    """One file per video; files with the same values stay, so a killed export goes on where it stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = _listed_before(folder, rows.store)
    exported: dict[tuple[int, int] | None, str] = {}
    written: list[Path] = []
    with working_file(folder / f"{EXPORT_NOTE}.lock", _BUSY):
        for row in rows.each(progress):
            file = folder / f"{row.video_id}.npy"
            identity = file_identity(file)
            if identity in exported:
                reason = f"would have the same file as {exported[identity]} on this file system; export to hdf5 instead"
                rows.leave_out(row.video_id, "same_file", reason)
                continue
            if identity is None or not _holds(file, row.array):
                if identity is not None and not overwrite:
                    reason = f"{file} is there with other values and was left alone; pass --overwrite to replace it"
                    rows.leave_out(row.video_id, "exists", reason)
                    continue
                with (folder / f"{EXPORT_NOTE}.partial").open("wb") as stream:
                    np.lib.format.write_array(stream, np.ascontiguousarray(row.array), allow_pickle=False)
                Path(stream.name).replace(file)
                written.append(file)
            exported[file_identity(file)] = row.video_id
            listed[row.video_id] = {name: getattr(row, name) for name in _LISTED.names}
        for file in written:  # only now: a disk takes many together faster than one by one
            sync_file(file)
        write_parquet(folder / EXPORT_ROWS, pa.Table.from_pylist([listed[id] for id in sorted(listed)], _LISTED))
        write_json(folder / EXPORT_NOTE, rows.note({id: row["crc32"] for id, row in listed.items()}))
        (folder / f"{EXPORT_NOTE}.partial").unlink(missing_ok=True)  # of an export that was killed
    return len(written), len(exported) - len(written)


_LISTED = pa.schema([INDEX_SCHEMA.field(name) for name in ("video_id", "video_key", "pts", "crc32", "damaged")])


def _listed_before(folder: Path, store: FeatureStore) -> dict[str, dict[str, Any]]:
    """id -> what an earlier export of this store to this folder recorded of it; an export of another store is refused."""
    try:
        note = json.loads((folder / EXPORT_NOTE).read_bytes())
        rows = pq.read_table(folder / EXPORT_ROWS, columns=_LISTED.names).to_pylist()
        same = note["provenance"]["extractor_key"] == store.provenance["extractor_key"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise BadInput(f"{folder / EXPORT_NOTE} is damaged ({error}); remove it, or choose another --out") from error
    if not same:
        raise UsageError(f"{folder} holds an export of other features, '{note.get('name')}'; choose another --out")
    return {row["video_id"]: row for row in rows if (folder / f"{row['video_id']}.npy").exists()}


def _to_hdf5(rows: _Rows, path: Path, overwrite: bool, progress: ProgressCallback | None) -> tuple[int, int]:
    """One data set per video. The file takes its name when it is whole; a killed export starts anew."""
    if path.exists() and not overwrite:
        if _note_of(path) == rows.note({video_id: rows.view.newest_crc32(video_id) for video_id in rows.wanted}):
            return 0, len(rows.wanted)
        raise UsageError(f"{path} is there and holds something else; pass --overwrite to replace it, or another --out")
    path.parent.mkdir(parents=True, exist_ok=True)
    written: dict[str, int | None] = {}
    # v108: older layouts refuse attributes over 64 kB, which the times of a long video need
    with working_file(path.with_name(f"{path.name}.partial"), _BUSY) as partial:
        with h5py.File(partial, "w", libver=("v108", "v108"), locking=False) as file:
            for row in rows.each(progress):
                dataset = file.create_dataset(row.video_id, data=row.array)
                dataset.attrs.update({"video_key": row.video_key, "damaged": row.damaged, "crc32": row.crc32})
                if row.pts is not None:
                    dataset.attrs["pts"] = row.pts
                written[row.video_id] = row.crc32
            file.attrs[EXPORT_ATTRIBUTE] = json.dumps(rows.note(written), ensure_ascii=False)
        sync_file(partial)
        partial.replace(path)
        sync_folder(path.parent)
    return len(written), 0


_FORMS = {"npy": _to_npy, "hdf5": _to_hdf5}


def _holds(file: Path, array: np.ndarray) -> bool:
    """Whether a .npy file holds exactly these values in this precision."""
    try:
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except UNREADABLE:
        return False
    return found.dtype == array.dtype and np.array_equal(found, array)


def _note_of(path: Path) -> Any:
    try:
        with h5py.File(path, "r") as file:
            return json.loads(file.attrs.get(EXPORT_ATTRIBUTE, "null"))
    except UNREADABLE:
        return None
