"""Ready-made features in the forms people keep them: a folder of <id>.npy, one .npy with ids, .npz, HDF5 keyed by id, or one
matrix of an HDF5 file with ids.

A source lists its entries by header only and loads an entry's values when asked, so nothing is held whole in memory.
No form is ever unpickled. What 'longtake features export' wrote also brings the times of its steps."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadInput, UsageError
from storage.records import Problem

_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError)
"""What numpy, zipfile and h5py raise on broken files."""
EXPORT_NOTE = "longtake-export.json"
"""Beside exported .npy files: what made them. Written last."""
EXPORT_ROWS = "longtake-export.parquet"
"""Beside exported .npy files: video_id, pts, damaged of each."""
EXPORT_ATTRIBUTE = "longtake_features"
"""Of an exported HDF5 file: the same note as JSON."""


@dataclass(frozen=True)
class RowMetadata:
    """What is known of a row beside its values."""

    pts: np.ndarray | None = None
    damaged: bool = False


@dataclass(frozen=True)
class SourceEntry:
    """The features of one id: their shape as stored, and how to get them and what is known of them."""

    id: str
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray]
    note: Callable[[], RowMetadata] = RowMetadata


@dataclass(frozen=True)
class ImportSource:
    """Features as they were given: the form's name, the files that make it up, its entries or what is wrong, its path.

    dtype: the precision that Longtake exported them in; None for what others made."""

    form: str
    files: list[Path]
    entries: list[SourceEntry]
    problems: list[Problem]
    dtype: str | None = None
    path: Path = Path()


@dataclass(frozen=True)
class MatrixPart:
    """What is taken of a file whose rows belong to a list of ids: the data set of an HDF5 file, the columns of each row."""

    dataset: str | None = None
    columns: tuple[int, int] | None = None
    """the first, and the one behind the last"""

    @classmethod
    def parse(cls, dataset: str | None, columns: str | None) -> MatrixPart:
        """Columns are written as 0:300."""
        if columns is None:
            return cls(dataset)
        first, _, end = columns.partition(":")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            raise UsageError(f"--columns is FIRST:END, such as 0:300 for the first 300, not {columns!r}")
        return cls(dataset, (int(first), int(end)))


WHOLE = MatrixPart()


@contextmanager
def open_source(path: Path, ids: Path | None, part: MatrixPart = WHOLE) -> Iterator[ImportSource]:
    """The source at `path`, by what it is: a folder, or a file with one of the endings of FORMS. With `ids` it is one array whose
    rows are theirs, of which `part` is taken."""
    form = "folder" if path.is_dir() else path.suffix.lower()
    if not path.exists():
        raise BadInput(f"there is no {path} to import features from; check the path")
    if form not in (*FORMS, ".npy"):
        raise BadInput(f"cannot import features from {path}; known are a folder of <id>.npy, .npy, .npz, .h5 and .hdf5")
    if ids is None and form == ".npy":
        raise UsageError(f"{path} needs a file of ids, one for each row (--ids FILE)")
    one_array = form == ".npy" or (form in (".h5", ".hdf5") and part.dataset is not None)
    if one_array and ids is None:
        raise UsageError(f"--dataset names one array of {path}: give the ids of its rows (--ids FILE)")
    if ids is not None and not one_array:
        raise UsageError(f"{path} has ids already: leave out --ids, or name the array that is meant (--dataset NAME)")
    if (part.columns and not one_array) or (part.dataset and form == ".npy"):
        raise UsageError("--dataset is for HDF5, --columns for one array with --ids: leave them out")
    with ExitStack() as stack:
        try:
            if ids is not None:
                source = stack.enter_context(_array(path, ids, part))
            else:
                source = stack.enter_context(FORMS[form](path))
        except UNREADABLE as error:
            raise BadInput(f"cannot read {path} ({error}); is it complete, and what its name says?") from error
        yield replace(source, path=path)


@contextmanager
def _folder(path: Path) -> Iterator[ImportSource]:
    files = sorted(file for file in path.iterdir() if file.suffix == ".npy" and file.is_file())
    if not files:
        raise BadInput(f"no .npy file lies in {path}; it should hold one <id>.npy for each video")
    dtype, notes = _exported(path)
    source = ImportSource("folder of .npy", files, [], [], dtype)
    for file in files:
        with _record_unreadable(source.problems, file.stem, file.name), file.open("rb") as stream:
            shape = _npy_shape(stream)
            load = partial(np.load, file, mmap_mode="r", allow_pickle=False)
            source.entries.append(SourceEntry(file.stem, shape, load, notes.get(file.stem, RowMetadata)))
    yield source


def _exported(folder: Path) -> tuple[str | None, dict[str, Callable[[], RowMetadata]]]:
    """dtype and id -> note of a folder that Longtake exported to; nothing of any other."""
    try:
        dtype = json.loads((folder / EXPORT_NOTE).read_bytes())["dtype"]
        table = pq.read_table(folder / EXPORT_ROWS, columns=["video_id", "pts", "damaged"])
    except FileNotFoundError:
        return None, {}
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        remedy = "export again, or remove both to import the values without their times"
        raise BadInput(f"{folder / EXPORT_NOTE} or {EXPORT_ROWS} is damaged ({error}); {remedy}") from error
    pts = table["pts"].combine_chunks()
    rows = enumerate(zip(table["video_id"].to_pylist(), table["damaged"].to_pylist(), strict=True))
    return dtype, {video_id: partial(_note_of, pts, n, damaged) for n, (video_id, damaged) in rows}


def _note_of(pts: pa.ListArray, n: int, damaged: bool) -> RowMetadata:
    return RowMetadata(np.asarray(pts[n].values) if pts[n].is_valid else None, damaged)


@contextmanager
def _array(path: Path, ids: Path, part: MatrixPart) -> Iterator[ImportSource]:
    """One array [N, D] or [N, L, D] whose rows belong to the ids: a .npy file, or a data set of an HDF5 file."""
    with ExitStack() as stack:
        if part.dataset is None:
            with path.open("rb") as stream:
                _npy_shape(stream)
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            array = _dataset(stack.enter_context(h5py.File(path, "r")), part.dataset)
        names, shape = read_ids(ids), array.shape
        if len(shape) < 2 or len(names) != shape[0]:
            raise BadInput(f"{path} has shape {list(shape)} and {ids} has {len(names)} ids; one id for each row is needed")
        first, end = part.columns or (0, shape[-1])
        if end > shape[-1]:
            raise BadInput(f"{path} has rows of {shape[-1]} columns: there is no column {end - 1}; check --columns")
        shape = (*shape[1:-1], end - first)
        entries = [SourceEntry(name, shape, partial(_row, array, n, first, end)) for n, name in enumerate(names)]
        form = "one .npy" if part.dataset is None else f"HDF5, {part.dataset}"
        if part.columns:
            form += f", columns {first}:{end}"
        yield ImportSource(form, [path, ids], entries, [])


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A data set of numbers by its path, such as "feats"."""
    found: h5py.Group | h5py.Dataset = file
    for step in name.strip("/").split("/"):
        known = ", ".join(found) if isinstance(found, h5py.Group) else ""
        if not isinstance(found, h5py.Group) or step not in found or not _is_own(found, step, []):
            raise BadInput(f"{file.filename} has no data set '{name}'; there are {known or 'none'}")
        found = found[step]
    if not isinstance(found, h5py.Dataset) or found.dtype.kind not in "fiu":
        raise BadInput(f"'{name}' of {file.filename} is no array of numbers")
    return found


def _row(array: Any, n: int, first: int, end: int) -> np.ndarray:
    row: np.ndarray = array[n][..., first:end]
    return row


@contextmanager
def _npz(path: Path) -> Iterator[ImportSource]:
    source = ImportSource(".npz", [path], [], [])
    with zipfile.ZipFile(path) as members:
        for member in members.namelist():
            name = member.removesuffix(".npy")
            with _record_unreadable(source.problems, name, path.name), members.open(member) as stream:
                source.entries.append(SourceEntry(name, _npy_shape(stream), partial(_load_member, members, member)))
        yield source


@contextmanager
def _hdf5(path: Path) -> Iterator[ImportSource]:
    source = ImportSource("HDF5", [path], [], [])
    with h5py.File(path, "r") as file:
        ours = EXPORT_ATTRIBUTE in file.attrs
        for name, dataset in _named_datasets(file, source.problems):
            if dataset.dtype.kind not in "fiu":
                reason = f"{dataset.name} holds {dataset.dtype}"
                source.problems.append(Problem(name, "not_numbers", reason, path.name, True))
            else:
                note = partial(_hdf5_note, dataset) if ours else RowMetadata
                source.entries.append(SourceEntry(name, dataset.shape, partial(dataset.__getitem__, ()), note))
                if ours:
                    source = replace(source, dtype=dataset.dtype.name)
        yield source


def _hdf5_note(dataset: h5py.Dataset) -> RowMetadata:
    pts = dataset.attrs.get("pts")
    return RowMetadata(None if pts is None else np.asarray(pts, np.float64), bool(dataset.attrs.get("damaged", False)))


FORMS = {"folder": _folder, ".npz": _npz, ".h5": _hdf5, ".hdf5": _hdf5}
"""those that name their ids themselves; one .npy does not"""


def _named_datasets(file: h5py.File, problems: list[Problem]) -> Iterator[tuple[str, h5py.Dataset]]:
    """Ids and datasets: /<id>, or /<id>/<anything>, or /<anything>/<id> below a single group."""
    below: list[tuple[str, str, h5py.Dataset]] = []
    groups = [name for name in file if _is_own(file, name, problems) and isinstance(file[name], h5py.Group)]
    for name in file:
        if _is_own(file, name, []) and isinstance(file[name], h5py.Dataset):
            yield name, file[name]
    for group in groups:
        for name in file[group]:
            if _is_own(file[group], name, problems) and isinstance(file[group][name], h5py.Dataset):
                below.append((group, name, file[group][name]))
    leaves = {name for _, name, _ in below}
    if len(groups) == 1 and len(leaves) > 1:
        yield from ((name, dataset) for _, name, dataset in below)
    elif len(leaves) == 1:
        yield from ((group, dataset) for group, _, dataset in below)
    elif leaves:
        reason = "its groups hold several data sets each: which one is wanted?"
        problems.append(Problem(file.filename, "ambiguous", reason, "", True))


def _is_own(group: h5py.Group, name: str, problems: list[Problem]) -> bool:
    """Whether a name is stored here: a link could point into any other file of this machine."""
    own = isinstance(group.get(name, getlink=True), h5py.HardLink)
    if not own:
        where = Path(group.file.filename).name
        problems.append(Problem(name, "link", "is a link, and links are not followed", where, True))
    return own


def _load_member(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _npy_shape(stream: IO[bytes]) -> tuple[int, ...]:
    """The shape in a .npy header; ValueError for anything but numbers."""
    version = np.lib.format.read_magic(stream)
    if version not in _NPY_HEADERS:
        raise ValueError(f"has the unknown .npy version {version}")
    shape, _, dtype = _NPY_HEADERS[version](stream)
    if dtype.hasobject:
        remedy = "save plain numbers: np.save(path, np.asarray(values, 'float32'))"
        raise ValueError(f"holds pickled Python objects; {remedy}")
    if dtype.kind not in "fiu":
        raise ValueError(f"holds {dtype}, not numbers")
    return shape


def read_ids(path: Path) -> list[str]:
    """One id per line, or a JSON list of strings."""
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix.lower() != ".json":
            return [line.strip() for line in text.rstrip().split("\n")]
        ids = json.loads(text)
    except (OSError, ValueError) as error:
        wanted = "one id per line, or a JSON list, is expected"
        raise BadInput(f"cannot read the ids in {path} ({error}); {wanted}") from error
    if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
        raise BadInput(f'{path} is JSON but no list of strings; the ids are expected as ["vid1", "vid2", ...]')
    return ids


@contextmanager
def _record_unreadable(problems: list[Problem], item: str, where: str) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        problems.append(Problem(item, "unreadable", str(error), where, True))
