"""Content hashes: of JSON-like values, of files, and of whole sets of rows."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SIZE = 16  # bytes of digest: 128 bits, far beyond accidental collisions


def digest(*values: Any) -> str:
    """The hash of JSON-like values; equal values give equal hashes in every process."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=_SIZE).hexdigest()


def digest_rows(rows: Iterable[Iterable[str]]) -> str:
    """The hash of many rows of strings, streamed: the same rows in the same order give the same hash."""
    state = hashlib.blake2b(digest_size=_SIZE)
    for row in rows:
        for cell in row:
            data = cell.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little"))
            state.update(data)
        state.update(b"\xff" * 8)
    return state.hexdigest()


def digest_file(path: Path) -> str:
    """The hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_SIZE)).hexdigest()
