"""Greedy, beam and sampling: against exhaustive search, against each other, and whatever the batch."""

from __future__ import annotations

import itertools

import pytest
import torch
from pydantic import ValidationError

from models.captioner import Captioner
from models.decoders.search import SearchOptions, _top, beam, greedy, sample, search
from models.types import BOS, EOS, PAD, UNK, Batch
from tests.models.toy_captions import toy_captioner, toy_features

WORDS = 3
SMALL = 4 + WORDS  # a vocabulary of three words


def every_caption(captioner: Captioner, video: int, features, masks, max_length: int) -> list[tuple[float, list[int]]]:
    """All captions of at most `max_length` words with their log-probabilities, by teacher forcing, best first."""
    captions = [
        [BOS, *words, EOS]
        for length in range(max_length + 1)
        for words in itertools.product(range(4, SMALL), repeat=length)
    ]
    tokens = torch.tensor([c + [PAD] * (max_length + 2 - len(c)) for c in captions])
    batch = Batch(("v",), features, masks, tokens, torch.full((len(captions),), video))
    log_probs = captioner(batch).gather(2, tokens[:, 1:].unsqueeze(2)).squeeze(2)
    scores = (log_probs * (tokens[:, 1:] != PAD)).sum(1).tolist()
    return sorted(zip(scores, tokens[:, 1:].tolist(), strict=True), reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.5])
@torch.no_grad()
def test_a_beam_wide_enough_equals_exhaustive_search(penalty: float) -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(4)
    found = beam(captioner, features, masks, max_length=3, width=90, length_penalty=penalty, n_best=40)
    for video in range(4):
        ranked = every_caption(captioner, video, features, masks, max_length=3)
        assert len(ranked) == 40
        ranked.sort(key=lambda pair: -pair[0] / sum(token != PAD for token in pair[1]) ** penalty)
        assert found.tokens[video].tolist() == [tokens for _, tokens in ranked]
        assert found.log_probs[video].tolist() == pytest.approx([score for score, _ in ranked], abs=1e-4)


@pytest.mark.parametrize("kind", ["sa_lstm", "mp_lstm"])
def test_a_beam_of_one_equals_greedy_search(kind: str) -> None:
    captioner, (features, masks) = toy_captioner(kind), toy_features(16)
    one, best = greedy(captioner, features, masks, 6), beam(captioner, features, masks, 6, width=1)
    assert torch.equal(one.tokens, best.tokens)
    assert torch.allclose(one.log_probs, best.log_probs, atol=1e-5)
    if one.attention is not None and best.attention is not None:
        assert torch.allclose(one.attention, best.attention, atol=1e-5)
    assert (one.attention is None) == (kind == "mp_lstm") == (best.attention is None)


def test_a_wider_beam_never_scores_worse_than_greedy_on_these_toys_and_often_better() -> None:
    captioner, (features, masks) = toy_captioner(seed=3), toy_features(32)
    narrow, wide = greedy(captioner, features, masks, 6), beam(captioner, features, masks, 6, width=8)
    assert (wide.log_probs >= narrow.log_probs - 1e-5).all()
    assert (wide.log_probs > narrow.log_probs + 1e-3).sum() >= 3


def test_log_probs_are_the_captioners_own_score_of_the_caption() -> None:
    captioner, (features, masks) = toy_captioner(), toy_features(5)
    for found in (
        beam(captioner, features, masks, 5, width=4, n_best=3, length_penalty=1.0),
        sample(captioner, features, masks, 5, n=3, temperature=0.5, generator=torch.Generator().manual_seed(0)),
    ):
        said = found.tokens.view(15, -1)
        tokens = torch.cat([torch.full((15, 1), BOS), said], 1)
        log_probs = captioner(Batch((), features, masks, tokens, torch.arange(5).repeat_interleave(3)))
        scores = (log_probs.gather(2, said.unsqueeze(2)).squeeze(2) * (said != PAD)).sum(1)
        assert torch.allclose(scores.view(5, 3), found.log_probs, atol=1e-4)


@pytest.mark.parametrize("way", ["greedy", "beam", "sample"])
def test_captions_end_in_one_eos_and_never_say_a_special_word(way: str) -> None:
    captioner, (features, masks) = toy_captioner(), toy_features(12)
    with torch.no_grad():
        captioner.decoder.predict.bias[[PAD, BOS, UNK]] += 20.0  # type: ignore[attr-defined]
    found = {
        "greedy": lambda: greedy(captioner, features, masks, 4),
        "beam": lambda: beam(captioner, features, masks, 4, width=3, n_best=3),
        "sample": lambda: sample(captioner, features, masks, 4, n=5, generator=torch.Generator().manual_seed(1)),
    }[way]().tokens.flatten(0, 1)
    assert found.shape[1] == 5
    ends = (found == EOS).to(torch.int64)
    assert (ends.sum(1) == 1).all()
    after = ends.cumsum(1) - ends > 0
    assert (found[after] == PAD).all()
    assert not torch.isin(found[~after], torch.tensor([PAD, BOS, UNK])).any()


def test_the_unknown_word_is_said_only_when_allowed() -> None:
    captioner, (features, masks) = toy_captioner(), toy_features(3)
    with torch.no_grad():
        captioner.decoder.predict.bias[UNK] += 50.0  # type: ignore[attr-defined]
    for width in (1, 2):
        options = SearchOptions(width=width, max_length=3, allow_unk=True)
        assert (search(captioner, features, masks, options).tokens[:, 0, :3] == UNK).all()
        assert not (search(captioner, features, masks, SearchOptions(width=width, max_length=3)).tokens == UNK).any()


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("width", [1, 4])
def test_neither_the_batch_nor_its_padding_changes_a_caption(width: int, penalty: float) -> None:
    captioner, (features, masks) = toy_captioner(seed=2), toy_features(8)
    together = beam(captioner, features, masks, 8, width, penalty, n_best=min(width, 3))
    assert len({tuple(row) for row in together.tokens[:, 0].tolist()}) > 3
    for i in range(8):
        rows = int(masks["rgb"][i].sum())
        alone = beam(
            captioner,
            {name: x[i : i + 1, :rows] for name, x in features.items()},
            {name: x[i : i + 1, :rows] for name, x in masks.items()},
            8,
            width,
            penalty,
            n_best=min(width, 3),
        )
        assert torch.equal(alone.tokens[0], together.tokens[i])
        assert torch.allclose(alone.log_probs[0], together.log_probs[i], atol=1e-4)
        assert alone.attention is not None and together.attention is not None
        assert torch.allclose(alone.attention[0], together.attention[i, :, :, :rows], atol=1e-5)
        assert (together.attention[i, :, :, rows:] == 0).all()


def test_attention_is_that_of_the_caption_it_comes_with() -> None:
    captioner, (features, masks) = toy_captioner(seed=2), toy_features(6)
    found = beam(captioner, features, masks, 6, width=5, n_best=2)
    assert found.attention is not None
    memory = captioner.encode(features, masks).select(torch.arange(6).repeat_interleave(2))
    state, token = captioner.decoder.start(memory), torch.full((12,), BOS)
    for t, said in enumerate(found.tokens.view(12, -1).unbind(1)):
        _, state, weights = captioner.decoder.step(token, state, memory)
        assert weights is not None
        expected = weights * (said != PAD).unsqueeze(1)
        assert torch.allclose(found.attention.view(12, 7, -1)[:, t], expected, atol=1e-5)
        token = said


def test_equal_scores_go_to_the_lower_token_and_the_better_hypothesis() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(2)
    with torch.no_grad():
        captioner.decoder.predict.weight.zero_()  # type: ignore[attr-defined]
        captioner.decoder.predict.bias.zero_()  # type: ignore[attr-defined]
        captioner.decoder.predict.bias[EOS] = -1.0  # type: ignore[attr-defined]
    found = beam(captioner, features, masks, max_length=2, width=20, n_best=13).tokens[0]
    pairs = [[a, b, EOS] for a in (4, 5, 6) for b in (4, 5, 6)]
    assert found.tolist() == [[EOS, PAD, PAD], [4, EOS, PAD], [5, EOS, PAD], [6, EOS, PAD], *pairs]
    assert greedy(captioner, features, masks, max_length=2).tokens[0].tolist() == [[4, 4, EOS]]


def test_top_is_ordered_and_stable_for_any_float() -> None:
    scores = torch.tensor([[-1.0, 0.0, -0.0, 2.5, -torch.inf, 2.5, -1e-30, 1e-30, torch.inf]])
    values, places = _top(scores, 9)
    assert places.tolist() == [[8, 3, 5, 7, 1, 2, 6, 0, 4]]
    assert torch.equal(values, scores.gather(1, places))


def test_places_that_no_caption_fills_are_empty() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(2)
    found = beam(captioner, features, masks, max_length=1, width=10, n_best=10)  # only "" and three words exist
    assert torch.isfinite(found.log_probs[:, :4]).all()
    assert (found.log_probs[:, 4:] == -torch.inf).all() and (found.tokens[:, 4:] == PAD).all()


def test_samples_follow_the_distribution_and_their_generator() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(1)

    def draw(seed: int, temperature: float = 1.0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return sample(captioner, features, masks, 1, n=4000, temperature=temperature, generator=generator).tokens[
            0, :, 0
        ]

    assert torch.equal(draw(7), draw(7)) and not torch.equal(draw(7), draw(8))
    memory = captioner.encode(features, masks)
    logits = captioner.decoder.step(torch.tensor([BOS]), captioner.decoder.start(memory), memory)[0][0]
    logits[[PAD, BOS, UNK]] = -torch.inf
    for temperature in (1.0, 2.0):
        shares = torch.bincount(draw(7, temperature), minlength=SMALL) / 4000
        assert torch.allclose(shares, torch.softmax(logits / temperature, 0), atol=0.04)


def test_asking_for_more_captions_than_hypotheses_is_refused() -> None:
    with pytest.raises(ValidationError, match="raise width"):
        SearchOptions(width=2, n_best=3)
