"""GL-RG: the probabilities of words (W), actions (A) and objects (C) of a video become one vector, an LSTM says it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.captioner import Captioner, wanted_sizes
from models.captioners.glrg_encoder import Fusion, GlobalLocalEncoder
from models.layers.lstm_decoder import FedLstmDecoder, Feed
from models.options import Options


class GlRgOptions(Options):
    """GL-RG: global and local granularity. Its Table 2 names fewer features."""

    kind: Literal["glrg"] = "glrg"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the probability vectors it reads: words, actions, objects, or some of them."""
    fusion: Fusion = "projections"
    """How they meet: "projections" (one each, eq. 4) or "single" (one for all and a ReLU, as the authors' code has it)."""
    projection: int = Field(512, ge=1)
    """Size of a projection."""
    feed: Feed = "first"
    """When the LSTM sees the fused vector: as its "first" input (eq. 6), or beside "every" word (the authors' code)."""
    embedding: int = Field(512, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of the LSTM."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Part of the fused vector, words and outputs that is dropped in training."""


def build_glrg(options: GlRgOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    sizes = wanted_sizes(options.features, feature_sizes)
    encoder = GlobalLocalEncoder(sizes, options.projection, options.fusion, options.dropout)
    decoder = FedLstmDecoder(
        vocabulary_size, encoder.fused, options.embedding, options.hidden, options.dropout, options.feed
    )
    return Captioner(encoder, decoder)
