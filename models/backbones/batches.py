"""A batch of items for a backbone, as plain data for any process."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ItemBatch:
    """items (N, ...) of which the first `count` are real and the rest is padding; and the outputs that are wanted, each with the
    type of number that it is wanted in."""

    items: np.ndarray
    count: int
    outputs: Mapping[str, str]

    def select(self, found: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs of a net (N, *shape) -> the wanted ones (count, *shape), as copies."""
        with np.errstate(over="ignore"):  # the engine looks for what became infinite
            return {name: found[name][: self.count].astype(dtype) for name, dtype in self.outputs.items()}
