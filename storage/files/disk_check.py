"""A file gave trouble: was it the file, or the disk that it lies on?

Decoders take a failed read for the end of a file, or for damage. Only a plain read tells which it was."""

import stat
from collections.abc import Iterator
from pathlib import Path

from storage.errors import TransientError, is_transient

_BLOCK = 16 * 2**20


def read_through(path: Path) -> Iterator[None]:
    """Read a file to its end, a block a step. TransientError if its disk or network fails; whatever else is wrong with it
    is the file's own fault and for a decoder to tell."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return  # a pipe would wait for its other end
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK):
                yield
    except OSError as error:
        if is_transient(error):
            raise unreadable(path, error) from error
    except ValueError:  # no name that a file can have
        return


def unreadable(path: Path, error: OSError) -> TransientError:
    remedy = "check the disk or network that it lies on, then run the same command"
    alone = "If this file alone stays unreadable, take it out of the folder"
    return TransientError(f"cannot read {path}: {error.strerror or error}; {remedy}. {alone}")
