"""Video to words over stored features (GL-RG eq. 1): pooled rows of any number of features -> dense layers -> K probabilities.

The authors publish no encoder; this is the light multi-label net that they name for W."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from models.captioner import wanted_sizes
from models.layers.attention import masked_softmax, weighted_sum
from models.layers.temporal_encoder import as_rows, check_present, masked_mean, zero_invalid
from models.options import Options


class VideoToWordsOptions(Options):
    """The net that predicts a video's words from its features."""

    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads: frames, clips, or any others."""
    words: int = Field(300, ge=1)
    """How many words (K) it knows: the most frequent content words of the training captions."""
    pooling: Literal["mean", "attention"] = "mean"
    """How the rows of a feature become one vector: their mean, or a mean whose weights are learnt."""
    hidden: int = Field(512, ge=1)
    """Size of both hidden layers."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of each hidden layer that is dropped in training."""


@dataclass(frozen=True)
class WordBatch:
    """B videos: features name -> (B, T, D), masks name -> (B, T); targets (B, K) from 0 to 1."""

    video_ids: tuple[str, ...]
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    targets: Tensor

    def to(self, device: str) -> WordBatch:
        features = {name: x.to(device) for name, x in self.features.items()}
        masks = {name: x.to(device) for name, x in self.masks.items()}
        return replace(self, features=features, masks=masks, targets=self.targets.to(device))


class VideoToWords(nn.Module):
    """Features (B, T, D_i) or (B, T, S, D_i) -> logits of K words (B, K). A feature that a video lacks counts as zeros."""

    def __init__(self, options: VideoToWordsOptions, sizes: Mapping[str, int]):
        super().__init__()
        self.options = options
        wanted = wanted_sizes(options.features, sizes, "net for words")
        by_attention = options.pooling == "attention"
        self.relevance = nn.ModuleDict({name: nn.Linear(size, 1) for name, size in wanted.items()} if by_attention else {})
        layers: list[nn.Module] = []
        for before in (sum(wanted.values()), options.hidden):
            layers += [nn.Linear(before, options.hidden), nn.ReLU(), nn.Dropout(options.dropout)]
        self.dense = nn.Sequential(*layers, nn.Linear(options.hidden, options.words))

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Tensor:
        names = self.options.features
        check_present(names, features, masks)
        logits: Tensor = self.dense(torch.cat([self._pooled(name, features[name], masks[name]) for name in names], dim=1))
        return logits

    def _pooled(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D) or (B, T, S, D) -> (B, D)."""
        rows, valid = as_rows(x, mask)
        rows = zero_invalid(rows, valid)
        if self.options.pooling == "mean":
            return masked_mean(rows, valid)
        return weighted_sum(masked_softmax(self.relevance[name](rows).squeeze(-1), valid), rows)


class WordLoss:
    """(net, batch) -> binary cross-entropy of each word against its target, averaged."""

    def __call__(self, net: VideoToWords, batch: WordBatch) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(net(batch.features, batch.masks), batch.targets)


def mean_average_precision(scores: Tensor, truth: Tensor) -> float:
    """scores (N, K) and truth (N, K), True where a video has the word -> the mean of the words' average precisions (mAP) over the
    words that some video has; 0 if none has. Of equal scores the first video ranks first."""
    order = scores.argsort(dim=0, descending=True, stable=True)
    found = truth.gather(0, order).double()
    ranks = torch.arange(1, len(found) + 1, dtype=found.dtype, device=found.device).unsqueeze(1)
    precision = found.cumsum(0) / ranks
    positives = found.sum(0)
    average = (precision * found).sum(0)[positives > 0] / positives[positives > 0]
    return float(average.mean()) if len(average) else 0.0
