"""GLD's global discriminative reward: a caption should fit its own video better than any other (eq. 6 to 8).

R_H compares with the video's nearest neighbour in the whole training set, R_B with the hardest other video and the hardest
caption of another video in the minibatch. s(I, c) is the cosine in a frozen VSE++ space. Both are at most 0."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from models.options import Options
from models.vse import VisualSemantic, max_of_hinges, scores


class GlobalOptions(Options):
    """How much the global reward counts."""

    margin: float = Field(0.2, ge=0)
    """By how much a caption must fit its own video better than others."""
    neighbour: float = Field(1.0, ge=0)
    """Weight of R_H: against the nearest neighbour in the training set."""
    batch: float = Field(1.0, ge=0)
    """Weight of R_B: against the hardest of the minibatch."""

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        if not self.neighbour and not self.batch:
            raise ValueError("a global reward of nothing teaches nothing; give neighbour or batch a weight above 0")
        return self


class GlobalDiscriminative:
    """samples (N, T), video_of (N,): the index of each sample's video -> rewards (N,).

    videos (V, S) are the embeddings of all training videos; nearest (V,) the index of each one's nearest neighbour, -1
    where it has none. A video that could not be embedded is a row of zeros: its captions have reward 0, and no other is
    compared with it. The samples of one call are one minibatch; those of a baseline are another, with a call of their own."""

    def __init__(self, embedding: VisualSemantic, videos: Tensor, nearest: Tensor, options: GlobalOptions | None = None):
        if len(videos) != len(nearest):
            raise ValueError(f"{len(videos)} videos are embedded, but {len(nearest)} have a nearest neighbour")
        self.embedding, self.videos, self.embedded = embedding, videos, videos.any(1)
        self.nearest = nearest.masked_fill(~self.embedded[nearest.clamp(min=0)], -1)
        self.options = options or GlobalOptions()

    @torch.no_grad()
    def __call__(self, samples: Tensor, video_of: Tensor) -> Tensor:
        videos = video_of.to(self.videos.device)
        scored = self.embedded[videos]
        rewards = self.videos.new_zeros(len(videos))
        if scored.any():
            captions = self.embedding.sentences(samples.to(videos.device)[scored])
            rewards[scored] = self._score(captions, videos[scored])
        return rewards.to(samples.device)

    def _score(self, captions: Tensor, videos: Tensor) -> Tensor:
        """The vectors (M, S) of captions and the indices (M,) of their videos -> R_GD (M,), eq. 8."""
        nearest, margin = self.nearest[videos], self.options.margin
        against_nearest = neighbour_reward(captions, self.videos[videos], self.videos[nearest.clamp(min=0)], margin)
        against_nearest = against_nearest.masked_fill(nearest < 0, 0.0)
        present, video_index = videos.unique(return_inverse=True)
        against_batch = batch_reward(scores(captions, self.videos[present]), video_index, margin)
        return self.options.neighbour * against_nearest + self.options.batch * against_batch


def neighbour_reward(captions: Tensor, own: Tensor, nearest: Tensor, margin: float = 0.2) -> Tensor:
    """Eq. 6: captions, their videos and those videos' nearest neighbours, (N, S) each, of length 1 -> R_H (N,)."""
    return -(margin + (captions * nearest).sum(1) - (captions * own).sum(1)).clamp(min=0)


def batch_reward(scores: Tensor, video_index: Tensor, margin: float = 0.2) -> Tensor:
    """Eq. 7: scores (N, B) of the minibatch's captions and videos, video_index (N,) the column of each caption's video -> R_B
    (N,). Captions of the same video are no negatives; a minibatch of one video has none, and its reward is 0."""
    return -max_of_hinges(scores, video_index, margin)


def nearest_indices(ids: Sequence[str], nearest: Mapping[str, str]) -> Tensor:
    """The videos' ids in order, id -> the nearest neighbour's id -> indices (V,) of the neighbours, -1 where none is there."""
    index = {id: n for n, id in enumerate(ids)}
    return torch.tensor([index.get(nearest.get(id, ""), -1) for id in ids], dtype=torch.int64)
