"""Cross-entropy against a plain loop, and objectives as weighted sums of named terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.losses.cross_entropy import CrossEntropy
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


def test_smoothing_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing is 1\.5"):
        CrossEntropy(1.5)


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
