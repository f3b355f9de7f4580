"""SA-LSTM and MP-LSTM: an LSTM that reads the rows of a video with attention, or their mean. The bases of RecNet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from models.captioner import Captioner, wanted_sizes
from models.layers.attention import AdditiveAttention, MeanContext
from models.layers.lstm_decoder import LstmDecoder
from models.layers.temporal_encoder import Join, TemporalEncoder
from models.options import Options


class SaLstmOptions(Options):
    """SA-LSTM: an LSTM with soft attention over time, the base of RecNet."""

    kind: Literal["sa_lstm"] = "sa_lstm"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads."""
    join: Join = "depth"
    """How several features meet: "depth" (sampled at the same instants, row beside row) or "time" (row after row)."""
    embedding: int = Field(300, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of the LSTM and of a projected feature row."""
    attention: int = Field(256, ge=1)
    """Size of the space in which rows and state are compared."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Part of the projected features, words and outputs that is dropped in training."""


class MpLstmOptions(Options):
    """MP-LSTM: an LSTM that sees the mean of the rows at every step, without attention."""

    kind: Literal["mp_lstm"] = "mp_lstm"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads."""
    join: Join = "depth"
    """How several features meet: "depth" (sampled at the same instants, row beside row) or "time" (row after row)."""
    embedding: int = Field(300, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of the LSTM and of a projected feature row."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Part of the projected features, words and outputs that is dropped in training."""


def build_sa_lstm(options: SaLstmOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    sizes = wanted_sizes(options.features, feature_sizes)
    encoder = TemporalEncoder(sizes, options.hidden, options.join, options.dropout)
    reader = AdditiveAttention(options.hidden, options.hidden, options.attention)
    return Captioner(
        encoder,
        LstmDecoder(reader, vocabulary_size, options.hidden, options.embedding, options.hidden, options.dropout),
    )


def build_mp_lstm(options: MpLstmOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    sizes = wanted_sizes(options.features, feature_sizes)
    encoder = TemporalEncoder(sizes, options.hidden, options.join, options.dropout)
    return Captioner(
        encoder,
        LstmDecoder(MeanContext(), vocabulary_size, options.hidden, options.embedding, options.hidden, options.dropout),
    )
