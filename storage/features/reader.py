"""Reading one segment: its chunk files are mapped into memory after a check of layout and size, else zarr-python reads.

Everything is mapped when the segment is opened, so what is read later stays the same even if the segment is compacted
away meanwhile. A row whose chunk is missing or short is invalid: it is not fresh, and reading it is an error."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from storage.errors import StorageError
from storage.features.segments import DATA, INDEX, FeatureRow, row_crc32

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_COLUMNS = ["video_id", "video_key", "start", "length", "crc32", "damaged", "written"]


class SegmentGone(Exception):
    """The segment was compacted away while it was being opened: list the store again."""


class _Map:
    """A file's bytes in memory, unmapped when the last array over them dies.

    Not `mmap.mmap`: that keeps a file descriptor for each map, and a large store has thousands of chunks."""

    def __init__(self, path: Path):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(handle).st_size
            address = _libc.mmap(None, max(self.size, 1), mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
            if address is None or address == ctypes.c_void_p(-1).value:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), str(path))
        finally:
            os.close(handle)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (self.size,), "data": (address, True)}

    def __del__(self, unmap: Any = _libc.munmap) -> None:
        interface = getattr(self, "__array_interface__", None)
        if interface is not None:
            unmap(interface["data"][0], max(self.size, 1))


def map_file(path: Path) -> np.ndarray:
    """The bytes of a file as a read-only (size,) uint8 array."""
    return np.asarray(_Map(path))


class FeatureSegment:
    """An indexed segment, opened for reading.

    Columns, one entry per row: ids, keys (lists), starts, lengths, crc32s, damaged, written, valid (numpy)."""

    def __init__(self, path: Path, index: np.ndarray):
        self.path, self._index = path, index
        table = self._read_index(_COLUMNS)
        self.ids: list[str] = table["video_id"].to_pylist()
        self.keys: list[str] = table["video_key"].to_pylist()
        numbers = (table[name].to_numpy() for name in _COLUMNS[2:])
        self.starts, self.lengths, self.crc32s, self.damaged, self.written = numbers
        self.shape: tuple[int, ...] = ()
        self.dtype = np.dtype("<f2")
        self.faults: list[str] = []
        """What is wrong with the data, one entry per damaged chunk; empty for an intact segment."""
        self._chunks: list[np.ndarray | None] = []
        self._chunk_rows = 1
        self._zarr: zarr.Array | None = None
        self.valid = np.ones(len(self.ids), bool)
        self._open_data()

    @classmethod
    def open(cls, path: Path) -> FeatureSegment | None:
        """The segment, or None if it has no index (yet)."""
        try:
            segment = cls(path, map_file(path / INDEX))
        except FileNotFoundError:
            if path.exists():
                return None
            raise SegmentGone(path.name) from None
        if segment.faults and not path.exists():
            raise SegmentGone(path.name)
        return segment

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def nbytes(self) -> int:
        """The size of the data."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64)) if self.shape else 0

    def read(self, n: int) -> np.ndarray:
        """Row number -> [L, *feature_shape], read-only and without a copy where the row lies in one chunk."""
        mapped = self.mapped(n)
        if mapped is not None:
            return mapped
        out = np.empty((int(self.lengths[n]), *self.feature_shape), self.dtype)
        self.copy(n, out)
        out.flags.writeable = False
        return out

    def mapped(self, n: int) -> np.ndarray | None:
        """A row as memory-mapped array, [L, *feature_shape]; None if empty, across chunks or read by zarr-python."""
        if not self.valid[n]:
            raise self.fault(self.ids[n])
        start, length = int(self.starts[n]), int(self.lengths[n])
        first, offset = divmod(start, self._chunk_rows)
        if self._zarr is not None or not 0 < length <= self._chunk_rows - offset:
            return None
        return self._chunks[first][offset : offset + length]  # type: ignore[index]  # valid rows have chunks

    def copy(self, n: int, out: np.ndarray) -> None:
        """Copy the first len(out) steps of a row into out (n, *feature_shape) of any float dtype."""
        if not self.valid[n]:
            raise self.fault(self.ids[n])
        start, count = int(self.starts[n]), len(out)
        if self._zarr is not None:
            data = np.asarray(self._zarr[start : start + int(self.lengths[n])], self.dtype)
            self.check(n, data)  # zarr-python gives NaN for a missing chunk and says nothing
            out[:] = data[:count]
            return
        size, done = self._chunk_rows, 0
        while done < count:
            chunk, offset = divmod(start + done, size)
            step = min(count - done, size - offset)
            out[done : done + step] = self._chunks[chunk][offset : offset + step]  # type: ignore[index]
            done += step

    def row(self, n: int) -> FeatureRow:
        """Everything about one row, its bytes checked: what merging copies."""
        array = self.read(n)
        self.check(n, array)
        noted = (int(self.crc32s[n]), bool(self.damaged[n]), int(self.written[n]))
        return FeatureRow(self.ids[n], self.keys[n], array, self.pts(n), *noted)

    def check(self, n: int, data: np.ndarray) -> None:
        if row_crc32(data) != int(self.crc32s[n]):
            raise StorageError(self._advice(f"the features of {self.ids[n]} differ from their checksum"))

    def pts(self, n: int) -> np.ndarray | None:
        """The time of every step in seconds, (L,) float64, or None where none was recorded."""
        value = self._pts[n]
        return np.asarray(value.values) if value.is_valid else None

    def fault(self, video_id: str) -> StorageError:
        """The error for a row that cannot be read."""
        remedy = "run 'longtake extract' again (only what is lost is recomputed) or import them again"
        lost = f"the features of {video_id} are lost: {'; '.join(self.faults)} in segment {self.path}"
        return StorageError(f"{lost}; {remedy}")

    @cached_property
    def _pts(self) -> pa.Array:
        return self._read_index(["pts"])["pts"].combine_chunks()

    def _read_index(self, columns: list[str]) -> pa.Table:
        try:
            file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(self._index)))
            return file.read(columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise StorageError(self._advice(f"its index cannot be read ({error})")) from error

    def _advice(self, what: str) -> str:
        return f"segment {self.path}: {what}; remove that folder and run again: only its videos are recomputed"

    def _open_data(self) -> None:
        folder = self.path / DATA
        try:
            layout = json.loads((folder / "zarr.json").read_bytes())
            self.shape = tuple(layout["shape"])
            chunk_shape = layout["chunk_grid"]["configuration"]["chunk_shape"]
            self.dtype = np.dtype(layout["data_type"]).newbyteorder("<")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._lose(slice(None), f"{DATA}/zarr.json is missing or damaged ({error})")
            return
        if self.ids and int((self.starts + self.lengths).max()) > self.shape[0]:
            self._lose(slice(None), f"the index points beyond the {self.shape[0]} rows of the data")
        elif _is_plain(layout, chunk_shape, self.shape):
            self._map_chunks(folder, chunk_shape)
        else:
            try:
                self._zarr = zarr.open_array(folder, mode="r", zarr_format=3)  # 2 has a codec that unpickles
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._lose(slice(None), f"zarr cannot open {DATA} ({error})")

    def _map_chunks(self, folder: Path, chunk_shape: list[int]) -> None:
        self._chunk_rows = chunk_shape[0]
        size = self.dtype.itemsize * int(np.prod(chunk_shape, dtype=np.int64))
        zeros = ".0" * (len(chunk_shape) - 1)
        for chunk_index in range(-(-self.shape[0] // self._chunk_rows)):
            try:
                data = map_file(folder / f"c.{chunk_index}{zeros}")
                fault = "" if len(data) == size else f"has {len(data)} bytes instead of {size}"
            except FileNotFoundError:
                fault = "is missing"
            self._chunks.append(None if fault else data.view(self.dtype).reshape(chunk_shape))
            if fault:
                first, end = chunk_index * self._chunk_rows, (chunk_index + 1) * self._chunk_rows
                touched = (self.starts < end) & (self.starts + self.lengths > first) & (self.lengths > 0)
                self._lose(touched, f"chunk {DATA}/c.{chunk_index}{zeros} {fault}")

    def _lose(self, rows: slice | np.ndarray, fault: str) -> None:
        self.valid[rows] = False
        self.faults.append(fault)


def _is_plain(layout: dict[str, Any], chunk_shape: list[int], shape: tuple[int, ...]) -> bool:
    """Whether a chunk file is nothing but the values of whole rows, one after another."""
    encoding = layout.get("chunk_key_encoding", {})
    found = (layout.get("zarr_format"), layout.get("chunk_grid", {}).get("name"), layout.get("codecs"))
    named = (encoding.get("name"), encoding.get("configuration", {}).get("separator"), tuple(chunk_shape[1:]))
    plain = (3, "regular", [{"name": "bytes", "configuration": {"endian": "little"}}])
    return found == plain and named == ("default", ".", shape[1:]) and not layout.get("storage_transformers")
