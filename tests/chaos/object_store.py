"""moto's S3 server, with requests noted whole.

    python -m tests.chaos.object_store -H 127.0.0.1 -p PORT

moto writes a long request to its recording in pieces. Requests of several connections fell into each other there, and a kill in
the midst of one left half of it before others, so that the recording could not be heard again."""

from __future__ import annotations

import builtins
from typing import Any

from moto import server
from moto.moto_api._internal.recorder import models

_ROOM = 1 << 28  # more than any request: what is written goes to the file in one piece, at its end


def in_one_piece(path: str, mode: str = "r") -> Any:
    """`open` with so large a buffer that all that is written is appended at once."""
    return builtins.open(path, mode, buffering=-1 if mode == "r" else _ROOM)


models.open = in_one_piece  # type: ignore[attr-defined]

if __name__ == "__main__":
    server.main()
