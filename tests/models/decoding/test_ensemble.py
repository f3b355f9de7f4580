"""Ensembles: their probabilities are means of their members', in every search; they share a vocabulary or are refused."""

from __future__ import annotations

import pytest
import torch

from models.decoding.beam_search import beam
from models.decoding.ensemble import Ensemble, mean_log_probs
from models.decoding.greedy_and_sampling import greedy, sample
from models.types import BOS, EOS, PAD
from tests.models.caption_likelihood import caption_log_probs, token_log_probs
from tests.models.toy_captions import toy_batch, toy_captioner, toy_features


def members() -> list:
    """Three that differ in kind, features and weights."""
    return [
        toy_captioner("sa_lstm", seed=1),
        toy_captioner("mp_lstm", seed=2, features=("motion",)),
        toy_captioner("sa_lstm", seed=3, features=("rgb",), hidden=6),
    ]


def test_the_mean_is_one_of_probabilities_not_of_logits() -> None:
    found = mean_log_probs([torch.tensor([[0.9, 0.1]]).log() + 3, torch.tensor([[0.2, 0.8]]).log()]).exp()
    assert found.tolist() == [pytest.approx([0.55, 0.45])]


@torch.no_grad()
def test_forced_probabilities_are_the_mean_of_the_members() -> None:
    parts, batch = members(), toy_batch()
    expected = torch.stack([part(batch).exp() for part in parts]).mean(0)
    together = Ensemble(parts).eval()
    assert torch.allclose(together(batch).exp(), expected, atol=1e-6)
    assert batch.tokens is not None and batch.video_index is not None
    token_wise = token_log_probs(together, batch).sum(1)
    whole = caption_log_probs(together, batch.features, batch.masks, batch.tokens, batch.video_index)
    assert torch.allclose(token_wise, whole, atol=1e-4)


@torch.no_grad()
def test_greedy_search_equals_averaging_by_hand_step_by_step() -> None:
    parts, (features, masks) = members(), toy_features(6)
    found = greedy(Ensemble(parts).eval(), features, masks, 6).tokens[:, 0]
    memories = [part.encode(features, masks) for part in parts]
    states = [part.decoder.start(memory) for part, memory in zip(parts, memories, strict=True)]
    token, running = torch.full((6,), BOS), torch.ones(6, dtype=torch.bool)
    for t in range(6):
        steps = [p.decoder.step(token, s, m) for p, s, m in zip(parts, states, memories, strict=True)]
        states = [step[1] for step in steps]
        mean = torch.stack([torch.softmax(step[0], -1) for step in steps]).mean(0)
        mean[:, [0, 1, 3]] = 0
        token = mean.argmax(1)
        assert torch.equal(found[:, t], torch.where(running, token, PAD))
        running &= token != EOS


def test_a_beam_scores_its_captions_as_the_ensemble_does() -> None:
    together, (features, masks) = Ensemble(members()).eval(), toy_features(5)
    found = beam(together, features, masks, 6, width=4, n_best=2, attention=True)
    tokens = torch.cat([torch.full((10, 1), BOS), found.tokens.flatten(0, 1)], 1)
    own = caption_log_probs(together, features, masks, tokens, torch.arange(5).repeat_interleave(2))
    assert torch.allclose(own, found.log_probs.flatten(), atol=1e-4)
    assert found.attention is not None and found.attention.shape == (5, 2, 7, 5)


def test_one_member_alone_and_the_same_member_twice_speak_alike() -> None:
    alone, (features, masks) = toy_captioner(seed=2), toy_features(8)
    expected = beam(alone, features, masks, 6, width=3)
    for together in (Ensemble([alone]), Ensemble([alone, alone])):
        found = beam(together, features, masks, 6, width=3)
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.allclose(found.log_probs, expected.log_probs, atol=1e-4)
    drawn = [sample(c, features, masks, 6, generator=torch.Generator().manual_seed(1)) for c in (alone, Ensemble([alone]))]
    assert torch.equal(drawn[0].tokens, drawn[1].tokens)


def test_other_vocabularies_and_no_members_are_refused() -> None:
    features, masks = toy_features(2)
    with pytest.raises(ValueError, match="share a vocabulary, these have 11, 12 words"):
        greedy(Ensemble([toy_captioner(), toy_captioner(vocabulary=12)]), features, masks, 4)
    with pytest.raises(ValueError, match="at least one captioner"):
        Ensemble([])
