"""The policy gradient against all captions that a toy can say, and what must not enter it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.captioner import Captioner
from models.captioners.gld import ShowTellOptions, TopDownOptions
from models.captioners.glrg import GlRgOptions
from models.captioners.lstm import SaLstmOptions
from models.captioners.recnet.captioner import RecNetOptions
from models.captioners.s2vt import S2vtOptions
from models.captioners.vre.captioner import VreOptions
from models.decoding.greedy_and_sampling import greedy, sample
from models.losses.policy_gradient import PolicyGradient, chosen_tokens, policy_log_probs, sampled_batch, signs_of_collapse
from models.metrics.ngrams import NgramIndex
from models.rewards.baselines import (
    BaselineOptions,
    GreedyBaseline,
    NoBaseline,
    SampleBaseline,
    SecondSampleBaseline,
    TruthBaseline,
    against_samples,
    against_second_sample,
)
from models.rewards.consensus import Consensus
from models.rewards.local_discriminative import LocalDiscriminative, LocalOptions
from models.types import EOS, PAD, Batch, Decoded
from models.zoo import build_captioner
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch, toy_captioner

SMALL = 7  # three words beside the special tokens
WORDS = range(4, SMALL)
# Everything that can be said in at most two words: nothing, one word, two words and the EOS that closes them.
ALL = torch.tensor([[EOS, PAD, PAD], *([a, EOS, PAD] for a in WORDS), *([a, b, EOS] for a, b in product(WORDS, WORDS))])
NUMBERS = {"v0": 2, "v1": 0, "v2": 3, "v3": 1}


def worth(samples: Tensor, video_of: Tensor) -> Tensor:
    """Some reward that tells all captions and videos apart."""
    places = torch.tensor([1.0, 0.37, 0.0])
    return torch.sin(samples[:, :3] * (1.7 + video_of.unsqueeze(1))).mul(places).sum(1) + 1


def gradient(captioner: Captioner, scalar: Tensor) -> Tensor:
    captioner.zero_grad()
    scalar.backward()
    return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in captioner.parameters()])


def probabilities(captioner: Captioner, batch: Batch, temperature: float = 1.0) -> Tensor:
    """p of each caption of ALL for the batch's only video, step by step with the decoder, with gradients."""
    memory = captioner.encode(batch.features, batch.masks)

    def next_words(state: tuple[Tensor, ...], token: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits, state, _ = captioner.decoder.step(torch.tensor([token]), state, memory)
        return torch.softmax(logits[0, [EOS, *WORDS]] / temperature, -1), state

    first, state = next_words(captioner.decoder.start(memory), 1)
    found = [first[0]]
    seconds = [first[1 + n] * next_words(state, word)[0] for n, word in enumerate(WORDS)]
    found += [second[0] for second in seconds]
    found += [second[1 + n] for second in seconds for n in range(len(WORDS))]
    return torch.stack(found)


def summed(captioner: Captioner, batch: Batch, said: Tensor, temperature: float = 1.0) -> Tensor:
    """log p (N,) of captions (N, L) of one video, from the words that they were free to choose."""
    free = chosen_tokens(said) != PAD
    told = Decoded(chosen_tokens(said).unsqueeze(0), torch.zeros(1, len(said)))
    return (
        torch.zeros(free.shape)
        .masked_scatter(free, policy_log_probs(captioner, sampled_batch(batch, told.tokens), temperature))
        .sum(1)
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_over_all_captions_it_is_the_gradient_of_the_expected_reward(temperature: float) -> None:
    captioner, batch = toy_captioner(vocabulary=SMALL), toy_batch(videos=1)
    rewards = worth(ALL, torch.full((len(ALL),), NUMBERS["v0"]))
    p = probabilities(captioner, batch, temperature)
    assert p.sum().item() == pytest.approx(1)
    expected = gradient(captioner, (p * rewards).sum())
    assert expected.norm() > 0.05
    log_p = summed(captioner, batch, ALL, temperature)
    assert torch.allclose(log_p.exp(), p, atol=1e-6)
    assert torch.allclose(gradient(captioner, (p.detach() * rewards * log_p).sum()), expected, atol=1e-5)
    p = p.detach()
    for baseline in (0.8, 5.0):  # whatever does not depend on the sample: greedy, b1
        log_p = summed(captioner, batch, ALL, temperature)
        found = gradient(captioner, (p * (rewards - baseline) * log_p).sum())
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("compare", "scale"),
    [
        (lambda both: against_samples(both, torch.zeros(2), leave_one_out=True), 1.0),
        (lambda both: against_samples(both, torch.zeros(2)), 0.5),  # the sample itself is half of what it is compared with
        (lambda both: against_second_sample(both, both.flip(0)), 1.0),
    ],
)
def test_over_all_pairs_of_captions_the_other_sample_changes_nothing_but_the_scale(
    compare: Callable[[Tensor], Tensor], scale: float
) -> None:
    captioner, batch = toy_captioner(vocabulary=SMALL), toy_batch(videos=1)
    rewards = worth(ALL, torch.full((len(ALL),), NUMBERS["v0"]))
    expected = gradient(captioner, (probabilities(captioner, batch) * rewards).sum())
    p, log_p = probabilities(captioner, batch).detach(), summed(captioner, batch, ALL)
    total = torch.zeros(())
    for a, b in product(range(len(ALL)), repeat=2):
        advantages = compare(rewards[[a, b]])
        total = total + p[a] * p[b] * (advantages * log_p[[a, b]]).mean()
    assert torch.allclose(gradient(captioner, total), scale * expected, atol=1e-5)


def test_many_samples_come_close_to_the_expected_gradient() -> None:
    captioner, batch = toy_captioner(vocabulary=SMALL), toy_batch(videos=1)
    rewards = worth(ALL, torch.full((len(ALL),), NUMBERS["v0"]))
    p = probabilities(captioner, batch)
    expected = gradient(captioner, (p * rewards).sum())
    free = (p.detach() * (chosen_tokens(ALL) != PAD).sum(1)).sum()
    torch.manual_seed(0)
    loss = PolicyGradient(worth, NUMBERS, samples=6000, max_length=2)
    found = -gradient(captioner, loss(captioner, batch)) * free
    assert (found - expected).norm() < 0.1 * expected.norm()
    assert loss.statistics["reward"] == pytest.approx((p * rewards).sum().item(), abs=0.03)
    assert loss.statistics["baseline"] == pytest.approx(loss.statistics["reward"], abs=1e-5)


BASELINES = [
    NoBaseline(),
    GreedyBaseline(),
    TruthBaseline(),
    SampleBaseline(),
    SampleBaseline(top=2),
    SampleBaseline(top=1, leave_one_out=True),
    SecondSampleBaseline(),
]


def by_hand(captioner: Captioner, batch: Batch, baseline: BaselineOptions, truth: list[float]) -> Tensor:
    """-sum(advantage * log p) / words, sample by sample and word by word."""
    B, n, longest = len(batch.video_ids), 3, 4
    found = sample(captioner, batch.features, batch.masks, longest, 2 * n if baseline.kind == "second_sample" else n)
    best = greedy(captioner, batch.features, batch.masks, longest)
    total, words = torch.zeros(()), 0
    for video in range(B):
        features = {name: rows[[video]] for name, rows in batch.features.items()}
        masks = {name: rows[[video]] for name, rows in batch.masks.items()}
        memory = captioner.encode(features, masks)
        number = NUMBERS[batch.video_ids[video]]
        earned = worth(found.tokens[video], torch.full((found.tokens.shape[1],), number)).tolist()
        for k in range(n):
            others = [earned[j] for j in range(n) if j != k]
            compared = {
                "none": 0.0,
                "scst": worth(best.tokens[video], torch.tensor([number])).item(),
                "b1": truth[number],
                "second_sample": earned[n + k] if baseline.kind == "second_sample" else 0.0,
                "b2": np.mean(earned),
            }[baseline.kind]
            if isinstance(baseline, SampleBaseline) and baseline.top == 2:
                compared = np.mean(sorted(earned)[-2:])
            elif isinstance(baseline, SampleBaseline) and baseline.leave_one_out:
                compared = max(others)
            state, token = captioner.decoder.start(memory), torch.tensor([1])
            for said in found.tokens[video, k, :longest].tolist():  # the place behind the last word is forced
                logits, state, _ = captioner.decoder.step(token, state, memory)
                allowed = [EOS, *range(4, logits.shape[1])]
                log_p = torch.log_softmax(logits[0, allowed], -1)[allowed.index(said)]
                total, words = total - (earned[k] - compared) * log_p, words + 1
                if said == EOS:
                    break
                token = torch.tensor([said])
    return total / words


@pytest.mark.parametrize("baseline", BASELINES, ids=str)
def test_it_equals_a_loop_over_samples_and_words_with_every_baseline(baseline: BaselineOptions) -> None:
    captioner, batch = toy_captioner(), toy_batch()
    truth = [0.1, 0.2, 0.3, 0.4]
    torch.manual_seed(3)
    expected = by_hand(captioner, batch, baseline, truth)
    expected_gradient = gradient(captioner, expected)
    torch.manual_seed(3)
    loss = PolicyGradient(worth, NUMBERS, 3, 4, baseline, torch.tensor(truth))(captioner, batch)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    assert torch.allclose(gradient(captioner, loss), expected_gradient, atol=1e-5)


def test_words_that_earn_differently_are_weighed_one_by_one() -> None:
    captioner, batch = toy_captioner(), toy_batch()

    def by_place(samples: Tensor, video_of: Tensor) -> Tensor:
        return torch.arange(1.0, samples.shape[1] + 1).expand(samples.shape)

    torch.manual_seed(1)
    loss = PolicyGradient(by_place, NUMBERS, 2, 4, NoBaseline())(captioner, batch)
    torch.manual_seed(1)
    found = sample(captioner, batch.features, batch.masks, 4, 2)
    words = policy_log_probs(captioner, sampled_batch(batch, chosen_tokens(found.tokens)))
    places = torch.arange(1.0, 6.0).expand(found.tokens.shape)[(chosen_tokens(found.tokens) != PAD)]
    assert loss.item() == pytest.approx((-(places * words).sum() / len(words)).item(), rel=1e-6)


def test_what_stands_behind_eos_and_the_forced_eos_earn_and_teach_nothing() -> None:
    captioner, batch = toy_captioner(vocabulary=SMALL), toy_batch(videos=1)
    seen: list[Tensor] = []

    def remember(samples: Tensor, video_of: Tensor) -> Tensor:
        seen.append(samples)
        return worth(samples, video_of)

    for baseline in (GreedyBaseline(), SecondSampleBaseline()):
        PolicyGradient(remember, NUMBERS, 20, 2, baseline)(captioner, batch)
    assert all((samples[:, 2] == PAD).all() for samples in seen), "a caption of full length is rewarded as unfinished"
    assert [len(samples) for samples in seen] == [20, 1, 20, 20]
    assert any(EOS in samples for samples in seen)

    def only_the_last_place(samples: Tensor, video_of: Tensor) -> Tensor:
        return torch.zeros(samples.shape).index_fill(1, torch.tensor(samples.shape[1] - 1), 1.0)

    loss = PolicyGradient(only_the_last_place, NUMBERS, 8, 2, NoBaseline())
    torch.manual_seed(0)
    assert not gradient(captioner, loss(captioner, batch)).any()

    def behind_the_end(samples: Tensor, video_of: Tensor) -> Tensor:
        return (samples == PAD).float() * 1e6

    loss = PolicyGradient(behind_the_end, NUMBERS, 8, 2, NoBaseline())
    assert not gradient(captioner, loss(captioner, batch)).any()


@pytest.mark.parametrize("dropout", ["gradient", "both", "none"])
def test_modes_are_put_back_and_only_sampling_and_dropout_draw_chances(dropout: str) -> None:
    captioner, batch = toy_captioner(dropout=0.5).train(), toy_batch()
    captioner.encoder.eval()  # type: ignore[attr-defined]
    modes = [module.training for module in captioner.modules()]
    seen: list[Tensor] = []

    def remember(samples: Tensor, video_of: Tensor) -> Tensor:
        seen.append(samples)
        return worth(samples, video_of)

    loss = PolicyGradient(remember, NUMBERS, 2, 4, GreedyBaseline(), dropout=dropout)  # type: ignore[arg-type]
    torch.manual_seed(5)
    first = loss(captioner, batch)
    assert [module.training for module in captioner.modules()] == modes
    if dropout == "none":  # then the chances of the samples are all that is drawn
        after = torch.get_rng_state()
        torch.manual_seed(5)
        torch.rand(4 * 2, 5)
        assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(5)
    assert torch.equal(loss(captioner, batch), first), "the global generator decides everything"
    plain = toy_captioner(dropout=0.0)
    torch.manual_seed(5)
    drawn = sample(plain, batch.features, batch.masks, 4, 2).tokens.flatten(0, 1)
    assert torch.equal(seen[0], chosen_tokens(drawn)) == (dropout != "both")
    best = greedy(plain, batch.features, batch.masks, 4).tokens[:, 0]
    assert torch.equal(seen[1], chosen_tokens(best)), "greedy is in eval mode"


def test_two_steps_draw_different_samples_without_dropout() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    seen: list[Tensor] = []

    def remember(samples: Tensor, video_of: Tensor) -> Tensor:
        seen.append(samples)
        return worth(samples, video_of)

    loss = PolicyGradient(remember, NUMBERS, 4, 4)
    loss(captioner, batch)
    loss(captioner, batch)
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("baseline", [NoBaseline(), GreedyBaseline()], ids=str)
def test_gradients_flow_under_autocast_too(baseline: BaselineOptions) -> None:
    captioner, batch = toy_captioner().train(), toy_batch()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = PolicyGradient(worth, NUMBERS, 4, 4, baseline)(captioner, batch)
    assert gradient(captioner, loss).norm() > 0.01
    assert all(p.grad is not None for p in captioner.parameters())


TOY: dict[str, Any] = {"features": ("rgb", "motion"), "hidden": 8, "embedding": 5}
KINDS: list[Any] = [
    SaLstmOptions(attention=7, **TOY),
    S2vtOptions(**TOY),
    RecNetOptions(base=SaLstmOptions(attention=7, **TOY), attention=7),
    GlRgOptions(features=("rgb", "motion"), projection=6, hidden=8, embedding=5),
    VreOptions(temporal="rgb", hidden=8),
    ShowTellOptions(**TOY),
    TopDownOptions(attention=7, **TOY),
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: options.kind)
def test_every_captioner_learns_from_what_it_earns(options: Any) -> None:
    torch.manual_seed(0)
    captioner, batch = build_captioner(options, SIZES, VOCABULARY).train(), toy_batch()

    def likes_fives(samples: Tensor, video_of: Tensor) -> Tensor:
        return (samples == 5).sum(1) / (samples != PAD).sum(1)

    loss = PolicyGradient(likes_fives, NUMBERS, 8, 4)
    optimiser = torch.optim.Adam(captioner.parameters(), 0.02)
    earned = []
    for _ in range(40):
        optimiser.zero_grad()
        loss(captioner, batch).backward()
        optimiser.step()
        earned.append(loss.statistics["reward"])
    assert np.mean(earned[-5:]) > 2 * np.mean(earned[:5])


REFERENCES = [[[4, 5, 6, EOS], [4, 5, EOS]], [[7, 8, EOS]], [[9, 10, 7, EOS]], [[6, 6, EOS]]]


def test_two_batches_give_different_word_rewards_and_each_its_own() -> None:
    captioner = toy_captioner()
    index = NgramIndex.build(REFERENCES)
    inner = LocalDiscriminative(index, LocalOptions(phrase_threshold=0.1, word_threshold=0.0))
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def reward(samples: Tensor, video_of: Tensor) -> Tensor:
        earned = inner(samples, video_of)
        seen.append((samples, video_of, earned))
        return earned

    loss = PolicyGradient(reward, NUMBERS, 6, 4, NoBaseline())
    torch.manual_seed(0)
    for seed in (0, 7):
        loss(captioner, toy_batch(seed=seed))
    assert all(earned.shape == (24, 5) and earned.any() for _, _, earned in seen)
    assert not torch.equal(seen[0][2], seen[1][2])
    fresh = LocalDiscriminative(NgramIndex.build(REFERENCES), inner.options)
    for samples, video_of, earned in seen:
        assert torch.equal(fresh(samples, video_of), earned)
        assert video_of.tolist() == [2] * 6 + [0] * 6 + [3] * 6 + [1] * 6


def test_statistics_say_what_was_drawn() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    reward = Consensus(NgramIndex.build(REFERENCES))
    loss = PolicyGradient(reward, NUMBERS, 3, 4, SampleBaseline(leave_one_out=True))
    torch.manual_seed(2)
    loss(captioner, batch)
    torch.manual_seed(2)
    found = sample(captioner, batch.features, batch.masks, 4, 3)
    said = chosen_tokens(found.tokens).flatten(0, 1)
    video_index = torch.arange(4).repeat_interleave(3)
    earned = reward(said, torch.tensor([2, 0, 3, 1])[video_index])
    advantages = against_samples(earned, video_index, leave_one_out=True)
    figures = loss.statistics
    assert all(type(value) is float for value in figures.values())
    assert figures["reward"] == pytest.approx(earned.mean().item())
    assert figures["reward_std"] == pytest.approx(earned.std(correction=0).item())
    assert figures["baseline"] == pytest.approx((earned - advantages).mean().item(), abs=1e-6)
    assert figures["zero_advantages"] == pytest.approx((advantages == 0).float().mean().item())
    assert figures["unique"] == len({tuple(row) for row in said.tolist()}) / 12
    assert figures["length"] == pytest.approx(np.mean([sum(w > 3 for w in row) for row in said.tolist()]))
    ended = [n for n, row in enumerate(said.tolist()) if EOS in row]
    words = sum(sum(w != PAD for w in said[n].tolist()) for n in ended)
    assert ended and figures["entropy"] == pytest.approx(-found.log_probs.flatten()[ended].sum().item() / words, rel=1e-5)


def test_a_captioner_that_knows_one_caption_shows_all_signs_of_collapse() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    loss = PolicyGradient(worth, NUMBERS, 5, 4)
    loss(captioner, batch)
    assert signs_of_collapse(loss.statistics, 5) == []
    with torch.no_grad():
        captioner.decoder.predict.weight.zero_()  # type: ignore[attr-defined]
        captioner.decoder.predict.bias[EOS] = 50.0  # type: ignore[attr-defined]
    assert loss(captioner, batch).item() == 0
    signs = signs_of_collapse(loss.statistics, 5)
    assert len(signs) == 3 and "hesitates" in signs[0] and "same" in signs[1] and "100 %" in signs[2]


def test_b1_without_the_scores_of_the_truth_is_refused() -> None:
    with pytest.raises(ValueError, match="b1"):
        PolicyGradient(worth, NUMBERS, 2, 4, TruthBaseline())
