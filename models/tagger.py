"""Video to words: a small net that learns, from the captions alone, which words a clip calls for. It needs no weights from
elsewhere, and its features at each position carry appearance and motion: what the demo world's captioners read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from models.options import Options
from models.training.loop import eval_mode

GRID = 4
"""cells each way that a position is cut into, where its parts are asked for"""


class TaggerOptions(Options):
    """The net that tags clips with words."""

    words: int = Field(60, ge=1)
    """How many words (K) it knows: the most frequent content words of the training captions."""
    size: int = Field(64, ge=16)
    """Width and height of its frames in pixels."""
    frames: int = Field(3, ge=2)
    """Frames at each position; the middle one shows what is there, its differences to the others show what moves."""
    channels: tuple[int, ...] = Field((16, 32, 48, 64), min_length=1)
    """Channels of its convolutions; the first two halve the width and height."""
    feature_size: int = Field(128, ge=1)
    """Size of a position's feature (D)."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """Part of the position features that is dropped in training."""
    shift: int = Field(4, ge=0)
    """Most pixels by which a training clip is moved as a whole, at random; directions stay what they are."""
    thin: int = Field(2, ge=1)
    """In training a clip shows only every n-th position, from a random first one: as good, and n times cheaper."""


@dataclass(frozen=True)
class TagBatch:
    """B clips (B, P, M, S, S, 3) uint8; targets (B, K) from 0 to 1, the part of the clip's captions that contain each word."""

    video_ids: tuple[str, ...]
    clips: Tensor
    targets: Tensor

    def to(self, device: str) -> TagBatch:
        clips, targets = (x.to(device, non_blocking=True) for x in (self.clips, self.targets))
        return replace(self, clips=clips, targets=targets)


class WordTagger(nn.Module):
    """Clips (B, P, M, S, S, 3) uint8 -> logits of K words (B, K).

    A position's feature depends on its own M frames alone; only the head looks across positions. Each word chooses by
    attention the positions that speak for or against it, since the event fills only a part of a clip."""

    def __init__(self, options: TaggerOptions):
        super().__init__()
        self.options = options
        layers: list[nn.Module] = []
        for n, (before, after) in enumerate(pairwise((3 * options.frames, *options.channels))):
            stride = 2 if n < 2 else 1
            layers += [nn.Conv2d(before, after, 3, stride, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers).to(memory_format=torch.channels_last)
        self.gather = nn.Linear(options.channels[-1], options.feature_size)
        self.norm = nn.BatchNorm1d(options.feature_size)
        self.dropout = nn.Dropout(options.dropout)
        self.context = nn.Conv1d(options.feature_size, options.feature_size, 3, padding=1)
        self.evidence = nn.Linear(options.feature_size, options.words)
        self.relevance = nn.Linear(options.feature_size, options.words)
        nn.init.constant_(self.evidence.bias, -2.5)  # most words are absent from most clips

    def forward(self, clips: Tensor) -> Tensor:
        """clips (B, P, M, S, S, 3) uint8 -> word logits (B, K)."""
        if self.training:
            first = int(torch.randint(0, min(self.options.thin, clips.shape[1]), ()))
            clips = _shifted(clips[:, first :: self.options.thin], self.options.shift)
        B, P = clips.shape[:2]
        return self.word_logits(self.dropout(self.features(clips.flatten(0, 1)).view(B, P, -1)))

    def word_logits(self, rows: Tensor) -> Tensor:
        """Position features (B, P, D), as `features` gives them -> word logits (B, K)."""
        rows = rows + torch.relu(self.context(rows.transpose(1, 2))).transpose(1, 2)
        share = torch.softmax(self.relevance(rows), dim=1)
        return (share * self.evidence(rows)).sum(1)

    def features(self, clips: Tensor) -> Tensor:
        """clips (P, M, S, S, 3) uint8 -> position features (P, D). Call it in eval mode."""
        # The strongest answer wherever it is: an edge that moves left, or a corner, means the same everywhere. A net that
        # keeps the places learns the training clips by heart instead (shapes stayed at chance on new ones).
        return self._gathered(self._maps(clips).amax((2, 3)))

    def features_and_cells(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        """clips (P, M, S, S, 3) uint8 -> `features` (P, D), and of each position what its feature would be if only one cell
        of its frames answered (P, G*G, D), row by row. Call it in eval mode."""
        maps = self._maps(clips)
        parts = nn.functional.adaptive_max_pool2d(maps, GRID).flatten(2).transpose(1, 2)
        cells = self._gathered(parts.flatten(0, 1)).unflatten(0, parts.shape[:2])
        return self._gathered(maps.amax((2, 3))), cells

    def words_of_video(self, rows: Tensor) -> Tensor:
        """All position features (P, D) of one video -> the probabilities of its words (K,): GL-RG's W (eq. 1). A video at a
        time: so no other video's length plays a part. Call it in eval mode."""
        return torch.sigmoid(self.word_logits(rows.unsqueeze(0)).squeeze(0))

    def words_of_positions(self, rows: Tensor) -> Tensor:
        """Position features (N, D) -> (N, K): the same, were each position the whole video. Call it in eval mode."""
        return torch.sigmoid(self.word_logits(rows.unsqueeze(1)))

    def _maps(self, clips: Tensor) -> Tensor:
        """(N, M, S, S, 3) uint8 -> (N, C, Y, X)."""
        M, S = self.options.frames, self.options.size
        if clips.shape[1:] != (M, S, S, 3):
            wanted = f"the tagger wants positions of {M} frames of {S} x {S} RGB pixels"
            raise ValueError(f"{wanted}, here the shape is {tuple(clips.shape[1:])}")
        pixels = clips.float() / 255
        middle = pixels[:, M // 2]
        moved = [pixels[:, m] - middle for m in range(M) if m != M // 2]
        maps: Tensor = self.convolutions(torch.cat([middle - 0.5, *moved], dim=-1).permute(0, 3, 1, 2))
        return maps

    def _gathered(self, strongest: Tensor) -> Tensor:
        """The strongest answers (N, C) -> features (N, D)."""
        rows = self.gather(strongest)
        if self.training and len(rows) == 1:  # a batch of one position has no statistics of its own
            with eval_mode(self.norm):
                return torch.relu(self.norm(rows))
        return torch.relu(self.norm(rows))


class TagLoss:
    """(tagger, batch) -> binary cross-entropy of each word against the part of the captions that use it, averaged."""

    def __call__(self, tagger: WordTagger, batch: TagBatch) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(tagger(batch.clips), batch.targets)


def _shifted(clips: Tensor, most: int) -> Tensor:
    """Every clip moved by up to `most` pixels each way, all its frames alike; borders repeat."""
    offsets = torch.randint(-most, most + 1, (len(clips), 2)).tolist()
    return torch.stack([_moved(_moved(clip, dy, 2), dx, 3) for clip, (dy, dx) in zip(clips, offsets, strict=True)])


def _moved(clip: Tensor, by: int, dim: int) -> Tensor:
    """`clip` moved by so many pixels towards the start of `dim` (negative: towards its end)."""
    if by == 0:
        return clip
    size = clip.shape[dim]
    rest = clip.narrow(dim, max(by, 0), size - abs(by))
    border = [clip.narrow(dim, size - 1 if by > 0 else 0, 1)] * abs(by)
    return torch.cat([rest, *border] if by > 0 else [*border, rest], dim)
