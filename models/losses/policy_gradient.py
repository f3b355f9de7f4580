"""Policy gradient: captions are drawn from the captioner, and those that earn more than a baseline become likelier (GL-RG eq. 11,
GLD eq. 12).

The policy is what captions are drawn from: the captioner's distribution at `temperature`, over the words that a search may say.
Captions are drawn without gradients, in one pass for all samples of all videos; a second, teacher-forced pass then gives the
log-probability of every drawn word under that same policy. What a caption was not free to choose neither earns nor learns:
nothing behind its EOS, nor the EOS that closes a caption of full length. So one that had to be closed is rewarded as unfinished.

Both passes keep the captioner's mode, so dropout goes on regularising: few videos would be learnt by heart without it. Captions
drawn without dropout and learnt from with it ("gradient") come from another policy than the one that learns, which drifts unless
advantages balance: with SCST, whose are mostly negative, it unlearnt what it could. Only without any dropout ("none") are both
passes the same policy to the last digit, since each pass drops units of its own.

Chances come from torch's global generator, which training's snapshots hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from models.captioner import Captioner
from models.decoding.likelihood import chosen, sampled_batch
from models.decoding.search import greedy, sample
from models.rewards.baselines import (
    BaselineOptions,
    GreedyBaseline,
    SampleBaseline,
    SecondSampleBaseline,
    TruthBaseline,
    against_greedy,
    against_samples,
    against_second_sample,
    against_truth,
)
from models.types import BOS, EOS, PAD, UNK, Batch, Decoded

Dropout = Literal["gradient", "both", "none"]
_REFUSED = (PAD, BOS, UNK)  # a sample never says them, so they are no part of the policy
_NOTHING = 1e-6  # an advantage below this teaches nothing: rounding alone makes it


class Reward(Protocol):
    """samples (N, T) as w1 .. wn EOS PAD.., video_of (N,) the numbers of their videos -> what each sample earns (N,), or
    each of its words (N, T)."""

    def __call__(self, samples: Tensor, video_of: Tensor, /) -> Tensor: ...


class PolicyGradient:
    """(captioner, batch) -> -sum(advantage * log p(word)) / words, over the words that the samples were free to choose.

    numbers: video id -> the number by which the reward knows the video; truth (V,): for b1, the mean score of every such
    video's own captions. dropout: "both" draws captions and learns with it, as the papers' code does; "gradient" draws them
    without it; "none" neither draws nor learns with it, and then both passes are the same policy.
    `statistics` are those of the last batch; `signs_of_collapse` reads them."""

    def __init__(
        self,
        reward: Reward,
        numbers: Mapping[str, int],
        samples: int,
        max_length: int,
        baseline: BaselineOptions | None = None,
        truth: Tensor | None = None,
        temperature: float = 1.0,
        dropout: Dropout = "both",
    ):
        self.baseline = SampleBaseline() if baseline is None else baseline
        if isinstance(self.baseline, TruthBaseline) and truth is None:
            raise ValueError(
                "baseline b1 compares with the videos' own captions: their mean scores are wanted as 'truth'"
            )
        self.reward, self.numbers, self.truth = reward, numbers, truth
        self.samples, self.max_length, self.temperature, self.dropout = samples, max_length, temperature, dropout
        self.statistics: dict[str, float] = {}
        self._words = 0

    def count(self, batch: Batch) -> int:
        """The words that its last samples were free to choose."""
        return self._words

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        mine, second = self._draw(captioner, batch)
        said = mine.tokens.flatten(0, 1)
        videos = torch.tensor([self.numbers[id] for id in batch.video_ids], device=said.device)
        owner = torch.arange(len(videos), device=said.device).repeat_interleave(self.samples)
        rewards = self.reward(said, videos[owner])
        advantages = self._compare(rewards, captioner, batch, videos, owner, second)
        self.statistics = _statistics(said, mine.log_probs.flatten(), rewards, advantages)
        log_probs = self._forced(captioner, batch, mine)
        self._words = len(log_probs)
        each = advantages if advantages.ndim == 2 else advantages.unsqueeze(1).expand_as(said)
        return -(each[said != PAD] * log_probs).sum() / len(log_probs)

    def _draw(self, captioner: Captioner, batch: Batch) -> tuple[Decoded, Tensor]:
        """The samples of each video (B, n) as freely chosen, and the captions (N, L) that a second sample is compared with."""
        n = self.samples
        both = 2 * n if isinstance(self.baseline, SecondSampleBaseline) else n
        with nullcontext() if self.dropout == "both" else _in_eval_mode(captioner):
            found = sample(captioner, batch.features, batch.masks, self.max_length, both, self.temperature)
        tokens = freely_said(found.tokens)
        return Decoded(tokens[:, :n], found.log_probs[:, :n]), tokens[:, n:].flatten(0, 1)

    def _compare(
        self, rewards: Tensor, captioner: Captioner, batch: Batch, videos: Tensor, owner: Tensor, second: Tensor
    ) -> Tensor:
        """rewards (N,) or (N, L), videos (B,) and owner (N,) of the samples -> advantages, shaped like the rewards."""
        kind = self.baseline
        if isinstance(kind, GreedyBaseline):
            with _in_eval_mode(captioner):
                best = greedy(captioner, batch.features, batch.masks, self.max_length).tokens[:, 0]
            return against_greedy(rewards, self.reward(freely_said(best), videos), owner)
        if isinstance(kind, TruthBaseline):
            assert self.truth is not None
            return against_truth(rewards, self.truth.to(rewards)[videos], owner)
        if isinstance(kind, SampleBaseline):
            return against_samples(rewards, owner, kind.top, kind.leave_one_out)
        if isinstance(kind, SecondSampleBaseline):
            return against_second_sample(rewards, self.reward(second, videos[owner]))
        return rewards

    def _forced(self, captioner: Captioner, batch: Batch, mine: Decoded) -> Tensor:
        if self.dropout != "none":
            return policy_log_probs(captioner, batch, mine, self.temperature)
        # cuDNN does not learn through its RNNs in eval mode; torch's own code does.
        with _in_eval_mode(captioner), torch.backends.cudnn.flags(enabled=False):
            return policy_log_probs(captioner, batch, mine, self.temperature)


def freely_said(tokens: Tensor) -> Tensor:
    """Captions (..., L) of a search -> without the EOS that closes a caption of full length."""
    return tokens.masked_fill(~chosen(tokens), PAD)


def policy_log_probs(captioner: Captioner, batch: Batch, said: Decoded, temperature: float = 1.0) -> Tensor:
    """B videos and freely said captions (B, K, L) of them -> the policy's log-probability of each word, EOS included, (R,) in
    the order of the captions, with gradients. No step is taken behind the longest caption."""
    longest = int((said.tokens != PAD).any(0).any(0).sum())
    logits, words = captioner.word_logits(sampled_batch(batch, replace(said, tokens=said.tokens[..., :longest])))
    refused = torch.tensor(_REFUSED, device=logits.device)
    logits = logits.index_fill(1, refused, -torch.inf) / temperature
    return -nn.functional.cross_entropy(logits, words, reduction="none")


def signs_of_collapse(statistics: Mapping[str, float], samples: int) -> list[str]:
    """What in the statistics, of a batch or their means over an epoch, says that nothing more is learnt; empty if all is
    well. samples: captions drawn a video."""
    signs = []
    if statistics["entropy"] < 0.05:
        signs.append(f"the captioner hardly hesitates any more (entropy {statistics['entropy']:.3f} nats a word)")
    if statistics["unique"] * samples < 0.5:
        signs.append(
            f"it says the same of most videos ({100 * statistics['unique']:.1f} % of the samples are different)"
        )
    if statistics["zero_advantages"] > 0.95:
        signs.append(
            f"{100 * statistics['zero_advantages']:.0f} % of the samples earn just what they are compared with"
        )
    return signs


def _statistics(said: Tensor, log_probs: Tensor, rewards: Tensor, advantages: Tensor) -> dict[str, float]:
    """said (N, L), log_probs (N,), rewards and advantages (N,) or (N, L) of the samples -> plain figures.

    entropy is estimated by the samples themselves: -log p a word, of those captions that ended by themselves."""
    if rewards.ndim == 2:
        rewards, advantages = rewards[said != PAD], advantages[said != PAD]
    words = (said != PAD).sum(1)
    ended = (said == EOS).any(1)
    ended |= ~ended.any()  # where none did, all count
    figures = {
        "reward": rewards.mean(),
        "reward_std": rewards.std(correction=0),
        "baseline": (rewards - advantages).mean(),
        "zero_advantages": (advantages.abs() < _NOTHING).float().mean(),
        "entropy": -log_probs[ended].sum() / words[ended].sum(),
        "length": (words - (said == EOS).sum(1)).float().mean(),
    }
    values = torch.stack(list(figures.values())).tolist()  # all at once: a GPU is waited for once
    distinct = len(set(map(tuple, said.tolist())))
    return {**dict(zip(figures, values, strict=True)), "unique": distinct / len(said)}


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, no part of the model is in training mode; afterwards each is as before. Random numbers stay drawn."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
