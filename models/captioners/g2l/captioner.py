"""G2L (Global2Local): clips and frames attended jointly, key frames chosen by a Gumbel top-k sampler, then their regions.

The rows of its Table 1: `alignment: false` with `regions: null` (Global_base); `regions: null` (+ Alignment); and with
regions, `sampler: {k: 1 | 2 | 3}` (+ Local) or `sampler: {kind: argmax}` (w/o Gumbel)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from models.captioner import Captioner, wanted_sizes
from models.captioners.g2l.decoder import GruDecoder
from models.captioners.g2l.encoder import AlignedAttention, G2lAttention, G2lEncoder, RegionAttention
from models.layers.gumbel import SamplerOptions, TopKSampler
from models.options import Options


class G2lOptions(Options):
    """G2L: joint clip-frame attention, key frames, regions of these, and a GRU decoder."""

    kind: Literal["g2l"] = "g2l"
    """Which captioner."""
    frames: str
    """Name of the 2D features, one row per position."""
    clips: str
    """Name of the 3D features, at the same positions."""
    regions: str | None = None
    """Name of the region features; none leaves the local branch out."""
    region_stride: int = Field(3, ge=1)
    """Positions for each frame that has regions."""
    alignment: bool = True
    """Whether frames and clips are also attended together, position by position."""
    sampler: SamplerOptions = SamplerOptions()
    """How the frames are chosen whose regions are attended to."""
    projection: int = Field(1024, ge=1)
    """Size of a projected frame, clip or region."""
    attention: int = Field(384, ge=1)
    """Size of the space in which features and state are compared."""
    aligned: int = Field(512, ge=1)
    """Size of the compact context of frames and clips together."""
    embedding: int = Field(300, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(768, ge=1)
    """Size of a GRU layer."""
    layers: int = Field(2, ge=1)
    """GRU layers."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the words, of what passes between layers and of the outputs that is dropped in training."""

    @model_validator(mode="after")
    def _regions_need_alignment(self) -> G2lOptions:
        if self.regions is not None and not self.alignment:
            advice = "set 'alignment' to true or 'regions' to null"
            raise ValueError(f"key frames are chosen by the aligned attention: {advice}")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it reads."""
        return tuple(dict.fromkeys(name for name in (self.frames, self.clips, self.regions) if name is not None))


def build_g2l(options: G2lOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    o, sizes = options, wanted_sizes(options.features, feature_sizes)
    aligned = local = None
    context = 2 * o.projection
    if o.alignment:
        aligned = AlignedAttention(o.hidden, 2 * o.projection, o.attention, o.aligned)
        context += o.aligned
    if o.regions is not None:
        local = RegionAttention(TopKSampler(o.sampler), o.hidden, o.projection, o.attention, o.region_stride)
        context += o.projection
    named = [(name, sizes[name]) for name in (o.frames, o.clips, o.regions) if name is not None]
    encoder = G2lEncoder(named, o.projection)
    attention = G2lAttention(o.hidden, o.projection, o.attention, aligned, local)
    widths = (context, 2 * o.projection, o.embedding, o.hidden)
    return Captioner(encoder, GruDecoder(attention, vocabulary_size, widths, o.layers, o.dropout))
