"""S2VT: sequence to sequence, video to text; a base of RecNet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.captioner import Captioner, wanted_sizes
from models.captioners.s2vt_decoder import S2vtDecoder
from models.layers.temporal_encoder import Join, TemporalEncoder
from models.options import Options


class S2vtOptions(Options):
    """S2VT: two stacked LSTMs that read the rows of a video one by one and then say its caption."""

    kind: Literal["s2vt"] = "s2vt"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads."""
    join: Join = "depth"
    """How several features meet: "depth" (sampled at the same instants, row beside row) or "time" (row after row)."""
    embedding: int = Field(300, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of both LSTMs and of a projected feature row."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Part of the projected features, words and outputs that is dropped in training."""


def build_s2vt(options: S2vtOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    sizes = wanted_sizes(options.features, feature_sizes)
    encoder = TemporalEncoder(sizes, options.hidden, options.join, options.dropout)
    decoder = S2vtDecoder(vocabulary_size, options.hidden, options.embedding, options.hidden, options.dropout)
    return Captioner(encoder, decoder)
