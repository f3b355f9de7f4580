"""Checkpoints: tensors as safetensors, everything else as JSON in the same file, so that one rename publishes both.

No pickle anywhere: a checkpoint of unknown origin can be wrong, but it cannot run code."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from storage.errors import Mismatch, StorageError
from storage.files.atomic import replacing, write_bytes

_FORMAT = "longtake-checkpoint-1"


@dataclass(frozen=True)
class Checkpoint:
    """tensors by name, and JSON values: progress, options, and the keys of what it was trained on."""

    tensors: dict[str, np.ndarray]
    values: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        header = {_FORMAT: json.dumps(self.values)}  # one entry: safetensors writes several in random order
        ordered = {name: np.asarray(self.tensors[name], order="C") for name in sorted(self.tensors)}
        write_bytes(path, save(ordered, metadata=header))

    @classmethod
    def load(cls, path: Path, prefix: str = "") -> Checkpoint:
        """All tensors, or only those whose name starts with `prefix`."""
        try:
            with safe_open(str(path), framework="numpy") as file:
                header = file.metadata() or {}
                if _FORMAT not in header:
                    raise StorageError(f"{path} is not a Longtake checkpoint; choose one that 'longtake train' wrote")
                tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
            values = json.loads(header[_FORMAT])
            if not isinstance(values, dict):
                raise ValueError(f"its values are {type(values).__name__}, not a mapping")
            return cls(tensors, values)
        except FileNotFoundError as error:
            raise StorageError(f"no checkpoint at {path}; run 'longtake run' first") from error
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise StorageError(f"{path} is damaged ({error}); remove it and run again") from error

    def expect(self, **keys: str) -> None:
        """Refuse to go on with other features or another vocabulary than this was trained with."""
        for name, wanted in keys.items():
            found = self.values.get(name)
            if found != wanted:
                what = f"this checkpoint was trained with {name} {str(found)[:12]}, not {wanted[:12]}"
                raise Mismatch(f"{what}; use the run it belongs to, or train again")


class LastCheckpoints:
    """The newest checkpoint of a training under `path`, and a few before it beside it: `last.safetensors`, `last-2`, `last-3`.

    Every name is whole at every moment. An older one is there for the day when the newest cannot be read."""

    def __init__(self, path: Path, keep: int = 1):
        self.path, self.keep = path, keep

    def save(self, checkpoint: Checkpoint) -> None:
        for rank in range(self.keep, 1, -1):
            older, newer = self._name(rank), self._name(rank - 1)
            if newer.exists():
                with replacing(older) as temp:
                    os.link(newer, temp)  # the newest keeps its name until the new one takes it
        checkpoint.save(self.path)

    def load(self) -> Checkpoint | None:
        """The newest that can be read, or None where there is none at all."""
        unreadable: StorageError | None = None
        for path in self.paths():
            try:
                return Checkpoint.load(path)
            except StorageError as error:
                unreadable = unreadable or error
        if unreadable is not None:
            raise unreadable
        return None

    def paths(self) -> list[Path]:
        """Those that are there, newest first, however many were kept when they were written."""
        older = sorted(self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}"), key=self._rank)
        return [path for path in (self.path, *older) if path.exists()]

    def remove(self) -> None:
        for path in reversed(self.paths()):
            path.unlink(missing_ok=True)

    def _name(self, rank: int) -> Path:
        return self.path if rank == 1 else self.path.with_stem(f"{self.path.stem}-{rank}")

    def _rank(self, path: Path) -> int:
        number = path.stem.removeprefix(f"{self.path.stem}-")
        return int(number) if number.isdecimal() else 0
