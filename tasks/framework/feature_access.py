"""Reading the features that an extraction made available, as whole batches of torch tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from models.zoo import CaptionerOptions
from storage.errors import MissingFeatures, StorageError
from storage.features.store import FeatureStore, View
from storage.workspace import Workspace


def read_feature_metadata(folder: Path) -> dict[str, dict[str, Any]]:
    """What an extraction says of each of its features: store, key, size, where it comes from."""
    try:
        return json.loads((folder / "features.json").read_bytes())
    except (OSError, ValueError) as error:
        where = folder / "features.json"
        raise StorageError(f"cannot read {where}: {error}; run with '--force extract_features'") from error


def read_rows(folder: Path) -> dict[str, dict[str, str]]:
    """feature -> video id -> key of its row, for every row of an extraction."""
    table = pq.read_table(folder / "rows.parquet")
    wanted: dict[str, dict[str, str]] = {}
    for feature, id, key in zip(*(table[name].to_pylist() for name in ("feature", "id", "key")), strict=True):
        wanted.setdefault(feature, {})[id] = key
    return wanted


@dataclass(frozen=True)
class FeatureAccess:
    """Some features of one extraction, opened for reading. Opening pins a view: rows written later do not disturb."""

    names: tuple[str, ...]
    views: dict[str, View]
    rows: dict[str, dict[str, str]]
    """name -> video id -> the key of the row that belongs to this extraction"""
    about: dict[str, dict[str, Any]]
    optional: frozenset[str] = frozenset()

    @classmethod
    def open(cls, workspace: Workspace, folder: Path, names: Sequence[str], optional: Sequence[str] = ()) -> FeatureAccess:
        """Videos may be without the `optional` ones of the features."""
        about = read_feature_metadata(folder)
        unknown = [name for name in names if name not in about]
        if unknown:
            extracted = f"the recipe extracts {', '.join(sorted(about))}; add it to the recipe's features"
            raise MissingFeatures(f"features '{unknown[0]}' are wanted, {extracted}")
        rows = read_rows(folder)
        views = {name: FeatureStore.open(workspace.features / about[name]["store"]).view() for name in names}
        kept = {name: rows.get(name, {}) for name in names}
        return cls(tuple(names), views, kept, {name: about[name] for name in names}, frozenset(optional))

    @classmethod
    def for_captioner(cls, workspace: Workspace, folder: Path, captioner: CaptionerOptions) -> FeatureAccess:
        """The features that a captioner reads."""
        return cls.open(workspace, folder, captioner.features, getattr(captioner, "optional_features", ()))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """name -> D"""
        return {name: int(self.about[name]["size"]) for name in self.names}

    def usable(self, ids: Sequence[str]) -> list[str]:
        """The videos that have a row in every feature that is not optional."""
        needed = [self.rows[name] for name in self.names if name not in self.optional]
        return [id for id in ids if all(id in rows for rows in needed)]

    def read(self, ids: Sequence[str], device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """B videos -> features name -> (B, T, D) float32, masks name -> (B, T)."""
        features, masks = self.read_half(ids)
        # torch converts 10x faster than numpy, and a GPU after half the way
        features = {name: x.to(device).float() for name, x in features.items()}
        return features, {name: mask.to(device) for name, mask in masks.items()}

    def read_half(self, ids: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The same as they are stored: float16, on the CPU."""
        features, masks = {}, {}
        for name in self.names:
            array, mask = self._batch(name, ids)
            features[name], masks[name] = torch.from_numpy(array), torch.from_numpy(mask)
        return features, masks

    def _batch(self, name: str, ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Values (B, T, D) float16 and mask (B, T); a video without the row has zeros and no true place."""
        rows, view = self.rows[name], self.views[name]
        there = [n for n, id in enumerate(ids) if id in rows] if name in self.optional else list(range(len(ids)))
        if len(there) == len(ids):
            return view.read_batch(ids, rows, dtype="float16")
        shape = tuple(self.about[name].get("shape", [self.sizes[name]]))
        if not there:
            return np.zeros((len(ids), 1, *shape), np.float16), np.zeros((len(ids), 1), bool)
        found, valid = view.read_batch([ids[n] for n in there], rows, dtype="float16")
        array, mask = np.zeros((len(ids), *found.shape[1:]), np.float16), np.zeros((len(ids), valid.shape[1]), bool)
        array[there], mask[there] = found, valid
        return array, mask
