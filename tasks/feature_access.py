"""Reading the features that an extraction made available, as whole batches of torch tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from storage.errors import MissingFeatures, StorageError
from storage.features import FeatureStore, View
from storage.workspace import Workspace
from tasks.extract_features import read_rows


@dataclass(frozen=True)
class FeatureAccess:
    """Some features of one extraction, opened for reading. Opening pins a view: rows written later do not disturb."""

    names: tuple[str, ...]
    views: dict[str, View]
    rows: dict[str, dict[str, str]]
    """name -> video id -> the key of the row that belongs to this extraction"""
    about: dict[str, dict[str, Any]]

    @classmethod
    def open(cls, workspace: Workspace, folder: Path, names: Sequence[str]) -> FeatureAccess:
        try:
            about = json.loads((folder / "features.json").read_bytes())
        except (OSError, ValueError) as error:
            raise StorageError(
                f"cannot read {folder / 'features.json'}: {error}; run with '--force extract_features'"
            ) from error
        unknown = [name for name in names if name not in about]
        if unknown:
            raise MissingFeatures(
                f"the captioner wants features '{unknown[0]}', the recipe extracts {', '.join(sorted(about))}; "
                "add it to the recipe's features"
            )
        rows = read_rows(folder)
        views = {name: FeatureStore.open(workspace.features / about[name]["store"]).view() for name in names}
        return cls(
            tuple(names), views, {name: rows.get(name, {}) for name in names}, {name: about[name] for name in names}
        )

    @cached_property
    def sizes(self) -> dict[str, int]:
        """name -> D"""
        return {name: int(self.about[name]["size"]) for name in self.names}

    def usable(self, ids: Sequence[str]) -> list[str]:
        """The videos that have a row in every feature."""
        return [id for id in ids if all(id in self.rows[name] for name in self.names)]

    def read(self, ids: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """B videos -> features name -> (B, T, D) float32, masks name -> (B, T)."""
        features, masks = {}, {}
        for name in self.names:
            array, mask = self.views[name].read_batch(ids, self.rows[name], dtype="float16")
            features[name], masks[name] = (
                torch.from_numpy(array).float(),
                torch.from_numpy(mask),
            )  # torch converts 10x faster
        return features, masks
