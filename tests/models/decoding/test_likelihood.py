"""Log-probabilities of given captions: against the plain forced pass, with gradients, whatever the budget."""

from __future__ import annotations

import pytest
import torch
from models.decoders import likelihood

from models.decoding.likelihood import caption_log_probs, chosen, sampled_batch, token_log_probs
from models.decoding.search import sample
from models.types import BOS, EOS, PAD
from tests.models.toy_captions import toy_batch, toy_captioner


def test_tokens_of_samples_get_the_log_probabilities_that_the_search_added_up() -> None:
    captioner, batch = toy_captioner(), toy_batch(videos=5)
    found = sample(captioner, batch.features, batch.masks, 9, n=3, generator=torch.Generator().manual_seed(0))
    forced = sampled_batch(batch, found)
    assert forced.tokens is not None and forced.owner is not None
    assert forced.tokens.shape == (15, 11) and (forced.tokens[:, 0] == BOS).all()
    assert forced.owner.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    log_probs = token_log_probs(captioner, forced)
    assert log_probs.shape == (15, 10)
    assert torch.allclose(log_probs.sum(1), found.log_probs.flatten(), atol=1e-4)
    plain = captioner(forced).gather(2, forced.tokens[:, 1:].unsqueeze(2)).squeeze(2)
    real = forced.tokens[:, 1:] != PAD
    assert torch.allclose(log_probs, torch.where(real, plain, 0.0), atol=1e-5)


def test_gradients_of_samples_are_those_of_the_plain_forced_pass() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None
    real = batch.tokens[:, 1:] != PAD
    weights = torch.rand(real.shape, generator=torch.Generator().manual_seed(1))
    (token_log_probs(captioner, batch) * weights).sum().backward()
    found = [p.grad.clone() for p in captioner.parameters() if p.grad is not None]
    captioner.zero_grad()
    plain = captioner(batch).gather(2, batch.tokens[:, 1:].unsqueeze(2)).squeeze(2)
    (plain * weights * real).sum().backward()
    expected = [p.grad for p in captioner.parameters() if p.grad is not None]
    assert len(found) == len(expected) > 0
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))


def test_the_captioner_chose_all_but_padding_a_prefix_and_the_eos_that_closes_a_full_caption() -> None:
    said = torch.tensor([[[4, 5, EOS, PAD], [4, 5, 6, EOS]], [[EOS, PAD, PAD, PAD], [PAD, PAD, PAD, PAD]]])
    expected = [[[1, 1, 1, 0], [1, 1, 1, 0]], [[1, 0, 0, 0], [0, 0, 0, 0]]]
    assert chosen(said).int().tolist() == expected
    assert chosen(said, torch.tensor([4])).int().tolist()[0] == [[0, 1, 1, 0], [0, 1, 1, 0]]
    each = chosen(said, torch.tensor([[4, 5], [PAD, PAD]])).int().tolist()
    assert each == [[[0, 0, 1, 0], [0, 0, 1, 0]], expected[1]]


@pytest.mark.parametrize("budget", [1, 20_000, 1 << 30])
def test_captions_in_any_order_get_their_own_log_probability_within_any_budget(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    captioner, batch = toy_captioner(), toy_batch(videos=4, captions=6)
    assert batch.tokens is not None and batch.owner is not None
    tokens, owner = batch.tokens.flip(0), batch.owner.flip(0)
    monkeypatch.setattr(likelihood, "_BUDGET", budget)
    found = caption_log_probs(captioner, batch.features, batch.masks, tokens, owner)
    expected = token_log_probs(captioner, batch).sum(1).flip(0)
    assert torch.allclose(found, expected, atol=1e-4) and not found.requires_grad


def test_a_batch_without_captions_is_refused() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    empty = type(batch)(batch.video_ids, batch.features, batch.masks)
    with pytest.raises(ValueError, match="has no captions"):
        token_log_probs(captioner, empty)
