"""The encoder over time: rows of one or more features become the rows of a Memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from models.types import Memory

Join = Literal["depth", "time"]


def check_present(names: Sequence[str], features: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """ValueError if a batch lacks one of the features that an encoder reads."""
    missing = [name for name in names if name not in features or name not in masks]
    if missing:
        raise ValueError(
            f"the encoder reads {', '.join(names)} but the batch has no {', '.join(missing)}; "
            f"it has {', '.join(sorted(features)) or 'nothing'}"
        )


def masked_mean(rows: Tensor, mask: Tensor) -> Tensor:
    """rows (B, T, H), mask (B, T) -> (B, H): the mean of the real rows, zero where there are none."""
    real = mask.unsqueeze(-1).to(rows.dtype)
    return (rows * real).sum(1) / real.sum(1).clamp(min=1)


class TemporalEncoder(nn.Module):
    """Features (B, T, D_i) -> Memory of tokens (B, T, H), with the mean of the real rows as summary.

    `join` says how several features meet. "depth": they are sampled at the same instants, so rows meet by position and
    are projected together; a feature that a video lacks counts as zeros. "time": each has a projection of its own and
    they follow each other as further rows. It is a property of the model, never of a batch: otherwise padding could
    change a video's caption."""

    def __init__(self, sizes: Mapping[str, int], hidden: int, join: Join, dropout: float):
        super().__init__()
        self.names = tuple(sizes)
        self.join = join
        self.dropout = nn.Dropout(dropout)
        widths = [sum(sizes.values())] if join == "depth" else list(sizes.values())
        self.project = nn.ModuleList(nn.Linear(width, hidden) for width in widths)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        check_present(self.names, features, masks)
        real = [masks[name] for name in self.names]
        # Rows that are not real may hold anything, NaN included.
        rows = [
            features[name].masked_fill(~mask.unsqueeze(-1), 0.0) for name, mask in zip(self.names, real, strict=True)
        ]
        if self.join == "depth":
            rows, real = _align(rows, real, self.names)
            rows = [torch.cat(rows, dim=2)]
            real = [torch.stack(real).any(0)]
        tokens = torch.cat([project(x) for project, x in zip(self.project, rows, strict=True)], dim=1)
        mask = torch.cat(real, dim=1)
        tokens = self.dropout(tokens) * mask.unsqueeze(-1)
        return Memory(tokens, mask, masked_mean(tokens, mask))


def _align(rows: list[Tensor], masks: list[Tensor], names: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
    """All features at the same length T. One that no video of the batch has may come with any length."""
    lengths = {x.shape[1] for x in rows}
    if len(lengths) == 1:
        return rows, masks
    present = [bool(mask.any()) for mask in masks]
    lengths = {x.shape[1] for x, there in zip(rows, present, strict=True) if there}
    if len(lengths) > 1:
        found = ", ".join(f"{name} {x.shape[1]}" for name, x in zip(names, rows, strict=True))
        raise ValueError(
            f"features joined by depth need the same number of rows, here {found}; "
            "sample them at the same positions or set the captioner's join to 'time'"
        )
    T = lengths.pop() if lengths else 0
    aligned = [
        (x, mask) if there else (x.new_zeros(x.shape[0], T, x.shape[2]), mask.new_zeros(x.shape[0], T))
        for x, mask, there in zip(rows, masks, present, strict=True)
    ]
    return [x for x, _ in aligned], [mask for _, mask in aligned]
