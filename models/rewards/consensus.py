"""The sentence-level reward of sampled captions: a mixture of CIDEr-D, BLEU-4 and ROUGE-L against the video's references.

Samples stop at EOS: nothing after it is scored. Whether EOS itself counts as a word is decided by the references of the index;
`eos` must say the same of the samples, so that it counts on both sides or on neither."""

from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from models.metrics.leave_one_out import SCORES
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import Sentences
from models.options import Options
from models.types import EOS, PAD


class ConsensusOptions(Options):
    """How much each score counts in the reward."""

    cider_d: float = Field(1.0, ge=0)
    """Weight of CIDEr-D, which is from 0 to 10."""
    bleu_4: float = Field(0.0, ge=0)
    """Weight of BLEU-4, which is from 0 to 1."""
    rouge_l: float = Field(0.0, ge=0)
    """Weight of ROUGE-L, which is from 0 to 1."""

    @model_validator(mode="after")
    def _something_counts(self) -> Self:
        if not self.weights:
            raise ValueError("a reward of nothing teaches nothing; give cider_d, bleu_4 or rouge_l a weight above 0")
        return self

    @property
    def weights(self) -> dict[str, float]:
        """score -> weight, of those that count"""
        return {score: weight for score in SCORES if (weight := getattr(self, score)) > 0}


def as_sentences(samples: Tensor, eos: bool) -> Sentences:
    """samples (N, T) as w1 .. wn EOS PAD.. -> N sentences, up to EOS or PAD; EOS is their last word where it counts."""
    rows = samples.detach().cpu().numpy()
    if rows.ndim != 2:
        raise ValueError(f"samples must be (N, T) token ids, not {tuple(samples.shape)}")
    ended = np.logical_or.accumulate((rows == EOS) | (rows == PAD), axis=1)
    lengths = rows.shape[1] - ended.sum(1)
    if eos:
        finished = np.flatnonzero(lengths < rows.shape[1])
        lengths[finished] += rows[finished, lengths[finished]] == EOS
    return Sentences.from_rows(rows, lengths)


class Consensus:
    """samples (N, T), video_of (N,): the index of each sample's video -> rewards (N,)."""

    def __init__(self, index: NgramIndex, options: ConsensusOptions | None = None, eos: bool = True):
        self.index, self.options, self.eos = index, options or ConsensusOptions(), eos

    def __call__(self, samples: Tensor, video_of: Tensor) -> Tensor:
        rewards = self.score(as_sentences(samples, self.eos), video_of.cpu().numpy())
        return torch.from_numpy(rewards).to(samples.device, torch.float32)

    def score(self, captions: Sentences, video_of: NDArray[np.int64]) -> NDArray[np.float64]:
        """N captions as token ids, the video (N,) of each -> rewards (N,)."""
        return self.mix({score: SCORES[score](self.index, captions, video_of) for score in self.options.weights})

    def mix(self, scores: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Scores (N,) by name -> the mixture (N,): of samples here, of ground-truth captions where b1 wants theirs."""
        weights = self.options.weights
        return np.sum([weight * scores[score] for score, weight in weights.items()], axis=0)
