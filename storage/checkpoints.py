"""Checkpoints: tensors as safetensors, everything else as JSON in the same file, so that one rename publishes both.

No pickle anywhere: a checkpoint from a stranger can be wrong, but it can run nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from storage.atomic import write_bytes
from storage.errors import Mismatch, StorageError

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
                raise Mismatch(
                    f"this checkpoint was trained with {name} {str(found)[:12]}, not {wanted[:12]}; "
                    "use the run it belongs to, or train again"
                )
