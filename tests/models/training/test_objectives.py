"""Cross-entropies against plain loops, and objectives as weighted sums of named terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.losses.cross_entropy import CrossEntropy, DiscriminativeCrossEntropy
from models.training.objective import Objective
from models.types import PAD
from tests.models.toy_captions import VOCABULARY, toy_batch, toy_captioner


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_a_loop_over_real_tokens(smoothing: float) -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None
    log_probs = captioner(batch).detach().double().numpy()
    losses = []
    for n, caption in enumerate(batch.tokens.tolist()):
        for t, token in enumerate(caption[1:]):
            if token != PAD:
                target = np.full(VOCABULARY, smoothing / VOCABULARY)
                target[token] += 1 - smoothing
                losses.append(-(target * log_probs[n, t]).sum())
    assert CrossEntropy(smoothing)(captioner, batch).item() == pytest.approx(np.mean(losses), rel=1e-5)


def test_padding_tokens_and_caption_weights_play_no_part() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None
    longer = torch.cat([batch.tokens, torch.full((len(batch.tokens), 3), PAD)], 1)
    padded = replace(batch, tokens=longer, weights=torch.rand(len(longer)))
    assert CrossEntropy()(captioner, padded).item() == pytest.approx(CrossEntropy()(captioner, batch).item(), rel=1e-6)


def test_discriminative_cross_entropy_equals_a_loop_with_each_captions_weight() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None
    weights = np.random.default_rng(0).random(len(batch.tokens)) * 3
    log_probs = captioner(batch).detach().double().numpy()
    total, count = 0.0, 0
    for n, caption in enumerate(batch.tokens.tolist()):
        for t, token in enumerate(caption[1:]):
            if token != PAD:
                total -= weights[n] * log_probs[n, t, token]
                count += 1
    weighed = replace(batch, weights=torch.tensor(weights, dtype=torch.float32))
    dxe = DiscriminativeCrossEntropy()
    assert dxe(captioner, weighed).item() == pytest.approx(total / count, rel=1e-5)
    ones = replace(batch, weights=torch.ones(len(batch.tokens)))
    assert dxe(captioner, ones).item() == pytest.approx(CrossEntropy()(captioner, batch).item(), rel=1e-6)


def test_a_weight_stays_with_its_caption_and_a_weight_of_zero_leaves_it_out() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None and batch.video_index is not None
    batch = replace(batch, weights=torch.rand(len(batch.tokens), generator=torch.Generator().manual_seed(0)))
    assert batch.tokens is not None and batch.video_index is not None and batch.weights is not None
    order = torch.tensor([5, 0, 3, 2, 7, 4, 1, 6])
    dxe = DiscriminativeCrossEntropy()
    shuffled = replace(batch, tokens=batch.tokens[order], video_index=batch.video_index[order], weights=batch.weights[order])
    assert dxe(captioner, shuffled).item() == pytest.approx(dxe(captioner, batch).item(), rel=1e-5)
    assert dxe(captioner, replace(shuffled, weights=batch.weights)).item() != pytest.approx(
        dxe(captioner, batch).item(), rel=1e-3
    )
    assert dxe(captioner, replace(batch, weights=torch.zeros(8))).item() == 0


def test_captions_without_their_weights_are_refused() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    with pytest.raises(ValueError, match=r"v0, v1, v2\.\.\. have no weights"):
        DiscriminativeCrossEntropy()(captioner, batch)
    with pytest.raises(ValueError, match=r"8 captions came with weights of shape \(4,\)"):
        DiscriminativeCrossEntropy()(captioner, replace(batch, weights=torch.ones(4)))


def test_smoothing_out_of_range_is_refused() -> None:
    for loss in (CrossEntropy, DiscriminativeCrossEntropy):
        with pytest.raises(ValueError, match=r"label_smoothing is 1\.5"):
            loss(1.5)


def test_both_smooth_alike() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None
    ones, twos = (replace(batch, weights=torch.full((len(batch.tokens),), weight)) for weight in (1.0, 2.0))
    smooth, sharp = CrossEntropy(0.2)(captioner, batch).item(), CrossEntropy()(captioner, batch).item()
    assert smooth != pytest.approx(sharp, rel=1e-3)
    weighed = DiscriminativeCrossEntropy(0.2).at(3)
    assert weighed(captioner, ones).item() == pytest.approx(smooth, rel=1e-5)
    assert weighed(captioner, twos).item() == pytest.approx(2 * smooth, rel=1e-5)


def test_an_objective_adds_its_weighted_terms_and_names_them() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    objective = Objective(square=(1.0, lambda model, batch: model**2), plain=(0.5, lambda model, batch: model * batch))
    total, losses = objective(weight, 4.0)
    assert total.item() == 9 + 0.5 * 12
    assert {name: loss.item() for name, loss in losses.items()} == {"square": 9.0, "plain": 12.0}
    assert not any(loss.requires_grad for loss in losses.values())
    total.backward()
    assert weight.grad is not None and weight.grad.item() == 2 * 3 + 0.5 * 4


def test_an_objective_without_terms_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one term"):
        Objective()
