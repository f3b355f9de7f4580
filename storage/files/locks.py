"""Locks between processes. The kernel frees every one of them when its holder dies, so a kill leaves nothing that blocks.

`file_lock` is the plain one. The others call flock themselves: a waiter reads who holds a `named_lock`, a `folder_lock` leaves no
file in a data set, and a `working_file` is removed or renamed by its holder."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from storage.errors import UsageError, wrap_os_errors


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Wait for the lock and hold it."""
    lock = FileLock(path)
    with wrap_os_errors(path):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Wait for the lock on a folder itself and hold it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def named_lock(path: Path, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Wait for the lock and hold it; `waiting` hears who holds it."""
    with wrap_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    with file:
        if not _try_lock(file.fileno()):
            file.seek(0)
            holder = file.read().strip()
            if waiting:
                waiting(holder or "another process")
            fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(OSError):  # only for information: a full disk must not hinder what makes room
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()} since {time.strftime('%H:%M:%S')}".encode())
        try:
            yield
        finally:  # not by closing alone: a forked process may have the file open, too
            fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock at this moment."""
    if not path.exists():
        return False
    with path.open("a+") as file:
        return not _try_lock(file.fileno())


@contextmanager
def working_file(path: Path, busy: str) -> Iterator[Path]:
    """Make a file that one process at a time works with, and remove it in the end if it still has its name.
    UsageError, with the message `busy` (of {path}), if another process holds it."""
    while True:
        with path.open("ab") as file:
            if not _try_lock(file.fileno()):
                raise UsageError(busy.format(path=path))
            identity = file_identity(file.fileno())
            if file_identity(path) != identity:  # its holder has just renamed or removed it
                continue
            try:
                yield path
            finally:
                if file_identity(path) == identity:
                    path.unlink()
            return


def file_identity(file: Path | int) -> tuple[int, int] | None:
    """(device, inode): equal for all names of one file. None if there is no file."""
    try:
        found = file.stat() if isinstance(file, Path) else os.fstat(file)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
