"""Video to words: a small net that learns, from the captions alone, which words a clip calls for.

Trained end to end on a data set's own training split, it needs no weights from elsewhere, and the features it learns at
each position carry appearance and motion: what the demo world's captioners read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor, nn

from models.options import Options


class TaggerOptions(Options):
    """The net that tags clips with words."""

    words: int = Field(60, ge=1)
    """How many words (K) it knows: the most frequent content words of the training captions."""
    size: int = Field(64, ge=16)
    """Width and height of its frames in pixels."""
    frames: int = Field(3, ge=2)
    """Frames at each position; the middle one shows what is there, its differences to the others show what moves."""
    channels: tuple[int, ...] = Field((24, 48, 96, 128), min_length=1)
    """Channels of its convolutions; each halves the width and height."""
    feature_size: int = Field(128, ge=1)
    """Size of a position's feature (D)."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """Part of the position features that is dropped in training."""
    shift: int = Field(4, ge=0)
    """Most pixels by which a training clip is moved as a whole, at random; directions stay what they are."""


@dataclass(frozen=True)
class TagBatch:
    """B clips and their words: clips (B, P, M, S, S, 3) uint8; targets (B, K) from 0 to 1, the part of the clip's captions
    that contain each word."""

    video_ids: tuple[str, ...]
    clips: Tensor
    targets: Tensor

    def to(self, device: str) -> TagBatch:
        return replace(self, clips=self.clips.to(device), targets=self.targets.to(device))


class WordTagger(nn.Module):
    """Clips (B, P, M, S, S, 3) uint8 -> logits of K words (B, K).

    A position's feature depends on its own M frames alone; only the head looks across positions. Each word chooses by
    attention the positions that speak for or against it, since the event fills only a part of a clip."""

    def __init__(self, options: TaggerOptions):
        super().__init__()
        self.options = options
        widths = [3 * options.frames + 2, *options.channels]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        grid = options.size
        for _ in options.channels:
            grid = (grid + 1) // 2
        # Flattened, not averaged: where something is and where it goes must survive.
        self.gather = nn.Linear(options.channels[-1] * grid * grid, options.feature_size)
        self.norm = nn.LayerNorm(options.feature_size)
        self.dropout = nn.Dropout(options.dropout)
        self.context = nn.Conv1d(options.feature_size, options.feature_size, 3, padding=1)
        self.evidence = nn.Linear(options.feature_size, options.words)
        self.relevance = nn.Linear(options.feature_size, options.words)

    def forward(self, clips: Tensor) -> Tensor:
        """clips (B, P, M, S, S, 3) uint8 -> word logits (B, K)."""
        B, P = clips.shape[:2]
        if self.training and self.options.shift:
            clips = _shifted(clips, self.options.shift)
        rows = self.dropout(self._positions(clips.flatten(0, 1)).view(B, P, -1))
        rows = rows + torch.relu(self.context(rows.transpose(1, 2))).transpose(1, 2)
        share = torch.softmax(self.relevance(rows), dim=1)
        return (share * self.evidence(rows)).sum(1)

    def features(self, clips: Tensor) -> Tensor:
        """clips (P, M, S, S, 3) uint8 of one video -> position features (P, D). Call it in eval mode."""
        return self._positions(clips)

    def word_probabilities(self, clips: Tensor) -> Tensor:
        """clips (B, P, M, S, S, 3) uint8 -> (B, K), each word on its own. Call it in eval mode."""
        return torch.sigmoid(self(clips))

    def _positions(self, clips: Tensor) -> Tensor:
        """(N, M, S, S, 3) uint8 -> (N, D)."""
        N, M, S = clips.shape[:3]
        if clips.shape[1:] != (self.options.frames, self.options.size, self.options.size, 3):
            raise ValueError(
                f"the tagger wants positions of {self.options.frames} frames of {self.options.size} x "
                f"{self.options.size} RGB pixels, here the shape is {tuple(clips.shape[1:])}"
            )
        pixels = clips.float() / 255
        middle = pixels[:, M // 2]
        moved = [pixels[:, m] - middle for m in range(M) if m != M // 2]
        # Coordinates as channels: convolutions alone cannot tell left from right.
        line = torch.linspace(-1, 1, S, device=clips.device)
        y, x = torch.meshgrid(line, line, indexing="ij")
        places = torch.stack([x, y], dim=-1).expand(N, S, S, 2)
        seen = torch.cat([middle - 0.5, *moved, places], dim=-1).permute(0, 3, 1, 2)
        return torch.relu(self.norm(self.gather(self.convolutions(seen).flatten(1))))


class TagLoss:
    """(tagger, batch) -> binary cross-entropy of each word against the part of the captions that use it, averaged."""

    def __call__(self, tagger: WordTagger, batch: TagBatch) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(tagger(batch.clips), batch.targets)


def _shifted(clips: Tensor, most: int) -> Tensor:
    """Every clip moved by up to `most` pixels each way, all its frames alike; borders repeat."""
    B, S = clips.shape[0], clips.shape[3]
    by = torch.randint(-most, most + 1, (2, B, 1), device=clips.device)
    line = torch.arange(S, device=clips.device)
    rows, columns = ((line + offset).clamp(0, S - 1) for offset in by)
    moved = [clip[:, :, row][:, :, :, column] for clip, row, column in zip(clips, rows, columns, strict=True)]
    return torch.stack(moved)
