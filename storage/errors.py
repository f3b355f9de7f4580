"""The exceptions that Longtake raises on purpose. Each says what is wrong, where, and what to do next.

LongtakeError              printed without a traceback; exit code 1
├── UsageError             the command or the recipe is wrong; exit code 2
├── BadInput               a file the user gave cannot be understood
│   ├── UnsafeId           a video id that must never become a path
│   └── BadMedia           one video or image cannot be decoded: a row of the quarantine, never the end of a batch
├── MissingFeatures        a model wants features that no store has
├── Mismatch               two artifacts that were not made for each other
├── ClusterLost            workers of a cluster die again and again (tasks/extraction/cluster.py)
└── StorageError           the workspace cannot be read or written (full, read-only, damaged)
    └── TransientError     a disk or network that may answer the next time: worth another try"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LongtakeError(Exception):
    """Anything Longtake can explain. The command line prints it and exits with 1."""


class UsageError(LongtakeError):
    """A wrong command, option or recipe. The command line exits with 2."""


class BadInput(LongtakeError):
    """A file of the user's is missing or malformed."""


class UnsafeId(BadInput):
    """A video id that could leave its folder or break a table."""


class BadMedia(BadInput):
    """One video, image or sound track cannot be read.

    `kind` is a short stable word for tables (`empty`, `not_media`, `no_video`, `truncated`, `crashed`, `timeout`, ...).
    """

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind = kind
        self.reason = reason

    def __reduce__(self):  # crosses the border of a decoder process
        return BadMedia, (self.kind, self.reason)


class MissingFeatures(LongtakeError):
    """Features that a captioner needs and no store holds."""


class Mismatch(LongtakeError):
    """Two artifacts that were not made for each other, such as a checkpoint and another vocabulary."""


class StorageError(LongtakeError):
    """The workspace cannot be read or written."""


class TransientError(StorageError):
    """Input or output failed in a way that often passes without help: a network disk, an object store, a busy device."""


_TRANSIENT_NAMES = """EIO EREMOTEIO ESTALE ETIMEDOUT EAGAIN EBUSY EINTR ENOLINK EPIPE ECONNRESET ECONNREFUSED ECONNABORTED
    ENOTCONN ENETDOWN ENETUNREACH EHOSTDOWN EHOSTUNREACH"""
_TRANSIENT = {getattr(errno, name, None) for name in _TRANSIENT_NAMES.split()} - {None}  # a system may lack some
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some room ('longtake gc --dry-run' shows what can go), then run the same command",
    errno.EDQUOT: "the disk quota is used up: free some room, then run the same command",
    errno.EROFS: "the file system is read-only: choose another --workspace",
    errno.EACCES: "no permission to write there: choose another --workspace or change its owner",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another --workspace",
}
_REMEDIES |= {errno.EPERM: _REMEDIES[errno.EACCES], errno.EEXIST: _REMEDIES[errno.ENOTDIR]}


def is_transient(error: OSError) -> bool:
    """Whether the same call may succeed a while later."""
    return error.errno in _TRANSIENT


def explain_os_error(error: OSError, where: Path | str) -> StorageError:
    """The StorageError for an operating-system failure: what failed, where, and what to do."""
    remedy = _REMEDIES.get(error.errno or 0, "check the disk, then run the same command; finished work is kept")
    kind = TransientError if is_transient(error) else StorageError
    return kind(f"cannot write {error.filename or where}: {error.strerror or error}; {remedy}")


@contextmanager
def wrap_os_errors(where: Path | str) -> Iterator[None]:
    """Turn an operating-system failure while writing below `where` into a StorageError."""
    try:
        yield
    except OSError as error:
        raise explain_os_error(error, where) from error
