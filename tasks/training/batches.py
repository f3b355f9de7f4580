"""Training batches: some videos with some captions each, in an order that depends on seed and epoch alone."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions
from models.metrics.corpus import score_corpus
from models.training.parallel import Ranks
from models.types import PAD, Batch
from storage.errors import MissingFeatures
from storage.options import Options
from storage.records import ArtifactRef
from storage.text.references import References
from storage.text.tables import caption_id
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageContext
from tasks.inference.generate import rank_captions
from tasks.training.data_size import DataSizedOptions

EpochOver = Literal["captions", "videos"]
"""what every epoch has once: all captions, as the papers count, or all videos, each with some of its captions"""
_Sized = TypeVar("_Sized", bound=DataSizedOptions)


def visits_of(captions: Iterable[int], captions_per_video: int, epoch_over: EpochOver) -> np.ndarray:
    """The number of captions of each video -> how often each comes in an epoch."""
    return np.array([math.ceil(count / captions_per_video) if epoch_over == "captions" else 1 for count in captions])


class CaptionBatches:
    """Every epoch has every caption once: a video comes back, at intervals, until its captions have all been there,
    `captions_per_video` at a time. With `epoch_over` "videos" it has every video once, with so many captions drawn.

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
        epoch_over: EpochOver = "captions",
        for_gpu: bool = False,
    ):
        self.access, self.captions, self.caption_indices, self.ids = access, captions, caption_indices, list(ids)
        self.videos_per_batch, self.captions_per_video, self.seed = videos_per_batch, captions_per_video, seed
        self.weights, self.ranks, self.frame_dropout, self.for_gpu = weights, ranks or Ranks(), frame_dropout, for_gpu
        self.epoch_over = epoch_over
        self._visits = visits_of((len(captions[id]) for id in self.ids), captions_per_video, epoch_over)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(int(self._visits.sum()) / self.videos_per_batch)

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        """The batches of an epoch without the first `skip`; the next one is read in a thread while the current one is used."""
        batches = self._batches(epoch, skip)
        with ThreadPoolExecutor(1, "batches") as pool:
            upcoming = pool.submit(next, batches, None)
            while (batch := upcoming.result()) is not None:
                upcoming = pool.submit(next, batches, None)
                yield batch

    def _batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        order, size = self._order(np.random.default_rng([self.seed, epoch])), self.videos_per_batch
        for step in range(skip, self.steps_per_epoch):
            visits = order[step * size : (step + 1) * size].tolist()
            rng = np.random.default_rng([self.seed, epoch, step + 1])  # one per step, so that skipping costs nothing
            drawn: dict[str, list[int]] = {}
            for video, visit in visits:  # every process draws for all videos: their number must not change a caption
                drawn.setdefault(self.ids[video], []).extend(self._draw(rng, epoch, video, visit))
            yield self._batch(drawn, rng)

    def _order(self, rng: np.random.Generator) -> np.ndarray:
        """Pairs of a video and the number of its visit, in the order of an epoch: a video's visits are spread over it evenly, so
        that it is hardly ever in the same batch twice."""
        if self.epoch_over == "videos":
            return np.stack([rng.permutation(len(self.ids)), np.zeros(len(self.ids), np.int64)], axis=1)
        videos = np.repeat(np.arange(len(self.ids)), self._visits)
        visit = np.arange(len(videos)) - np.repeat(self._visits.cumsum() - self._visits, self._visits)
        times = (visit + rng.random(len(self.ids))[videos]) / self._visits[videos]
        return np.stack([videos, visit], axis=1)[times.argsort(kind="stable")]

    def _draw(self, rng: np.random.Generator, epoch: int, video: int, visit: int) -> list[int]:
        """Which of its captions a video shows: the next ones of an order that is drawn anew every epoch."""
        first, count = visit * self.captions_per_video, len(self.captions[self.ids[video]])
        if self.epoch_over == "captions":
            rng = np.random.default_rng([self.seed, epoch, 0, video + 1])  # the same for all visits
        drawn: list[int] = rng.permutation(count)[first : first + self.captions_per_video].tolist()
        return drawn

    def _batch(self, drawn: dict[str, list[int]], rng: np.random.Generator) -> Batch:
        ids = list(drawn)
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


class ValidationSearch(Options):
    """How the captions are decoded by whose CIDEr epochs are compared."""

    width: int = Field(1, ge=1)
    """Hypotheses kept per video at each step; 1 is greedy decoding, the cheapest."""
    length_penalty: float = Field(0.0, ge=0)
    """Captions are ranked by log-probability / tokens**penalty; 0 ranks by the plain sum."""


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

    def sized(self, how: _Sized, captions_per_video: int, epoch_over: EpochOver) -> _Sized:
        """The options of a training on this, with numbers for what is left to the size of the data."""
        return how.sized(int(visits_of((len(self.captions[id]) for id in self.ids), captions_per_video, epoch_over).sum()))

    def batches(
        self,
        size: int,
        captions: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
        dropout: float = 0.0,
        epoch_over: EpochOver = "captions",
    ) -> CaptionBatches:
        """`size` videos with `captions` captions each; `dropout` of frames."""
        how = (self.ids, size, captions, seed, weights, None, dropout, epoch_over, self.for_gpu)
        return CaptionBatches(self.access, self.captions, self.references.caption_indices("train"), *how)

    def metadata(self, **options: Any) -> dict[str, Any]:
        """What the checkpoint says of a model that was trained on this."""
        extractors = {name: self.access.about[name]["key"] for name in self.access.names}
        trained_on = {"vocabulary": self.references.vocabulary.key, "sizes": self.access.sizes, "extractors": extractors}
        return {name: value.model_dump(mode="json") for name, value in options.items()} | trained_on

    def validation(
        self, captioner: Captioner, how: ValidationSearch, max_words: int, device: str
    ) -> Callable[[], tuple[float, dict[str, Any]]] | None:
        """Validation by the CIDEr of captions; None where no validation video has features. Of several processes that train
        together, each captions its shard of the videos; all must call it."""
        truth = {id: refs for id, refs in self.references.sentences("val").items() if self.access.usable([id])}
        vocabulary = self.references.vocabulary
        search = SearchOptions(width=how.width, length_penalty=how.length_penalty, max_length=max_words)

        def validate() -> tuple[float, dict[str, Any]]:
            ranks = Ranks()
            ids = ranks.shard(sorted(truth))
            ranked = rank_captions(captioner, self.access, vocabulary, ids, search, device, attention=False)
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
