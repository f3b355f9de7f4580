"""What is known of source files: their content hashes, what probing found, where they cut, and what failed and why.

One small SQLite file. Everything in it can be recomputed from the sources, so losing it costs time and no result."""

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import StorageError, is_transient
from storage.files.disk_check import unreadable
from storage.files.hashing import digest_file

_SCHEMA = """
create table if not exists files (
    root text, source text, size integer, mtime integer, inode integer, key text, primary key (root, source)
) without rowid;
create table if not exists probes (
    key text, version integer, facts text, pts blob, bad_kind text, bad_reason text, primary key (key, version)
) without rowid;
create table if not exists failures (
    record_key text, extractor_key text, kind text, reason text, primary key (record_key, extractor_key)
) without rowid;
create table if not exists cuts (
    key text, version integer, moments blob, strengths blob, primary key (key, version)
) without rowid;
"""
_TRUST_AFTER_NS = 2_000_000_000  # a file younger than this when hashed may change again within its mtime's resolution
_BATCH = 256
_PATIENCE = 120.0  # seconds to wait for another process that writes
Progress = Callable[[int, int], None] | None


@dataclass(frozen=True, slots=True)
class CachedProbe:
    """What probing one file gave: metadata and presentation times, or the reason why it cannot be used."""

    metadata: dict[str, Any] | None
    pts: np.ndarray | None
    bad_kind: str = ""
    bad_reason: str = ""


class FileCache:
    """Fingerprints, probes and failures of one workspace. Safe for several processes at once."""

    def __init__(self, path: Path):
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            db = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)
            try:
                _set_up(db)
                yield db
            finally:
                db.close()
        except sqlite3.OperationalError as error:
            raise StorageError(f"cannot use {self.path}: {error}; is the disk full or read-only?") from error
        except sqlite3.DatabaseError as error:
            raise StorageError(f"{self.path} is damaged ({error}); delete it: all of it will be found again") from error

    def fingerprint(self, root: Path, sources: Iterable[str], progress: Progress = None) -> dict[str, str | None]:
        """Content hash of every source below root (None: not readable). Unchanged files cost a stat each. TransientError if a
        disk or network fails: a file that cannot be read for a moment must not look like one that is gone."""
        with self._open() as db:
            rows = db.execute("select source, size, mtime, inode, key from files where root = ?", (str(root),))
            known = {row[0]: row[1:] for row in rows}
            keys: dict[str, str | None] = {}
            unknown: list[tuple[str, os.stat_result]] = []
            for source in sources:
                try:
                    stat = (root / source).stat()
                except OSError as error:
                    _raise_if_transient(root / source, error)
                    keys[source] = None
                    continue
                seen = known.get(source)
                if seen and seen[:3] == (stat.st_size, stat.st_mtime_ns, stat.st_ino):
                    keys[source] = seen[3]
                else:
                    unknown.append((source, stat))
            return keys | self._hash(db, root, unknown, progress)

    @staticmethod
    def _hash(
        db: sqlite3.Connection, root: Path, unknown: list[tuple[str, os.stat_result]], progress: Progress
    ) -> dict[str, str | None]:
        def hashed(item: tuple[str, os.stat_result]) -> str | None:
            try:
                return digest_file(root / item[0])
            except OSError as error:
                _raise_if_transient(root / item[0], error)
                return None

        keys: dict[str, str | None] = {}
        with ThreadPoolExecutor(4) as pool:
            for start in range(0, len(unknown), _BATCH):
                batch = unknown[start : start + _BATCH]
                found = list(pool.map(hashed, batch))
                now = time.time_ns()
                rows = []
                for (source, stat), key in zip(batch, found, strict=True):
                    keys[source] = key
                    if key and now - stat.st_mtime_ns > _TRUST_AFTER_NS:
                        rows.append((str(root), source, stat.st_size, stat.st_mtime_ns, stat.st_ino, key))
                _execute_many(db, "insert or replace into files values (?,?,?,?,?,?)", rows)
                if progress:
                    progress(start + len(batch), len(unknown))
        return keys

    def probes(self, keys: Iterable[str], version: int, times: bool = True) -> dict[str, CachedProbe]:
        """What is known of the files with these content hashes; `times=False` leaves the presentation times out."""
        wanted, found = list(dict.fromkeys(keys)), {}
        with self._open() as db:
            for start in range(0, len(wanted), _BATCH):
                batch = wanted[start : start + _BATCH]
                marks = ",".join("?" * len(batch))
                column = "pts" if times else "null"
                query = f"select key, facts, {column}, bad_kind, bad_reason from probes where version=? and key in ({marks})"  # noqa: S608
                for key, metadata, pts, kind, reason in db.execute(query, (version, *batch)):
                    loaded = json.loads(metadata) if metadata else None
                    found[key] = CachedProbe(loaded, _unpack(pts), kind or "", reason or "")
        return found

    def note_probes(self, found: Mapping[str, CachedProbe], version: int) -> None:
        rows = []
        for key, p in found.items():
            metadata = json.dumps(p.metadata) if p.metadata else None
            rows.append((key, version, metadata, _pack(p.pts), p.bad_kind, p.bad_reason))
        with self._open() as db:
            _execute_many(db, "insert or replace into probes values (?,?,?,?,?,?)", rows)

    def forget_probes(self, keys: Iterable[str], version: int) -> None:
        with self._open() as db:
            _execute_many(db, "delete from probes where key = ? and version = ?", [(key, version) for key in keys])

    def cuts(self, keys: Iterable[str], version: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """content hash -> moments (N,) and strengths (N,) of the cuts, of the files that were scanned."""
        found = {}
        with self._open() as db:
            for key in dict.fromkeys(keys):
                query = "select moments, strengths from cuts where key = ? and version = ?"
                for moments, strengths in db.execute(query, (key, version)):
                    found[key] = np.frombuffer(moments, np.float64), np.frombuffer(strengths, np.float64)
        return found

    def note_cuts(self, key: str, version: int, moments: np.ndarray, strengths: np.ndarray) -> None:
        blobs = (np.asarray(moments, np.float64).tobytes(), np.asarray(strengths, np.float64).tobytes())
        with self._open() as db:
            db.execute("insert or replace into cuts values (?,?,?,?)", (key, version, *blobs))

    def failures(self, extractor_key: str) -> dict[str, tuple[str, str]]:
        """record key -> (kind, reason) of what this extractor could not read."""
        with self._open() as db:
            rows = db.execute("select record_key, kind, reason from failures where extractor_key = ?", (extractor_key,))
            return {record: (kind, reason) for record, kind, reason in rows}

    def note_failure(self, record_key: str, extractor_key: str, kind: str, reason: str) -> None:
        with self._open() as db:
            db.execute("insert or replace into failures values (?,?,?,?)", (record_key, extractor_key, kind, reason))

    def forget_failures(self, extractor_key: str) -> None:
        with self._open() as db:
            db.execute("delete from failures where extractor_key = ?", (extractor_key,))


def _execute_many(db: sqlite3.Connection, statement: str, rows: list[Any]) -> None:
    """In one transaction."""
    db.execute("begin")
    db.executemany(statement, rows)
    db.execute("commit")


def _raise_if_transient(path: Path, error: OSError) -> None:
    """Only what stays is a reason to leave a file out."""
    if is_transient(error):
        raise unreadable(path, error) from error


def _set_up(db: sqlite3.Connection) -> None:
    """Switch to the write-ahead log and make the tables. Of several that open a new file at once, sqlite turns some away
    without waiting for the time it was given, so they try again."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=normal")
            db.executescript(_SCHEMA)
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _pack(pts: np.ndarray | None) -> bytes | None:
    """Times in nanoseconds, as differences, deflated: a constant frame rate takes a few bytes."""
    return None if pts is None else zlib.compress(np.diff(np.round(pts * 1e9).astype(np.int64), prepend=0).tobytes())


def _unpack(blob: bytes | None) -> np.ndarray | None:
    return None if blob is None else np.cumsum(np.frombuffer(zlib.decompress(blob), np.int64)) / 1e9
