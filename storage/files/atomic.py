"""Writing files so that a reader sees the old content or the new, never half of it: temp, fsync, rename."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

TEMP_MARK = ".tmp-"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well it takes the name `path`, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    short = os.fsdecode(os.fsencode(path.name)[:200])  # a name has at most 255 bytes
    temp = path.with_name(f"{short}{TEMP_MARK}{uuid4().hex[:12]}")
    try:
        yield temp
        sync_file(temp)
        temp.replace(path)
        sync_folder(path.parent)
    finally:
        temp.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with replacing(path) as temp:
        temp.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_jsonl(path: Path, rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
    with replacing(path) as temp, temp.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_parquet(path: Path, table: pa.Table) -> None:
    with replacing(path) as temp:
        pq.write_table(table, temp, compression="zstd")


class FileWriter:
    """Runs writes in a thread, in their order, while its caller goes on; at most two wait. One that fails is raised by a later
    `submit` or at the end. Each file is replaced as a whole, so a kill costs what was not written yet and nothing else."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "writer")
        self._waiting: deque[Future[None]] = deque()

    def submit(self, write: Callable[[], None]) -> None:
        self._waiting.append(self._pool.submit(write))
        while self._waiting and (len(self._waiting) > 2 or self._waiting[0].done()):
            self._waiting.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown()
        for write in self._waiting if kind is None else ():
            write.result()
