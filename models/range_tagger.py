"""GL-RG's encoders on frames around keyframes, as the paper draws them (Fig. 2): pretrained nets below, trained layers above.

long range   a 2D net on the distant frames t-n, t, t+n; a 3D ResNet over its maps; dense layers
short range  a 2D net and a 3D ResNet-18 on the close frames t-10, t, t+10; their vectors stacked; dense layers"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Discriminator, Field, Tag
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.options import Options
from models.tagger import TaggerOptions

FAR, NEAR = (0, 2, 4), (1, 2, 3)
"""of the five frames of a keyframe (t-n, t-10, t, t+10, t+n), those that each encoder sees"""


class RangeOptions(Options):
    """What both encoders have in common."""

    kind: str
    """Which encoder."""
    words: int = Field(300, ge=1)
    """How many words (K) it knows: the most frequent content words of the training captions."""
    size: int = Field(224, ge=32)
    """Width and height of its frames in pixels."""
    net: str = "resnet101"
    """The pretrained 2D net; it is not trained."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """Of the pretrained nets; random is for trying the plumbing."""
    hidden: int = Field(512, ge=1)
    """Size of the dense layer before the last."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the dense layers' inputs that is dropped in training."""

    @property
    def frames(self) -> int:
        """Frames at each keyframe."""
        return 5

    @property
    def nets(self) -> tuple[str, ...]:
        """The pretrained nets."""
        return (self.net,)


class LongRangeOptions(RangeOptions):
    """The long-range encoder (eq. 1): a pretrained 2D net on distant frames, a 3D ResNet over its maps, dense layers."""

    kind: Literal["long_range"] = "long_range"
    """Which encoder."""
    channels: int = Field(256, ge=1)
    """Channels of the 3D ResNet."""
    blocks: int = Field(2, ge=1)
    """Residual blocks of the 3D ResNet, two convolutions each."""


class ShortRangeOptions(RangeOptions):
    """The short-range encoder (eq. 2): a pretrained 2D net and a pretrained 3D net on close frames, stacked, dense layers."""

    kind: Literal["short_range"] = "short_range"
    """Which encoder."""
    motion: str = "r3d_18"
    """The pretrained 3D net; it is not trained."""

    @property
    def nets(self) -> tuple[str, ...]:
        return self.net, self.motion


def _which(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return kind or "small"


_DEFINITIONS = {"small": "TaggerOptions", "long_range": "LongRangeOptions", "short_range": "ShortRangeOptions"}
AnyTaggerOptions = Annotated[
    Annotated[TaggerOptions, Tag("small")]
    | Annotated[LongRangeOptions, Tag("long_range")]
    | Annotated[ShortRangeOptions, Tag("short_range")],
    Discriminator(_which),
    Field(json_schema_extra={"discriminator": {"mapping": {tag: f"#/$defs/{name}" for tag, name in _DEFINITIONS.items()}}}),
]
"""a tagger without `kind` is the small net that learns from nothing"""


class ResidualBlock3d(nn.Module):
    """(B, C, F, h, w) -> the same: two convolutions and a skip."""

    def __init__(self, channels: int):
        super().__init__()
        layers: list[nn.Module] = []
        for n in range(2):
            layers += [nn.Conv3d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm3d(channels)]
            layers += [nn.ReLU()] if n == 0 else []
        self.convolutions = nn.Sequential(*layers)

    def forward(self, maps: Tensor) -> Tensor:
        return torch.relu(maps + self.convolutions(maps))


class RangeTagger(nn.Module):
    """Keyframes with their neighbours (B, P, 5, S, S, 3) uint8 -> logits of K words (B, K): the mean over the keyframes.

    The pretrained nets are no part of its state: they are opened by name, and never change."""

    def __init__(self, options: LongRangeOptions | ShortRangeOptions, backbones: Sequence[Backbone]):
        super().__init__()
        self.options, self._backbones = options, list(backbones)
        size = sum(backbone.outputs["pooled"][-1] for backbone in backbones)
        self.cnn: nn.Module | None = None
        if isinstance(options, LongRangeOptions):
            blocks = [ResidualBlock3d(options.channels) for _ in range(options.blocks)]
            maps = backbones[0].outputs["grid"][-1]
            self.cnn, size = nn.Sequential(nn.Conv3d(maps, options.channels, 1), nn.ReLU(), *blocks), options.channels
        self.gather = nn.Sequential(nn.Dropout(options.dropout), nn.Linear(size, options.hidden), nn.ReLU())
        self.evidence = nn.Sequential(nn.Dropout(options.dropout), nn.Linear(options.hidden, options.words))

    def forward(self, clips: Tensor) -> Tensor:
        """(B, P, 5, S, S, 3) uint8 -> word logits (B, K)."""
        B, P = clips.shape[:2]
        return self.word_logits(self.features(clips.flatten(0, 1)).view(B, P, -1))

    def word_logits(self, rows: Tensor) -> Tensor:
        """Features of keyframes (B, P, H) -> word logits (B, K)."""
        logits: Tensor = self.evidence(rows).mean(1)
        return logits

    def features(self, clips: Tensor) -> Tensor:
        """(N, 5, S, S, 3) uint8 -> features of keyframes (N, H)."""
        if clips.shape[1] != self.options.frames:
            raise ValueError(f"a keyframe has {self.options.frames} frames, here {clips.shape[1]}: sample 'keyframes'")
        seen = clips[:, list(FAR if self.cnn is not None else NEAR)]
        for backbone in self._backbones:
            backbone.net.to(clips.device)
        N, M = seen.shape[:2]
        pictures = seen.flatten(0, 1).unsqueeze(1)
        if self.cnn is not None:
            grid = self._backbones[0](pictures)["grid"]
            side = math.isqrt(grid.shape[1])
            maps = grid.view(N, M, side, side, -1).permute(0, 4, 1, 2, 3)
            rows: Tensor = self.gather(self.cnn(maps).mean((2, 3, 4)))
            return rows
        still = self._backbones[0](pictures)["pooled"].view(N, M, -1).mean(1)
        rows = self.gather(torch.cat([still, self._backbones[1](seen)["pooled"]], dim=1))
        return rows

    def words_of_keyframes(self, rows: Tensor) -> Tensor:
        """Features of keyframes (N, H) -> probabilities (N, K). Call it in eval mode."""
        return torch.sigmoid(self.evidence(rows))
