"""Pickles that make a folder where they are unpickled, in every file that a workspace or a user could bring."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def trap_bytes(mark: Path) -> bytes:
    """A bare pickle."""
    return pickle.dumps(Trap(mark))


def trap_file(mark: Path, path: Path) -> Path:
    """The same as torch saves it."""
    torch.save({"state_dict": {"weight": torch.zeros(2)}, "trap": Trap(mark)}, path)
    return path


@contextmanager
def nothing_springs(mark: Path) -> Iterator[None]:
    """Nothing in the block may spring the trap; that it is a real one is shown afterwards."""
    yield
    assert not mark.exists(), "code of a stranger was run"
    pickle.loads(trap_bytes(mark))
    assert mark.is_dir()
    mark.rmdir()


def replace_file(path: Path, content: bytes) -> None:
    """Another content for a file of a result, with a done-marker that fits it, as whoever crafts a workspace would do."""
    path.write_bytes(content)
    marker = path.parent / "done.json"
    done = json.loads(marker.read_bytes())
    done["files"][path.name] = len(content)
    marker.write_text(json.dumps(done))
