"""The encoder over time: rows of one or more features become the rows of a Memory; and means of rows."""

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
        has = f"no {', '.join(missing)}; it has {', '.join(sorted(features)) or 'nothing'}"
        raise ValueError(f"the encoder reads {', '.join(names)} but the batch has {has}")


def zero_invalid(rows: Tensor, mask: Tensor) -> Tensor:
    """rows (B, T, D), mask (B, T) -> rows, zero where they are not valid: those may hold anything, NaN included."""
    return rows.masked_fill(~mask.unsqueeze(-1), 0.0)


def masked_mean(rows: Tensor, mask: Tensor) -> Tensor:
    """rows (B, T, H), mask (B, T) -> (B, H): the mean of the valid rows, zero where there are none."""
    valid = mask.unsqueeze(-1).to(rows.dtype)
    return (rows * valid).sum(1) / valid.sum(1).clamp(min=1)


def as_rows(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, T, D), (B, T, S, D) or (B, T, Y, X, D), mask (B, T) -> (B, T*S, D) and (B, T*S): cells of a grid are rows too."""
    return x.flatten(1, -2), mask.repeat_interleave(x.shape[2:-1].numel(), dim=1)


def pooled(features: dict[str, Tensor], masks: dict[str, Tensor], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The named features (B, T, D_i) or (B, T, S, D_i), masks (B, T) -> the mean of each one's valid rows, concatenated
    (B, sum of D_i), zeros for one that a video lacks; and whether a video has any (B,)."""
    check_present(names, features, masks)
    rows = [as_rows(features[name], masks[name]) for name in names]
    means = [masked_mean(zero_invalid(x, mask), mask) for x, mask in rows]
    return torch.cat(means, dim=1), torch.stack([mask.any(1) for _, mask in rows]).any(0)


class TemporalEncoder(nn.Module):
    """Features (B, T, D_i) -> Memory of tokens (B, T, H), with the mean of the valid rows as summary. With `hidden` None they are
    the rows themselves, and H is their size.

    `join` says how several features meet. "depth": they are sampled at the same instants, so rows are concatenated by
    position and projected together; a feature that a video lacks counts as zeros. "time": each has a projection of its
    own and they follow each other as further rows. It is a property of the model, never of a batch: otherwise padding
    could change a video's caption."""

    def __init__(self, sizes: Mapping[str, int], hidden: int | None, join: Join, dropout: float):
        super().__init__()
        self.names, self.join = tuple(sizes), join
        self.dropout = nn.Dropout(dropout)
        widths = [sum(sizes.values())] if join == "depth" else list(sizes.values())
        if hidden is None and len(set(widths)) > 1:
            found = ", ".join(f"{name} {size}" for name, size in sizes.items())
            advice = "project them, name one feature, or set the captioner's join to 'depth'"
            raise ValueError(f"rows of different sizes ({found}) cannot follow each other as they are; {advice}")
        self.project = nn.ModuleList(nn.Identity() if hidden is None else nn.Linear(width, hidden) for width in widths)
        self.size = hidden or widths[0]
        """H"""

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        check_present(self.names, features, masks)
        valid = [masks[name] for name in self.names]
        rows = [zero_invalid(features[name], masks[name]) for name in self.names]
        if self.join == "depth":
            rows, valid = _align(rows, valid, self.names)
            rows, valid = [torch.cat(rows, dim=2)], [torch.stack(valid).any(0)]
        tokens = torch.cat([project(x) for project, x in zip(self.project, rows, strict=True)], dim=1)
        mask = torch.cat(valid, dim=1)
        tokens = self.dropout(tokens) * mask.unsqueeze(-1)
        return Memory(tokens, mask, masked_mean(tokens, mask))


def _align(rows: list[Tensor], masks: list[Tensor], names: Sequence[str]) -> tuple[list[Tensor], list[Tensor]]:
    """All features at the same length T. One that no video of the batch has may come with any length."""
    if len({x.shape[1] for x in rows}) == 1:
        return rows, masks
    present = [bool(mask.any()) for mask in masks]
    lengths = {x.shape[1] for x, there in zip(rows, present, strict=True) if there}
    if len(lengths) > 1:
        found = ", ".join(f"{name} {x.shape[1]}" for name, x in zip(names, rows, strict=True))
        advice = "sample them at the same positions or set the captioner's join to 'time'"
        raise ValueError(f"features joined by depth need the same number of rows, here {found}; {advice}")
    T = lengths.pop() if lengths else 0
    for i, there in enumerate(present):
        if not there:
            rows[i] = rows[i].new_zeros(rows[i].shape[0], T, rows[i].shape[2])
            masks[i] = masks[i].new_zeros(masks[i].shape[0], T)
    return rows, masks
