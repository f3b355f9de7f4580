"""The Gumbel top-k sampler: distinct frames, a gradient, no noise at inference, no NaN."""

from __future__ import annotations

import math

import pytest
import torch

from models.layers.gumbel import SamplerOptions, TopKSampler


def _attention(rows: int, frames: int, seed: int = 0) -> torch.Tensor:
    return torch.softmax(2 * torch.randn(rows, frames, generator=torch.Generator().manual_seed(seed)), -1)


def _sampler(training: bool, **options: float | str) -> TopKSampler:
    return TopKSampler(SamplerOptions(**options)).train(training)


def test_without_noise_the_highest_come_in_turn_and_nothing_is_drawn() -> None:
    sampler = _sampler(training=False, k=3)
    attention = torch.tensor([[0.1, 0.5, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]])
    before = torch.get_rng_state()
    choices = sampler(attention, torch.ones(2, 4, dtype=torch.bool))
    assert torch.equal(before, torch.get_rng_state())
    assert choices.argmax(-1).tolist() == [[1, 3, 0], [0, 1, 2]]  # of equals the leftmost
    assert choices.sum(-1).eq(1).all() and choices.amax(-1).eq(1).all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_k_distinct_frames_are_chosen(k: int, training: bool) -> None:
    torch.manual_seed(0)
    choices = _sampler(training, k=k)(_attention(500, 7), torch.ones(500, 7, dtype=torch.bool))
    frames = choices.argmax(-1)
    assert choices.shape == (500, k, 7)
    assert all(len(set(row)) == k for row in frames.tolist())
    assert choices.sum(-1) == pytest.approx(1, abs=1e-5)


def test_equations_5_and_6_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [[0.3, 1.0, 2.0], [0.5, 0.7, 0.2]]  # exponential draws e: Gumbel noise is -log e
    turns = iter(drawn)
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda x: x.copy_(torch.tensor([next(turns)])))
    sampler = _sampler(training=True, k=2, scale=10.0, temperature=0.5)
    pi = [0.5, 0.3, 0.2]
    choices = sampler(torch.tensor([pi]), torch.ones(1, 3, dtype=torch.bool))

    first = [math.exp((math.log(10 * p) - math.log(e)) / 0.5) for p, e in zip(pi, drawn[0], strict=True)]
    first = [x / sum(first) for x in first]
    assert choices[0, 0].tolist() == pytest.approx(first, abs=1e-6)
    assert max(range(3), key=first.__getitem__) == 0  # so frame 0 is taken, and out of the second choice
    left = [10 * p - 10 * x for p, x in zip(pi, first, strict=True)]
    second = [0.0, *(math.exp((math.log(left[i]) - math.log(drawn[1][i])) / 0.5) for i in (1, 2))]
    assert choices[0, 1].tolist() == pytest.approx([x / sum(second) for x in second], abs=1e-5)


def test_in_training_frames_are_drawn_as_often_as_their_attention_says() -> None:
    torch.manual_seed(0)
    attention = torch.tensor([0.6, 0.3, 0.1])
    choices = _sampler(training=True, k=1)(attention.expand(20_000, 3), torch.ones(20_000, 3, dtype=torch.bool))
    assert choices[:, 0].mean(0).tolist() == pytest.approx(attention.tolist(), abs=0.015)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_gradient_reaches_the_attention_and_is_finite_at_the_papers_temperature(k: int) -> None:
    torch.manual_seed(0)
    scores = (20 * torch.randn(200, 6)).requires_grad_()  # some frames have no attention left in float32
    mask = torch.rand(200, 6) < 0.7
    attention = torch.softmax(scores, -1)
    assert (attention == 0).any()
    choices = _sampler(training=True, k=k)(attention, mask)
    (choices * torch.randn(200, k, 6)).sum().backward()
    assert torch.isfinite(choices).all() and scores.grad is not None and torch.isfinite(scores.grad).all()
    assert scores.grad.abs().sum() > 0


def test_a_frame_that_pays_gains_attention() -> None:
    torch.manual_seed(0)
    scores = torch.zeros(300, 4, requires_grad=True)
    choices = _sampler(training=True, k=2)(torch.softmax(scores, -1), torch.ones(300, 4, dtype=torch.bool))
    (-choices[:, :, 2]).sum().backward()  # the loss is lower where frame 2 is chosen
    assert scores.grad is not None
    assert (-scores.grad).mean(0).argmax() == 2


def test_the_plain_softmaxs_gradient_averages_to_that_of_the_expectation() -> None:
    torch.manual_seed(0)
    worth = torch.tensor([1.0, -1.0, 0.5])
    scores = torch.tensor([0.2, 0.0, -0.4], requires_grad=True)
    attention = torch.softmax(scores, -1)
    sampler = _sampler(training=True, k=1, temperature=0.05, gradient_temperature=0.05)
    N = 100_000
    choices = sampler(attention.expand(N, 3), torch.ones(N, 3, dtype=torch.bool))
    (found,) = torch.autograd.grad((choices[:, 0] @ worth).mean(), scores, retain_graph=True)
    (expected,) = torch.autograd.grad(attention @ worth, scores)  # a draw is frame i with probability pi_i
    assert torch.allclose(found, expected, atol=0.05)


def test_argmax_draws_nothing_and_teaches_nothing() -> None:
    attention = _attention(50, 5).requires_grad_()
    mask = torch.ones(50, 5, dtype=torch.bool)
    trained = _sampler(training=True, k=2, kind="argmax")(attention, mask)
    assert not trained.requires_grad
    assert torch.equal(trained, _sampler(training=False, k=2)(attention, mask))


@pytest.mark.parametrize("training", [True, False])
def test_masked_frames_are_never_chosen_and_too_few_leave_empty_choices(training: bool) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[False, True, False, False, True], [False, False, True, False, False], [False] * 5])
    # The masked ones have all the attention, the real ones none.
    attention = (~mask).float() / (~mask).sum(-1, keepdim=True)
    for _ in range(20):
        choices = _sampler(training, k=3)(attention, mask)
        assert torch.isfinite(choices).all() and not choices[~mask.unsqueeze(1).expand_as(choices)].any()
        assert choices.sum(-1).round(decimals=5).tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
