"""Training batches: some videos with some captions each, in an order that depends on seed and epoch alone."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions
from models.metrics.corpus import score_corpus
from models.training.parallel import Ranks
from models.types import PAD, Batch
from storage.errors import MissingFeatures
from storage.records import ArtifactRef
from storage.text.references import References
from storage.text.tables import caption_id
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageContext
from tasks.inference.generate import rank_captions


class CaptionBatches:
    """Every epoch has every video once, with `captions_per_video` of its captions drawn without repeats (all, if it has fewer).

    captions: video id -> the token ids of its captions; caption_indices: video id -> their indices in the catalogue, by which
    their weights are stored (captions without a word are left out, so indices have gaps). Of `ranks`, each process gets its
    shard of every batch, which may be empty. frame_dropout: the share of a video's rows that is masked, drawn anew for each
    batch, the same rows in features of the same length; at least one stays. for_gpu: features stay float16 and all lies in pinned
    memory, so that it is sent quickly and without a wait."""

    def __init__(
        self,
        access: FeatureAccess,
        captions: dict[str, list[list[int]]],
        caption_indices: dict[str, list[int]],
        ids: Sequence[str],
        videos_per_batch: int,
        captions_per_video: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
        ranks: Ranks | None = None,
        frame_dropout: float = 0.0,
        for_gpu: bool = False,
    ):
        self.access, self.captions, self.caption_indices, self.ids = access, captions, caption_indices, list(ids)
        self.videos_per_batch, self.captions_per_video, self.seed = videos_per_batch, captions_per_video, seed
        self.weights, self.ranks, self.frame_dropout, self.for_gpu = weights, ranks or Ranks(), frame_dropout, for_gpu

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.ids) / self.videos_per_batch)

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        """The batches of an epoch without the first `skip`; the next one is read in a thread while the current one is used."""
        batches = self._batches(epoch, skip)
        with ThreadPoolExecutor(1, "batches") as pool:
            upcoming = pool.submit(next, batches, None)
            while (batch := upcoming.result()) is not None:
                upcoming = pool.submit(next, batches, None)
                yield batch

    def _batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        order, size = np.random.default_rng([self.seed, epoch]).permutation(len(self.ids)), self.videos_per_batch
        for step in range(skip, self.steps_per_epoch):
            videos = order[step * size : (step + 1) * size]
            rng = np.random.default_rng([self.seed, epoch, step + 1])  # one per step, so that skipping costs nothing
            yield self._batch([self.ids[i] for i in videos], rng)

    def _batch(self, ids: list[str], rng: np.random.Generator) -> Batch:
        # Every process draws for all videos, so that a caption does not depend on the number of processes.
        drawn = {id: rng.permutation(len(self.captions[id]))[: self.captions_per_video] for id in ids}
        seeds = rng.integers(2**63, size=len(ids)).tolist() if self.frame_dropout else []
        shard = self.ranks.shard(ids)
        if not shard:
            return Batch((), {}, {})
        tokens, video_index, caption_ids = [], [], []
        for row, id in enumerate(shard):
            for n in drawn[id]:
                tokens.append(self.captions[id][n])
                video_index.append(row)
                caption_ids.append(caption_id(id, self.caption_indices[id][n]))
        features, masks = self.access.read_half(shard) if self.for_gpu else self.access.read(shard)
        if self.frame_dropout:
            seeds = self.ranks.shard(seeds)
            masks = {name: drop_rows(mask, seeds, self.frame_dropout) for name, mask in masks.items()}
        weights = None if self.weights is None else torch.tensor([self.weights[id] for id in caption_ids])
        batch = Batch(tuple(shard), features, masks, pad(tokens), torch.tensor(video_index), tuple(caption_ids), weights)
        return batch.pin_memory() if self.for_gpu else batch


class CaptionData:
    """The captions and features that a stage trains on; `ids` are the training videos that have both."""

    def __init__(self, context: StageContext, text: ArtifactRef, access: FeatureAccess):
        self.access, self.references = access, References(context.path(text))
        self.for_gpu = context.runtime.torch_device() != "cpu"
        self.captions = self.references.token_ids("train")
        self.ids = access.usable(sorted(self.captions))
        if not self.ids:
            reason = "no training video has both captions and features"
            raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")

    def batches(
        self, size: int, captions: int, seed: int, weights: Mapping[str, float] | None = None, dropout: float = 0.0
    ) -> CaptionBatches:
        """`size` videos with `captions` captions each; `dropout` of frames."""
        how = (self.ids, size, captions, seed, weights, None, dropout, self.for_gpu)
        return CaptionBatches(self.access, self.captions, self.references.caption_indices("train"), *how)

    def metadata(self, **options: Any) -> dict[str, Any]:
        """What the checkpoint says of a model that was trained on this."""
        extractors = {name: self.access.about[name]["key"] for name in self.access.names}
        trained_on = {"vocabulary": self.references.vocabulary.key, "sizes": self.access.sizes, "extractors": extractors}
        return {name: value.model_dump(mode="json") for name, value in options.items()} | trained_on

    def validation(self, captioner: Captioner, max_words: int, device: str) -> Callable[[], tuple[float, dict[str, Any]]] | None:
        """Validation by the CIDEr of greedy captions; None where no validation video has features. Of several processes that
        train together, each captions its shard of the videos; all must call it."""
        truth = {id: refs for id, refs in self.references.sentences("val").items() if self.access.usable([id])}
        vocabulary, greedy = self.references.vocabulary, SearchOptions(width=1, max_length=max_words)

        def validate() -> tuple[float, dict[str, Any]]:
            ranks = Ranks()
            ranked = rank_captions(
                captioner, self.access, vocabulary, ranks.shard(sorted(truth)), greedy, device, attention=False
            )
            shards = ranks.gather({row.video_id: row.caption for row, *_ in ranked})
            captions = dict(sorted((id, caption) for shard in shards for id, caption in shard.items()))
            cider = score_corpus(captions, truth).corpus["CIDEr"]
            return cider, {"val_cider": cider}

        return validate if truth else None


def drop_rows(mask: torch.Tensor, seeds: Sequence[int], share: float) -> torch.Tensor:
    """mask (B, T) and a seed per video -> the mask without a share of its rows; a video that has rows keeps at least one."""
    drawn = np.stack([np.random.default_rng(seed).random(mask.shape[1]) for seed in seeds])
    uniforms = torch.from_numpy(drawn).masked_fill(~mask, -1.0)
    largest = uniforms == uniforms.amax(1, keepdim=True)
    return mask & ((uniforms >= share) | largest)


def pad(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """N lists of token ids -> (N, L) int64, padded with PAD."""
    padded = np.full((len(rows), max(len(row) for row in rows)), PAD, np.int64)
    for n, row in enumerate(rows):
        padded[n, : len(row)] = row
    return torch.from_numpy(padded)
