"""Policy gradient: sampled captions with more reward than a baseline become likelier (GL-RG eq. 11, GLD eq. 12).

The policy is the captioner's distribution at `temperature`, over the tokens that sampling allows. Captions are sampled without
gradients; a second, teacher-forced pass gives the log-probability of every token under the same policy. Tokens that were not
chosen have neither reward nor gradient: PAD, and the EOS that closes a caption of full length, which is rewarded as unfinished.

Both passes keep the captioner's mode, so dropout goes on regularising: with few videos the captioner would overfit without it.
Captions sampled without dropout and trained on with it ("gradient") come from another policy than the one that is trained,
which drifts unless advantages balance: with SCST, whose advantages are mostly negative, it degraded. Only without any
dropout ("none") are both passes the same policy to the last digit, since each pass drops units of its own.

Rewards are scored on the CPU in a thread of their own, while the second pass runs; they take no part in it, so its bits do not
depend on that. Random numbers come from torch's global generator, whose state is in training's snapshots."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from models.captioner import Captioner
from models.decoding.greedy_and_sampling import greedy, sample
from models.losses.token_likelihood import token_log_likelihood
from models.rewards import baselines
from models.rewards.baselines import BaselineOptions, SampleBaseline, SecondSampleBaseline, TruthBaseline
from models.training.loop import eval_mode
from models.types import BOS, EOS, PAD, UNK, Batch, Decoded

Dropout = Literal["gradient", "both", "none"]
_NOT_ALLOWED = (PAD, BOS, UNK)  # never sampled, so no part of the policy
_ROUNDING = 1e-6  # an advantage below this is rounding


class Reward(Protocol):
    """samples (N, T) as w1 .. wn EOS PAD.., video_of (N,) the indices of their videos -> rewards (N,), or of tokens (N, T)."""

    def __call__(self, samples: Tensor, video_of: Tensor, /) -> Tensor: ...


class PolicyGradient:
    """(captioner, batch) -> -sum(advantage * log p(token)) / tokens, over the tokens that the samples chose.

    video_indices: video id -> the reward's index of the video; truth (V,): for b1, the mean score of the captions of each
    of these videos. dropout: "both" samples captions and trains with it, as the papers' code does; "gradient" samples
    without it; "none" neither samples nor trains with it, and then both passes are the same policy.
    `statistics` are those of the last batch, `sampled` is that batch with the captions drawn for it; `signs_of_collapse` reads
    the former."""

    def __init__(
        self,
        reward: Reward,
        video_indices: Mapping[str, int],
        samples: int,
        max_length: int,
        baseline: BaselineOptions | None = None,
        truth: Tensor | None = None,
        temperature: float = 1.0,
        dropout: Dropout = "both",
    ):
        self.baseline = SampleBaseline() if baseline is None else baseline
        if isinstance(self.baseline, TruthBaseline) and truth is None:
            raise ValueError("baseline b1 compares with the videos' own captions: give their mean scores as 'truth'")
        self.reward, self.video_indices, self.truth = reward, video_indices, truth
        self.samples, self.max_length, self.temperature, self.dropout = samples, max_length, temperature, dropout
        self.statistics: dict[str, float] = {}
        self.sampled: Batch | None = None
        self._count = 0

    def count(self, batch: Batch) -> int:
        """The tokens that its last samples chose."""
        return self._count

    def __call__(self, captioner: Captioner, batch: Batch) -> Tensor:
        tokens, on_cpu, compared = self._sample(captioner, batch)
        scoring = _scoring_thread(torch.get_num_threads()).submit(self._advantages, batch.video_ids, on_cpu, compared)
        longest = int((on_cpu.tokens != PAD).any(0).any(0).sum())  # no step is taken beyond the longest caption
        self.sampled = sampled_batch(batch, tokens[..., :longest], on_cpu.tokens[..., :longest])
        try:
            with self.gradient_mode(captioner):
                log_probs = policy_log_probs(captioner, self.sampled, self.temperature)
        finally:
            advantages, self.statistics = scoring.result()
        self._count = len(log_probs)
        return -(advantages.to(log_probs.device, non_blocking=True) * log_probs).sum() / len(log_probs)

    def _sample(self, captioner: Captioner, batch: Batch) -> tuple[Tensor, Decoded, Tensor]:
        """The chosen tokens (B, n, L) of each video's samples; the samples on the CPU; and the captions (M, L), on the CPU, whose
        rewards are the baseline: none, those of second samples, or the greedy ones."""
        n, baseline = self.samples, self.baseline
        both = 2 * n if isinstance(baseline, SecondSampleBaseline) else n
        with nullcontext() if self.dropout == "both" else eval_mode(captioner):
            decoded = sample(captioner, batch.features, batch.masks, self.max_length, both, self.temperature)
        tokens = chosen_tokens(decoded.tokens)
        host, log_probs = tokens.cpu(), decoded.log_probs[:, :n].cpu()
        compared = host[:, n:].flatten(0, 1)
        if isinstance(baseline, baselines.GreedyBaseline):
            with eval_mode(captioner):
                compared = chosen_tokens(greedy(captioner, batch.features, batch.masks, self.max_length).tokens[:, 0]).cpu()
        return tokens[:, :n], Decoded(host[:, :n], log_probs), compared

    def _advantages(self, video_ids: Sequence[str], sampled: Decoded, compared: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Samples of B videos on the CPU -> the advantage of each of their R tokens, and the statistics of the batch."""
        tokens, baseline = sampled.tokens.flatten(0, 1), self.baseline
        videos = torch.tensor([self.video_indices[id] for id in video_ids])
        video_index = torch.arange(len(videos)).repeat_interleave(self.samples)
        rewards = self.reward(tokens, videos[video_index])
        advantages = rewards
        if isinstance(baseline, baselines.GreedyBaseline):
            advantages = baselines.against_second_sample(rewards, self.reward(compared, videos)[video_index])
        elif isinstance(baseline, TruthBaseline):
            assert self.truth is not None
            advantages = baselines.against_truth(rewards, self.truth.to(rewards)[videos], video_index)
        elif isinstance(baseline, SampleBaseline):
            advantages = baselines.against_samples(rewards, video_index, baseline.top, baseline.leave_one_out)
        elif isinstance(baseline, SecondSampleBaseline):
            advantages = baselines.against_second_sample(rewards, self.reward(compared, videos[video_index]))
        statistics = _statistics(tokens, sampled.log_probs.flatten(), rewards, advantages)
        each = advantages if advantages.ndim == 2 else advantages.unsqueeze(1).expand_as(tokens)
        return each[tokens != PAD], statistics

    @contextmanager
    def gradient_mode(self, captioner: Captioner) -> Iterator[None]:
        """Inside, the captioner is as it is in the pass that gradients come from."""
        if self.dropout != "none":
            yield
        else:  # cuDNN's RNNs have no backward pass in eval mode; torch's own code has one.
            with eval_mode(captioner), torch.backends.cudnn.flags(enabled=False):
                yield


@cache
def _scoring_thread(threads: int) -> ThreadPoolExecutor:
    """The thread in which rewards are scored beside the teacher-forced pass, with as many threads of torch as its caller has, and
    without its caller's autocast: rewards are compared, so they are computed in float32."""
    return ThreadPoolExecutor(1, "rewards", lambda: torch.set_num_threads(threads))


def chosen_tokens(tokens: Tensor) -> Tensor:
    """Decoded tokens (..., L) -> the same, without the EOS that closes a caption of full length: it was not chosen."""
    return nn.functional.pad(tokens[..., :-1], (0, 1), value=PAD)  # the last position is EOS or PAD


def sampled_batch(batch: Batch, tokens: Tensor, host_tokens: Tensor | None = None) -> Batch:
    """The batch of B videos with the captions (B, K, L) sampled for them: tokens (B*K, L+1), BOS first. host_tokens: the same on
    the CPU, if they are there already."""
    B, K, L = tokens.shape
    both = tokens, tokens.cpu() if host_tokens is None else host_tokens
    captions, host = (nn.functional.pad(x.reshape(B * K, L), (1, 0), value=BOS) for x in both)
    video_index = torch.arange(B, device=tokens.device).repeat_interleave(K)
    return replace(batch, tokens=captions, video_index=video_index, caption_ids=(), weights=None, host_tokens=host)


def policy_log_probs(captioner: Captioner, sampled: Batch, temperature: float = 1.0) -> Tensor:
    """Videos with captions of chosen tokens -> the policy's log-probability of each token, EOS included, (R,) in the order of
    the captions, with gradients."""
    logits, targets = captioner.word_logits(sampled)
    return token_log_likelihood(logits, targets, temperature=temperature, excluded=_NOT_ALLOWED)


def signs_of_collapse(statistics: Mapping[str, float], samples: int) -> list[str]:
    """Signs in a batch's statistics, or an epoch's means, that nothing more is learnt. samples: captions sampled per video."""
    entropy, unique, zero = (statistics[name] for name in ("entropy", "unique", "zero_advantages"))
    signs = []
    if entropy < 0.05:
        signs.append(f"the captioner hardly hesitates any more (entropy {entropy:.3f} nats per word)")
    if unique * samples < 0.5:
        signs.append(f"it says the same of most videos ({100 * unique:.1f} % of the samples are different)")
    if zero > 0.95:
        signs.append(f"{100 * zero:.0f} % of the samples earn just what they are compared with")
    return signs


def _statistics(tokens: Tensor, log_probs: Tensor, rewards: Tensor, advantages: Tensor) -> dict[str, float]:
    """tokens (N, L), log_probs (N,), rewards and advantages (N,) or (N, L) of the samples -> metrics.

    entropy is estimated from the samples: -log p per token, of the captions that ended by themselves."""
    if rewards.ndim == 2:
        rewards, advantages = rewards[tokens != PAD], advantages[tokens != PAD]
    lengths = (tokens != PAD).sum(1)
    ended = (tokens == EOS).any(1)
    ended |= ~ended.any()  # where none did, all count
    metrics = {
        "reward": rewards.mean(),
        "reward_std": rewards.std(correction=0),
        "baseline": (rewards - advantages).mean(),
        "zero_advantages": (advantages.abs() < _ROUNDING).float().mean(),
        "entropy": -log_probs[ended].sum() / lengths[ended].sum(),
        "length": (lengths - (tokens == EOS).sum(1)).float().mean(),
    }
    values = torch.stack(list(metrics.values())).tolist()
    distinct = len(set(map(tuple, tokens.tolist())))
    return {**dict(zip(metrics, values, strict=True)), "unique": distinct / len(tokens)}
