"""Sampled captions as a batch: their log-probabilities and gradients are those of the plain teacher-forced pass."""

from __future__ import annotations

import torch
from torch import nn

from models.decoding.greedy_and_sampling import sample
from models.losses.policy_gradient import chosen_tokens, sampled_batch
from models.types import BOS, EOS, PAD
from tests.models.caption_likelihood import token_log_probs
from tests.models.toy_captions import toy_batch, toy_captioner


def test_tokens_of_samples_get_the_log_probabilities_that_sampling_added_up() -> None:
    captioner, batch = toy_captioner(), toy_batch(videos=5)
    found = sample(captioner, batch.features, batch.masks, 9, n=3, generator=torch.Generator().manual_seed(0))
    sampled = sampled_batch(batch, found.tokens)
    assert sampled.tokens is not None and sampled.video_index is not None
    assert sampled.tokens.shape == (15, 11) and (sampled.tokens[:, 0] == BOS).all()
    assert sampled.video_index.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    plain = token_log_probs(captioner, sampled)
    assert torch.allclose(plain.sum(1), found.log_probs.flatten(), atol=1e-4)
    logits, targets = captioner.word_logits(sampled)
    log_probs = -nn.functional.cross_entropy(logits, targets, reduction="none")
    assert torch.allclose(log_probs, plain[sampled.tokens[:, 1:] != PAD], atol=1e-5)


def test_gradients_of_samples_are_those_of_the_plain_pass() -> None:
    captioner, batch = toy_captioner(), toy_batch()
    assert batch.tokens is not None
    valid = batch.tokens[:, 1:] != PAD
    weights = torch.rand(valid.shape, generator=torch.Generator().manual_seed(1))
    logits, targets = captioner.word_logits(batch)
    (-nn.functional.cross_entropy(logits, targets, reduction="none") * weights[valid]).sum().backward()
    found = [p.grad.clone() for p in captioner.parameters() if p.grad is not None]
    captioner.zero_grad()
    (token_log_probs(captioner, batch) * weights).sum().backward()
    expected = [p.grad for p in captioner.parameters() if p.grad is not None]
    assert len(found) == len(expected) > 0
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))


def test_the_captioner_chose_all_but_padding_and_the_eos_that_closes_a_full_caption() -> None:
    tokens = torch.tensor([[[4, 5, EOS, PAD], [4, 5, 6, EOS]], [[EOS, PAD, PAD, PAD], [PAD, PAD, PAD, PAD]]])
    assert (chosen_tokens(tokens) != PAD).int().tolist() == [[[1, 1, 1, 0], [1, 1, 1, 0]], [[1, 0, 0, 0], [0, 0, 0, 0]]]
