"""A file that nobody may open and an address that nobody may call, with the means to notice if somebody did.

The kernel reports every opening of the file, whichever process does it; the address is a listening socket."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_IN_ACCESS, _IN_OPEN = 0x1, 0x20
_NO_WAIT = os.O_NONBLOCK


@dataclass(frozen=True)
class Canary:
    """`file` and `url` are what to name in hostile files."""

    file: Path
    url: str
    watch: int
    server: socket.socket

    def touched(self) -> list[str]:
        """What happened since the last time: empty if nothing did."""
        found = []
        with suppress(BlockingIOError):
            os.read(self.watch, 65536)
            found.append("the file was opened")
        with suppress(BlockingIOError):
            self.server.accept()[0].close()
            found.append("the address was called")
        return found


@contextmanager
def canary(file: Path) -> Iterator[Canary]:
    """Watch over a file that exists, and over a port of this machine."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(_NO_WAIT)
    assert watch >= 0, os.strerror(ctypes.get_errno())
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        try:
            assert libc.inotify_add_watch(watch, os.fsencode(file), _IN_OPEN | _IN_ACCESS) >= 0
            yield Canary(file, f"http://127.0.0.1:{server.getsockname()[1]}/film.ts", watch, server)
        finally:
            os.close(watch)
