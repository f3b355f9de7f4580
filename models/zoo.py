"""The published captioners. Read this first: each has its options and one function that builds it.

A new one is an options class with a `kind`, a builder, a row of CAPTIONERS and a member of CaptionerOptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from models.captioner import Captioner
from models.decoders.lstm import LstmDecoder
from models.encoders.attention import AdditiveAttention, MeanContext
from models.encoders.temporal import Join, TemporalEncoder
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


CaptionerOptions = Annotated[SaLstmOptions | MpLstmOptions, Field(discriminator="kind")]


def build_sa_lstm(options: SaLstmOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    encoder = TemporalEncoder(_wanted(options.features, feature_sizes), options.hidden, options.join, options.dropout)
    reader = AdditiveAttention(options.hidden, options.hidden, options.attention)
    return Captioner(
        encoder,
        LstmDecoder(reader, vocabulary_size, options.hidden, options.embedding, options.hidden, options.dropout),
    )


def build_mp_lstm(options: MpLstmOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    encoder = TemporalEncoder(_wanted(options.features, feature_sizes), options.hidden, options.join, options.dropout)
    return Captioner(
        encoder,
        LstmDecoder(MeanContext(), vocabulary_size, options.hidden, options.embedding, options.hidden, options.dropout),
    )


CAPTIONERS: dict[str, Callable[[Any, dict[str, int], int], Captioner]] = {
    "sa_lstm": build_sa_lstm,
    "mp_lstm": build_mp_lstm,
}


def build_captioner(options: CaptionerOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    """A captioner with fresh weights from torch's global generator. feature_sizes: name -> D."""
    return CAPTIONERS[options.kind](options, feature_sizes, vocabulary_size)


def _wanted(names: tuple[str, ...], sizes: dict[str, int]) -> dict[str, int]:
    missing = [name for name in names if name not in sizes]
    if missing:
        raise ValueError(
            f"the captioner reads features {', '.join(missing)} that are not there; "
            f"there are {', '.join(sorted(sizes)) or 'none'}: extract them or change the captioner's features"
        )
    return {name: sizes[name] for name in names}
