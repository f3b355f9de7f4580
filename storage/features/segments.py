"""One segment of a feature store on disk: its name, how it is published and how it is deleted.

    <store>/<segment>/zarr.json         a Zarr v3 group
                      data/zarr.json    its array [sum L, *feature_shape]: little-endian, uncompressed, unsharded, fill NaN
                      data/c.0.0 ...    chunks of about 12 MB, whole rows each
                      index.parquet     which video lies where; renamed in last, so only an indexed row exists

A segment is never changed once its index is there. `written` in the index says when a row was first written; it travels
with the row through merging, so that "the newest row" means the same before and after."""

import hashlib
import os
import re
import shutil
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import zarr
from zarr.storage import LocalStore

from storage.errors import wrap_os_errors
from storage.files.atomic import sync_file, sync_folder, write_parquet
from storage.files.parent_watch import is_running

CHUNK_BYTES = 12_000_000
INDEX = "index.parquet"
DATA = "data"
_DEAD = ".dead-"
_STAGED = ".pull-"
_ABANDONED_SECONDS = 3600
_WRITER = r"(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}"
_NAME = re.compile(rf"(?P<stamp>\d{{20}})-{_WRITER}")
_STAGED_NAME = re.compile(re.escape(_STAGED) + _WRITER)

INDEX_SCHEMA = pa.schema(
    {"video_id": "string", "video_key": "string", "start": "int64", "length": "int64"}
    | {"pts": pa.list_(pa.float64()), "crc32": "uint32", "damaged": "bool", "written": "int64"}
)
_LAYOUT: dict[str, Any] = {"compressors": None, "filters": None, "fill_value": np.nan}
_LAYOUT |= {"chunk_key_encoding": {"name": "default", "separator": "."}, "config": {"write_empty_chunks": True}}
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """The features of one video: array [L, *feature_shape] in the store's dtype, pts (L,) seconds or None.

    `written` orders rows in time; None stands for the moment of the segment it is about to be written to."""

    video_id: str
    video_key: str
    array: np.ndarray
    pts: np.ndarray | None
    crc32: int
    damaged: bool
    written: int | None = None


def row_crc32(array: np.ndarray) -> int:
    """The checksum of a row's bytes as they lie on disk."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def segment_names(store: Path) -> list[str]:
    """Every segment folder, indexed or not, oldest first."""
    return sorted(path.name for path in store.iterdir() if is_segment_name(path.name))


def is_segment_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def write_segment(store: Path, rows: Sequence[FeatureRow], feature_shape: Shape, dtype: np.dtype) -> Path:
    """Publish rows as one new segment -> its folder. Arrays first, fsync, then the index."""
    with wrap_os_errors(store):
        segment, stamp = _new_segment(store)
        try:
            _write_arrays(segment, rows, feature_shape, dtype)
            _sync_tree(segment)
            write_parquet(segment / INDEX, _index_table(rows, stamp))
        except BaseException:
            delete_segment(segment)
            raise
        sync_folder(store)
    return segment


def delete_segment(segment: Path) -> None:
    """Take a segment out of the store. The rename makes it vanish whole; what readers have mapped stays readable."""
    dead = segment.with_name(_DEAD + segment.name)
    try:
        segment.rename(dead)
    except FileNotFoundError:  # another process deleted it first
        return
    shutil.rmtree(dead, ignore_errors=True)


@contextmanager
def staged(segment: Path) -> Iterator[Path]:
    """A hidden folder to fill with a copy of a whole segment, index and all; it takes the segment's name when the block
    ends well, so that the copy appears at once or never. A copy that came first stays."""
    stage = segment.with_name(f"{_STAGED}{_machine()}-{os.getpid()}-{uuid4().hex[:8]}")
    stage.mkdir()
    try:
        yield stage
        _sync_tree(stage)
        if not (segment / INDEX).exists():
            delete_segment(segment)  # what a writer left here that was killed before it wrote the index
            try:
                stage.rename(segment)
            except OSError:
                if not (segment / INDEX).exists():
                    raise
        sync_folder(segment.parent)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def is_abandoned(segment: Path) -> bool:
    """Whether a segment has no index and will never get one: its writer died, or nothing happened for an hour."""
    name = _NAME.fullmatch(segment.name)
    return name is not None and not (segment / INDEX).exists() and _has_no_writer(segment, name)


def _has_no_writer(folder: Path, name: re.Match[str]) -> bool:
    if name["machine"] == _machine() and not is_running(int(name["pid"])):
        return True
    try:
        return time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS
    except FileNotFoundError:
        return False


def remove_leftovers(store: Path) -> int:
    """Remove what killed writers, pulls and compactions left behind -> how many folders."""
    abandoned = [store / name for name in segment_names(store) if is_abandoned(store / name)]
    for segment in abandoned:
        delete_segment(segment)
    names = [(path, _STAGED_NAME.fullmatch(path.name)) for path in store.iterdir()]
    dead = [path for path, name in names if path.name.startswith(_DEAD) or (name and _has_no_writer(path, name))]
    for folder in dead:
        shutil.rmtree(folder, ignore_errors=True)
    return len(abandoned) + len(dead)


def _new_segment(store: Path) -> tuple[Path, int]:
    """Make the folder of a segment that is newer than every other, even if the clock went backwards."""
    existing = segment_names(store)
    newest = int(existing[-1].split("-")[0]) if existing else 0
    stamp = max(time.time_ns(), newest + 1)
    segment = store / f"{stamp:020d}-{_machine()}-{os.getpid()}-{uuid4().hex[:8]}"
    segment.mkdir()
    return segment, stamp


@cache
def _machine() -> str:
    """A name for the set of processes among which a pid means one process: host, boot and pid namespace."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:  # no /proc: the host name must do
        pass
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()


def _write_arrays(segment: Path, rows: Sequence[FeatureRow], feature_shape: Shape, dtype: np.dtype) -> None:
    total = sum(len(row.array) for row in rows)
    row_bytes = dtype.itemsize * int(np.prod(feature_shape, dtype=np.int64))
    # Chunks of equal size: zarr stores the last one whole, so a short last chunk would be mostly padding.
    count = max(1, -(-total * row_bytes // CHUNK_BYTES))
    chunk_rows = max(1, -(-total // count))
    group = zarr.create_group(store=LocalStore(segment), zarr_format=3)
    shape, chunk_shape = (total, *feature_shape), (chunk_rows, *feature_shape)
    array = group.create_array(DATA, shape=shape, chunks=chunk_shape, dtype=dtype, **_LAYOUT)
    at = 0
    for chunk in _chunks(rows, np.empty(chunk_shape, dtype)):
        array[at : at + len(chunk)] = chunk
        at += len(chunk)


def _chunks(rows: Sequence[FeatureRow], buffer: np.ndarray) -> Iterator[np.ndarray]:
    """The rows one after another, in chunks of the buffer's length; each is valid until the next."""
    filled = 0
    for row in rows:
        copied = 0
        while copied < len(row.array):
            count = min(len(buffer) - filled, len(row.array) - copied)
            buffer[filled : filled + count] = row.array[copied : copied + count]
            filled, copied = filled + count, copied + count
            if filled == len(buffer):
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]


def _index_table(rows: Sequence[FeatureRow], stamp: int) -> pa.Table:
    lengths = np.array([len(row.array) for row in rows], np.int64)
    columns: dict[str, Any] = {"start": np.cumsum(lengths) - lengths, "length": lengths}
    columns["written"] = [stamp if row.written is None else row.written for row in rows]
    for name in ("video_id", "video_key", "pts", "crc32", "damaged"):
        columns[name] = [getattr(row, name) for row in rows]
    return pa.table([pa.array(columns[field.name], field.type) for field in INDEX_SCHEMA], schema=INDEX_SCHEMA)


def _sync_tree(folder: Path) -> None:
    """fsync every file and then every folder below and including `folder`: LocalStore leaves that to its caller."""
    for path in sorted(folder.rglob("*"), reverse=True):  # children sort after their parents
        (sync_folder if path.is_dir() else sync_file)(path)
    sync_folder(folder)
