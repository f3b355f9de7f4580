"""VSE++: a joint embedding of videos and sentences, in which a sentence is close to the video it describes.

s(I, c), the cosine of the two, is what GLD's global reward uses. Trained by the hardest negative of a batch, and in the first
epochs by all of them: at first the hardest alone pull everything into one point, where the loss is twice the margin."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from models.captioner import wanted_sizes
from models.layers.recurrent import GRU
from models.layers.temporal_encoder import pooled
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
        self.options = options
        sizes = wanted_sizes(options.features, feature_sizes, "embedding")
        self.head = nn.Linear(sum(sizes.values()), options.size)
        self.embed = nn.Embedding(vocabulary_size, options.embedding, padding_idx=PAD)
        self.gru = GRU(options.embedding, options.size, batch_first=True)
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        with torch.no_grad():
            self.embed.weight.mul_(0.1)

    def videos(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Tensor:
        """features name -> (B, T, D) or (B, T, S, D), masks name -> (B, T) -> (B, S)."""
        vector, _ = pooled(features, masks, self.options.features)
        return nn.functional.normalize(self.head(vector), dim=-1)

    def sentences(self, tokens: Tensor) -> Tensor:
        """tokens (N, L) as w1 .. wn EOS PAD.., without BOS -> (N, S). Tokens after EOS are ignored."""
        ends = (tokens == EOS) | (tokens == PAD)
        first = torch.where(ends.any(1), ends.to(torch.int8).argmax(1), tokens.shape[1] - 1)
        end = tokens.gather(1, first.unsqueeze(1)).squeeze(1)
        last = (first - (end == PAD).long()).clamp(min=0)
        longest = int(last.max()) + 1 if tokens.is_cpu else tokens.shape[1]  # a GPU would have to be waited for
        states, _ = self.gru(self.embed(tokens[:, :longest]))
        rows = torch.arange(len(tokens), device=tokens.device)
        return nn.functional.normalize(states[rows, last], dim=-1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """B videos with N captions -> their scores s (N, B) and video_index (N,)."""
        if batch.tokens is None or batch.video_index is None:
            raise ValueError("an embedding is trained on videos with captions, this batch holds features only")
        return scores(self.sentences(batch.tokens[:, 1:]), self.videos(batch.features, batch.masks)), batch.video_index


class MaxOfHinges:
    """(embedding, batch) -> the mean over all captions of `max_of_hinges`; in the first `easy` epochs, of `sum_of_hinges`."""

    def __init__(self, easy: int = 0, epoch: int | None = None):
        self.easy, self._hinges = easy, sum_of_hinges if epoch is not None and epoch < easy else max_of_hinges

    def at(self, epoch: int) -> MaxOfHinges:
        return MaxOfHinges(self.easy, epoch)

    def __call__(self, embedding: VisualSemantic, batch: Batch) -> Tensor:
        scores, video_index = embedding(batch)
        return self._hinges(scores, video_index, embedding.options.margin).mean()


def scores(sentences: Tensor, videos: Tensor) -> Tensor:
    """sentences (N, S), videos (B, S), of length 1 -> the cosine of every pair (N, B), in float32: they meet a margin."""
    with torch.autocast(sentences.device.type, enabled=False):
        return sentences.float() @ videos.float().T


def hardest(scores: Tensor, video_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """scores (N, B), video_index (N,) -> for each caption its own score, that of the other video which fits it best, and
    that of the caption of another video which fits its own video best: (N,) each, -inf where there is no other."""
    own = scores.gather(1, video_index.unsqueeze(1)).squeeze(1)
    foreign = scores.scatter(1, video_index.unsqueeze(1), -torch.inf)
    return own, foreign.amax(1), foreign.amax(0)[video_index]


def max_of_hinges(scores: Tensor, video_index: Tensor, margin: float) -> Tensor:
    """scores (N, B), video_index (N,) -> (N,): by how much the hardest other video and the hardest caption of another video
    come closer than `margin` to each caption's own score, the two added."""
    own, video, caption = hardest(scores, video_index)
    return (margin + video - own).clamp(min=0) + (margin + caption - own).clamp(min=0)


def sum_of_hinges(scores: Tensor, video_index: Tensor, margin: float) -> Tensor:
    """The same added up over all other videos and all captions of other videos, not of the hardest alone: (N,)."""
    own = scores.gather(1, video_index.unsqueeze(1))
    videos = torch.arange(scores.shape[1], device=scores.device) != video_index.unsqueeze(1)
    captions = video_index != video_index.unsqueeze(1)
    closer_videos = (margin + scores - own).clamp(min=0) * videos
    closer_captions = (margin + scores[:, video_index].T - own).clamp(min=0) * captions
    return closer_videos.sum(1) + closer_captions.sum(1)


def recalls(sentences: Tensor, videos: Tensor, video_index: Tensor) -> dict[str, float]:
    """sentences (N, S), videos (B, S), video_index (N,) -> the share of sentences whose video is among the first K ("video R@K"),
    and of videos that have one of their sentences among the first K ("caption R@K"). Equal scores rank before one's own;
    a video without sentences is left out."""
    own = (sentences * videos[video_index]).sum(1)
    best = torch.full((len(videos),), -torch.inf, device=own.device).scatter_reduce(0, video_index, own, "amax")
    rank = torch.ones(len(sentences), dtype=torch.int64, device=own.device)
    caption_rank = torch.ones(len(videos), dtype=torch.int64, device=own.device)
    for start in range(0, len(sentences), _BLOCK):
        block = slice(start, start + _BLOCK)
        found = scores(sentences[block], videos)
        others = torch.arange(len(videos), device=own.device) != video_index[block].unsqueeze(1)
        rank[block] += ((found >= own[block].unsqueeze(1) - TIE) & others).sum(1)
        caption_rank += ((found >= best - TIE) & others).sum(0)
    caption_rank = caption_rank[best > -torch.inf]
    recall = {f"video R@{k}": (rank <= k).double().mean().item() for k in RANKS}
    return recall | {f"caption R@{k}": (caption_rank <= k).double().mean().item() for k in RANKS}
