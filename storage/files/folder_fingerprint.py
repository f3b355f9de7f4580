"""The fingerprint of a folder: a hash that changes when a file below it comes, goes or changes. Nothing is opened."""

import os
from collections.abc import Iterator
from pathlib import Path

from storage.errors import BadInput
from storage.files.hashing import digest_rows


def folder_fingerprint(root: Path) -> str:
    """Names, sizes, times and inodes of all files below a folder, as one hash: one stat per file. Links to folders are not
    followed, so a link to its own parent ends."""
    if not root.is_dir():
        raise BadInput(f"the data folder {root} does not exist; pass the data folder with --data")
    return digest_rows(sorted(_files(root, "")))


def _files(folder: Path | str, prefix: str) -> Iterator[tuple[str, str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # a folder that is gone or forbidden counts as empty: the fingerprint differs when it returns
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{name}/")
            continue
        try:
            stat = entry.stat()
        except OSError:
            continue
        yield name, f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
