"""RecNet: a captioner and a reconstructor that reconstructs the video's features from the decoder's states.

Encoder and decoder have the names and weights of the base: a checkpoint of the base is a RecNet but for `reconstructor.`"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import nn

from models.captioner import Captioner, wanted_sizes
from models.captioners.lstm import MpLstmOptions, SaLstmOptions, build_lstm
from models.captioners.recnet import reconstructors
from models.captioners.recnet.reconstruction_loss import Which
from models.captioners.s2vt import S2vtOptions, build_s2vt
from models.options import Options

BaseOptions = Annotated[SaLstmOptions | MpLstmOptions | S2vtOptions, Field(discriminator="kind")]


class RecNetOptions(Options):
    """RecNet: any of its base captioners with a reconstructor on top, which is used in training only."""

    kind: Literal["recnet"] = "recnet"
    """Which captioner."""
    base: BaseOptions
    """The captioner below: sa_lstm, mp_lstm or s2vt."""
    reconstructor: Literal["global", "local", "both", "transpose"] = "local"
    """What is reconstructed: the mean of the rows ("global"), row by row ("local", or with the decoder's own attention
    "transpose"), or "both"."""
    attention: int = Field(256, ge=1)
    """Size of the space in which words and reconstructed rows are compared ("local" and "both")."""

    @model_validator(mode="after")
    def _something_to_transpose(self) -> RecNetOptions:
        if self.reconstructor == "transpose" and self.base.kind != "sa_lstm":
            needed = f"the reconstructor 'transpose' needs the attention of an sa_lstm, a {self.base.kind} has none"
            raise ValueError(f"{needed}: change the base, or set the reconstructor to 'global', 'local' or 'both'")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it reads: those of its base."""
        return self.base.features

    @property
    def loss(self) -> Which:
        """The reconstruction loss that goes with the reconstructor."""
        return "local" if self.reconstructor == "transpose" else self.reconstructor


def build_recnet(options: RecNetOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    base = options.base
    build: Callable[..., Captioner] = build_s2vt if base.kind == "s2vt" else build_lstm
    captioner = build(base, feature_sizes, vocabulary_size)
    sizes = wanted_sizes(base.features, feature_sizes)
    if base.join == "time" and len(set(sizes.values())) > 1:
        found = f"rows of different sizes ({', '.join(f'{name} {size}' for name, size in sizes.items())})"
        advice = "set the base's join to 'depth', or name one feature"
        raise ValueError(f"{found} that follow each other cannot be reconstructed by one reconstructor: {advice}")
    size = sum(sizes.values()) if base.join == "depth" else next(iter(sizes.values()))
    net: nn.Module
    if options.reconstructor == "global":
        net = reconstructors.GlobalReconstructor(base.hidden, size)
    elif options.reconstructor == "transpose":
        net = reconstructors.TransposedReconstructor(base.hidden, size)
    else:
        net = reconstructors.LocalReconstructor(base.hidden, size, options.attention)
    captioner.reconstructor = reconstructors.Reconstructor(sizes, base.join, net)
    return captioner
