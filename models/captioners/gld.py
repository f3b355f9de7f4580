"""GLD's two captioners: Show-Tell (ST) sees a video as one vector, Top-Down (TDA) looks at it place by place.

Rows may be frames (B, T, D) or the cells of a grid in each frame (B, T, S, D); an image is a video of one frame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from models.captioner import Captioner, wanted_sizes
from models.captioners.show_tell_decoder import ShowTellDecoder
from models.captioners.top_down_decoder import TopDownDecoder
from models.layers.temporal_encoder import Join, TemporalEncoder
from models.options import Options
from models.types import Memory
from models.vse import as_rows, pooled


class ShowTellOptions(Options):
    """Show-Tell: the video's vector is the first input of an LSTM, then come the words."""

    kind: Literal["show_tell"] = "show_tell"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads, each as its mean over time and space."""
    embedding: int = Field(512, ge=1)
    """Size of a word's vector, and of the video's."""
    hidden: int = Field(512, ge=1)
    """Size of the LSTM."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Part of the video's vector, words and outputs that is dropped in training."""


class TopDownOptions(Options):
    """Top-Down: one LSTM that attends to the cells of a grid (or to frames), one that speaks."""

    kind: Literal["top_down"] = "top_down"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads: grids or rows over time."""
    join: Join = "time"
    """How several features meet: "time" (row after row) or "depth" (sampled at the same places, row beside row)."""
    embedding: int = Field(512, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of both LSTMs and of a projected feature row."""
    attention: int = Field(512, ge=1)
    """Size of the space in which rows and state are compared."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Part of the projected features, words and outputs that is dropped in training."""


class PooledEncoder(nn.Module):
    """Features (B, T, D_i) or (B, T, S, D_i) -> Memory of one row (B, 1, H), which is its summary too.

    Each feature is averaged by itself; one that a video lacks counts as zeros."""

    def __init__(self, sizes: Mapping[str, int], hidden: int, dropout: float):
        super().__init__()
        self.names = tuple(sizes)
        self.project = nn.Linear(sum(sizes.values()), hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        vector, there = pooled(features, masks, self.names)
        summary = self.dropout(self.project(vector)) * there.unsqueeze(1)
        return Memory(summary.unsqueeze(1), there.unsqueeze(1), summary)


class GridEncoder(nn.Module):
    """Features (B, T, D_i) or (B, T, S, D_i) -> Memory of tokens (B, T*S, H): time and space become one row of places."""

    def __init__(self, sizes: Mapping[str, int], hidden: int, join: Join, dropout: float):
        super().__init__()
        self.names = tuple(sizes)
        self.rows = TemporalEncoder(sizes, hidden, join, dropout)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        flat = {name: as_rows(features[name], masks[name]) for name in self.names if name in features and name in masks}
        return self.rows({name: x for name, (x, _) in flat.items()}, {name: mask for name, (_, mask) in flat.items()})


def build_show_tell(options: ShowTellOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    encoder = PooledEncoder(wanted_sizes(options.features, feature_sizes), options.embedding, options.dropout)
    return Captioner(encoder, ShowTellDecoder(vocabulary_size, options.embedding, options.hidden, options.dropout))


def build_top_down(options: TopDownOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    sizes = wanted_sizes(options.features, feature_sizes)
    encoder = GridEncoder(sizes, options.hidden, options.join, options.dropout)
    decoder = TopDownDecoder(
        vocabulary_size, options.hidden, options.embedding, options.hidden, options.attention, options.dropout
    )
    return Captioner(encoder, decoder)
