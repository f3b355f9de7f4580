"""Baselines of the policy gradient: a sample's reward minus its baseline is its advantage.

A baseline has one row of rewards for each sample, (N,) for sentence-level rewards, (N, T) for word-level ones, which are
compared position by position. After its end a sentence has its sentence-level reward, so a longer sample's last words are
compared with that; sentences of different width must be padded alike."""

from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from models.options import Options


class NoBaseline(Options):
    """The bare reward: never negative, so nothing is ever suppressed (GL-RG, Table 5)."""

    kind: Literal["none"] = "none"


class GreedyBaseline(Options):
    """SCST: the reward of the caption that greedy decoding gives in eval mode."""

    kind: Literal["scst"] = "scst"


class TruthBaseline(Options):
    """GL-RG's b1: the mean score of the video's ground-truth captions, each against the others."""

    kind: Literal["b1"] = "b1"


class SampleBaseline(Options):
    """GL-RG's b2: the mean reward of the best of the video's own samples."""

    kind: Literal["b2"] = "b2"
    top: int | None = Field(None, ge=1)
    """How many of the best samples count (Q of the paper); all by default."""
    leave_one_out: bool = False
    """Whether a sample is compared with the others alone, which leaves the gradient unbiased."""


class SecondSampleBaseline(Options):
    """GLD: the reward of a second caption sampled for the same video."""

    kind: Literal["second_sample"] = "second_sample"


BaselineOptions = Annotated[
    NoBaseline | GreedyBaseline | TruthBaseline | SampleBaseline | SecondSampleBaseline, Field(discriminator="kind")
]


def against_truth(rewards: Tensor, truth: Tensor, video_index: Tensor) -> Tensor:
    """rewards (N,) or (N, T), truth (B,) means of the batch's videos (`truth_means`), video_index (N,) the samples' rows."""
    baseline = truth[video_index]
    return rewards - (baseline if rewards.ndim == 1 else baseline[:, None])


def against_samples(rewards: Tensor, video_index: Tensor, top: int | None = None, leave_one_out: bool = False) -> Tensor:
    """rewards (N,), or (N, T) whose best are chosen at every position; video_index (N,): equal for samples of one video."""
    baseline = torch.empty_like(rewards)
    for video in video_index.unique():
        rows = (video_index == video).nonzero().squeeze(1)
        baseline[rows] = _best_mean(rewards[rows], top, leave_one_out)
    return rewards - baseline


def against_second_sample(rewards: Tensor, second: Tensor) -> Tensor:
    """rewards and those of the second samples, or of the greedy captions of the same videos: both (N,) or both (N, T)."""
    if rewards.shape != second.shape:
        shapes = f"rewards {tuple(rewards.shape)} cannot be compared with a baseline {tuple(second.shape)}"
        raise ValueError(f"{shapes}; pad the samples of both to one width before they are scored")
    return rewards - second


def _best_mean(rewards: Tensor, top: int | None, leave_one_out: bool) -> Tensor:
    """The S samples of one video, (S, ...) -> the baseline of each, (S, ...)."""
    count = len(rewards)
    if not leave_one_out:
        best = rewards.sort(0, descending=True).values[: top or count]
        return best.mean(0, keepdim=True).expand_as(rewards)
    if count < 2:
        raise ValueError("a baseline that leaves the sample out needs two samples per video; sample more captions")
    own = torch.arange(count, device=rewards.device)
    others = rewards.unsqueeze(0).repeat(count, *(1 for _ in rewards.shape))
    others[own, own] = -torch.inf  # sorts last, and so never counts
    return others.sort(1, descending=True).values[:, : min(top or count, count - 1)].mean(1)


def truth_means(weights: NDArray[np.float64], videos: NDArray[np.int64]) -> NDArray[np.float64]:
    """Caption weights (C,), videos (V + 1,) as in VideoCaptions -> their mean by video (V,): b1's baselines."""
    return np.add.reduceat(weights, videos[:-1]) / np.diff(videos)
