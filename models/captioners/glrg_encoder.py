"""GL-RG's encoder: what a video's words, actions and objects may be, projected and fused to one vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from models.layers.temporal_encoder import check_present, masked_mean
from models.types import Memory

Fusion = Literal["projections", "single"]


class GlobalLocalEncoder(nn.Module):
    """Probability vectors (B, T_i, D_i), each averaged over its real positions -> a Memory of one row (B, 1, F).

    `fusion` "projections" (eq. 4): each has a linear projection of its own, and these follow each other, F = features x
    size; what a video lacks is zeros. "single": one linear projection of all of them and a ReLU, F = size."""

    def __init__(self, sizes: Mapping[str, int], size: int, fusion: Fusion, dropout: float):
        super().__init__()
        self.names = tuple(sizes)
        self.fusion = fusion
        widths = list(sizes.values()) if fusion == "projections" else [sum(sizes.values())]
        self.project = nn.ModuleList(nn.Linear(width, size) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.fused = size * len(widths)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        check_present(self.names, features, masks)
        there = torch.stack([masks[name].any(1) for name in self.names], dim=1)
        # Rows that are not real may hold anything, NaN included.
        means = [
            masked_mean(features[name].masked_fill(~masks[name].unsqueeze(-1), 0.0), masks[name]) for name in self.names
        ]
        if self.fusion == "projections":
            parts = [project(mean) for project, mean in zip(self.project, means, strict=True)]
            fused = torch.cat([part * there[:, i : i + 1] for i, part in enumerate(parts)], dim=1)
        else:
            fused = torch.relu(self.project[0](torch.cat(means, dim=1)))
        fused = self.dropout(fused)
        return Memory(fused.unsqueeze(1), there.any(1, keepdim=True), fused)
