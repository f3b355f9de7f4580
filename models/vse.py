"""VSE++: videos and sentences in one space, where a sentence lies close to the video it describes.

s(I, c), the cosine of the two, is what GLD's global reward asks for; trained by the hardest negative of a batch, and before
that by all of them: while nothing is told apart, those alone pull all into one point, where the loss is twice the margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from models.layers.temporal_encoder import masked_mean
from models.options import Options
from models.types import EOS, PAD, Batch

RANKS = (1, 5, 10)
TIE = 1e-6  # a difference of cosines that rounding alone can make
_BLOCK = 1024  # sentences at a time whose scores with all videos are in memory


class VseOptions(Options):
    """The joint space of videos and sentences."""

    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads, each as its mean over time and space."""
    size: int = Field(1024, ge=1)
    """Dimensions of the joint space."""
    embedding: int = Field(300, ge=1)
    """Size of a word's vector."""
    margin: float = Field(0.2, gt=0)
    """By how much a matching pair must score above any other."""


class VisualSemantic(nn.Module):
    """A linear head for videos and a GRU for sentences; both give vectors (.., S) of length 1."""

    def __init__(self, options: VseOptions, feature_sizes: Mapping[str, int], vocabulary_size: int):
        super().__init__()
        missing = [name for name in options.features if name not in feature_sizes]
        if missing:
            raise ValueError(
                f"the embedding reads features {', '.join(missing)} that are not there; "
                f"there are {', '.join(sorted(feature_sizes)) or 'none'}: extract them or change the embedding's features"
            )
        self.options = options
        self.head = nn.Linear(sum(feature_sizes[name] for name in options.features), options.size)
        self.embed = nn.Embedding(vocabulary_size, options.embedding, padding_idx=PAD)
        self.gru = nn.GRU(options.embedding, options.size, batch_first=True)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        with torch.no_grad():
            self.embed.weight.mul_(0.1)

    def videos(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Tensor:
        """features name -> (B, T, D) or (B, T, S, D), masks name -> (B, T) -> (B, S)."""
        vector, _ = pooled(features, masks, self.options.features)
        return nn.functional.normalize(self.head(vector), dim=-1)

    def sentences(self, tokens: Tensor) -> Tensor:
        """tokens (N, L) as w1 .. wn EOS PAD.., without BOS -> (N, S). Nothing behind EOS plays a part."""
        ends = (tokens == EOS) | (tokens == PAD)
        first = torch.where(ends.any(1), ends.to(torch.int8).argmax(1), tokens.shape[1] - 1)
        said = tokens.gather(1, first.unsqueeze(1)).squeeze(1)
        last = (first - (said == PAD).long()).clamp(min=0)
        states, _ = self.gru(self.embed(tokens[:, : int(last.max()) + 1]))
        rows = torch.arange(len(tokens), device=tokens.device)
        return nn.functional.normalize(states[rows, last], dim=-1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """B videos with N captions -> their scores s (N, B) and the captions' owners (N,)."""
        if batch.tokens is None or batch.owner is None:
            raise ValueError("an embedding learns from videos with captions, this batch was made for features only")
        return scores(self.sentences(batch.tokens[:, 1:]), self.videos(batch.features, batch.masks)), batch.owner


class SumOfHinges:
    """(embedding, batch) -> the mean over all captions of `sum_of_hinges`."""

    def __call__(self, embedding: VisualSemantic, batch: Batch) -> Tensor:
        found, owner = embedding(batch)
        return sum_of_hinges(found, owner, embedding.options.margin).mean()


class MaxOfHinges:
    """(embedding, batch) -> the mean over all captions of `max_of_hinges`; in the first `easy` epochs, of `sum_of_hinges`."""

    def __init__(self, easy: int = 0):
        self.easy = easy

    def at(self, epoch: int) -> SumOfHinges | MaxOfHinges:
        return SumOfHinges() if epoch < self.easy else self

    def __call__(self, embedding: VisualSemantic, batch: Batch) -> Tensor:
        found, owner = embedding(batch)
        return max_of_hinges(found, owner, embedding.options.margin).mean()


def scores(sentences: Tensor, videos: Tensor) -> Tensor:
    """sentences (N, S), videos (B, S), of length 1 -> the cosine of every pair (N, B)."""
    return sentences @ videos.T


def hardest(scores: Tensor, owner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """scores (N, B), owner (N,) -> for each caption its own score, that of the video which fits it best among the others,
    and that of the caption of another video which fits its own video best: (N,) each, -inf where there is no other."""
    others = torch.arange(scores.shape[1], device=scores.device) != owner.unsqueeze(1)
    own = scores.gather(1, owner.unsqueeze(1)).squeeze(1)
    foreign = scores.masked_fill(~others, -torch.inf)
    return own, foreign.amax(1), foreign.amax(0)[owner]


def max_of_hinges(scores: Tensor, owner: Tensor, margin: float) -> Tensor:
    """scores (N, B), owner (N,) -> (N,): by how much the hardest other video and the hardest caption of another video come
    closer than `margin` to each caption's own score, the two added."""
    own, video, caption = hardest(scores, owner)
    return (margin + video - own).clamp(min=0) + (margin + caption - own).clamp(min=0)


def sum_of_hinges(scores: Tensor, owner: Tensor, margin: float) -> Tensor:
    """The same added up over all other videos and all captions of other videos, not of the hardest alone: (N,)."""
    own = scores.gather(1, owner.unsqueeze(1))
    videos = torch.arange(scores.shape[1], device=scores.device) != owner.unsqueeze(1)
    captions = owner != owner.unsqueeze(1)
    closer_videos = (margin + scores - own).clamp(min=0) * videos
    closer_captions = (margin + scores[:, owner].T - own).clamp(min=0) * captions
    return closer_videos.sum(1) + closer_captions.sum(1)


def recalls(sentences: Tensor, videos: Tensor, owner: Tensor) -> dict[str, float]:
    """sentences (N, S), videos (B, S), owner (N,) -> the share of sentences whose video is among the first K ("video R@K"),
    and of videos that have one of their sentences among the first K ("caption R@K"). Equal scores rank before one's own;
    a video without sentences takes no part."""
    own = (sentences * videos[owner]).sum(1)
    best = torch.full((len(videos),), -torch.inf, device=own.device).scatter_reduce(0, owner, own, "amax")
    place = torch.ones(len(sentences), dtype=torch.int64, device=own.device)
    caption_place = torch.ones(len(videos), dtype=torch.int64, device=own.device)
    for start in range(0, len(sentences), _BLOCK):
        part = slice(start, start + _BLOCK)
        block = scores(sentences[part], videos)
        others = torch.arange(len(videos), device=own.device) != owner[part].unsqueeze(1)
        place[part] += ((block >= own[part].unsqueeze(1) - TIE) & others).sum(1)
        caption_place += ((block >= best - TIE) & others).sum(0)
    caption_place = caption_place[best > -torch.inf]
    found = {f"video R@{k}": (place <= k).double().mean().item() for k in RANKS}
    return found | {f"caption R@{k}": (caption_place <= k).double().mean().item() for k in RANKS}


def as_rows(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, T, D), (B, T, S, D) or (B, T, Y, X, D), mask (B, T) -> (B, T*S, D) and (B, T*S): cells of a grid are rows too."""
    return x.flatten(1, -2), mask.repeat_interleave(x.shape[2:-1].numel(), dim=1)


def pooled(features: dict[str, Tensor], masks: dict[str, Tensor], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The named features (B, T, D_i) or (B, T, S, D_i), masks (B, T) -> the mean of each one's real rows, side by side
    (B, sum of D_i), zeros for one that a video lacks; and whether a video has any (B,)."""
    missing = [name for name in names if name not in features or name not in masks]
    if missing:
        raise ValueError(
            f"{', '.join(names)} are read but the batch has no {', '.join(missing)}; "
            f"it has {', '.join(sorted(features)) or 'nothing'}"
        )
    rows = [as_rows(features[name], masks[name]) for name in names]
    # Rows that are not real may hold anything, NaN included.
    means = [masked_mean(x.masked_fill(~mask.unsqueeze(-1), 0.0), mask) for x, mask in rows]
    return torch.cat(means, dim=1), torch.stack([mask.any(1) for _, mask in rows]).any(0)
