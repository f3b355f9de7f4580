"""Training batches: some videos with some of their captions each, in an order that depends on seed and epoch alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from models.training.parallel import Ranks
from models.types import PAD, Batch
from storage.text.tables import caption_id
from tasks.framework.feature_access import FeatureAccess


class CaptionBatches:
    """Every epoch shows every video once, with `captions_per_video` of its captions drawn without repeats (all, if it has
    fewer). `caption_ns` are the captions' own numbers, by which their weights are kept: one without a word is not there. Of
    `ranks`, each process gets its part of every batch, which may be without videos. `frame_dropout` is the part of a video's
    rows that is hidden, others every time, the same ones in features of the same length; one at least stays."""

    def __init__(
        self,
        access: FeatureAccess,
        captions: dict[str, list[list[int]]],
        caption_ns: dict[str, list[int]],
        ids: Sequence[str],
        videos_per_batch: int,
        captions_per_video: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
        ranks: Ranks | None = None,
        frame_dropout: float = 0.0,
    ):
        self.access, self.captions, self.caption_ns, self.ids = access, captions, caption_ns, list(ids)
        self.videos_per_batch, self.captions_per_video, self.seed = videos_per_batch, captions_per_video, seed
        self.weights = weights
        self.frame_dropout = frame_dropout
        self.ranks = ranks or Ranks()

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.ids) / self.videos_per_batch)

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        """The batches of an epoch without the first `skip`, read one ahead of their use."""
        return _one_ahead(self._batches(epoch, skip))

    def _batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.ids))
        for step in range(skip, self.steps_per_epoch):
            chosen = order[step * self.videos_per_batch : (step + 1) * self.videos_per_batch]
            draw = np.random.default_rng([self.seed, epoch, step + 1])  # of its own, so that skipping costs nothing
            yield self._batch([self.ids[i] for i in chosen], draw)

    def _batch(self, ids: list[str], draw: np.random.Generator) -> Batch:
        # All processes that train together draw for all videos, so that a caption does not depend on how many they are.
        drawn = {id: draw.permutation(len(self.captions[id]))[: self.captions_per_video] for id in ids}
        chances = draw.integers(2**63, size=len(ids)).tolist() if self.frame_dropout else []
        tokens, video_index, caption_ids = [], [], []
        mine = self.ranks.shard(ids)
        if not mine:
            return Batch((), {}, {})
        for row, id in enumerate(mine):
            for n in drawn[id]:
                tokens.append(self.captions[id][n])
                video_index.append(row)
                caption_ids.append(caption_id(id, self.caption_ns[id][n]))
        features, masks = self.access.read(mine)
        if self.frame_dropout:
            mine_of = self.ranks.shard(chances)
            masks = {name: some_rows(mask, mine_of, self.frame_dropout) for name, mask in masks.items()}
        weights = None if self.weights is None else torch.tensor([self.weights[id] for id in caption_ids])
        return Batch(tuple(mine), features, masks, pad(tokens), torch.tensor(video_index), tuple(caption_ids), weights)


def some_rows(mask: torch.Tensor, seeds: Sequence[int], hidden: float) -> torch.Tensor:
    """mask (B, T) and a seed for each video -> the same without a part of its rows; a video that has rows keeps one at least."""
    drawn = np.stack([np.random.default_rng(seed).random(mask.shape[1]) for seed in seeds])
    chances = torch.from_numpy(drawn).masked_fill(~mask, -1.0)
    luckiest = chances == chances.amax(1, keepdim=True)
    return mask & ((chances >= hidden) | luckiest)


def pad(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """N lists of numbers -> (N, L) int64, filled with PAD."""
    padded = np.full((len(rows), max(len(row) for row in rows)), PAD, np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return torch.from_numpy(padded)


def _one_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Read the next batch in a thread while the current one is used."""
    with ThreadPoolExecutor(1, "batches") as pool:
        upcoming = pool.submit(next, batches, None)
        while (batch := upcoming.result()) is not None:
            upcoming = pool.submit(next, batches, None)
            yield batch
