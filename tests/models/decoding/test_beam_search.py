"""Greedy, beam and sampling: against exhaustive search, against each other, and whatever the batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions, beam, search
from models.decoding.greedy_and_sampling import greedy, sample
from models.decoding.logits_processing import nucleus, repeated_trigram_ends, sample_token
from models.layers.top_k import stable_top_k
from models.types import BOS, EOS, PAD, UNK, Batch, Decoded
from tests.models.caption_likelihood import caption_log_probs
from tests.models.toy_captions import toy_captioner, toy_features

WORDS = 3
SMALL = 4 + WORDS  # a vocabulary of three words


def every_caption(captioner: Captioner, video: int, features, masks, max_length: int) -> list[tuple[float, list[int]]]:
    """All captions of at most `max_length` words with their log-probabilities, by teacher forcing, best first."""
    captions = [
        [BOS, *words, EOS] for length in range(max_length + 1) for words in itertools.product(range(4, SMALL), repeat=length)
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
    one = greedy(captioner, features, masks, 6, attention=True)
    best = beam(captioner, features, masks, 6, width=1, attention=True)
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
    together = beam(captioner, features, masks, 8, width, penalty, n_best=min(width, 3), attention=True)
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
            attention=True,
        )
        assert torch.equal(alone.tokens[0], together.tokens[i])
        assert torch.allclose(alone.log_probs[0], together.log_probs[i], atol=1e-4)
        assert alone.attention is not None and together.attention is not None
        assert torch.allclose(alone.attention[0], together.attention[i, :, :, :rows], atol=1e-5)
        assert (together.attention[i, :, :, rows:] == 0).all()


def test_attention_is_that_of_the_caption_it_comes_with() -> None:
    captioner, (features, masks) = toy_captioner(seed=2), toy_features(6)
    found = beam(captioner, features, masks, 6, width=5, n_best=2, attention=True)
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
    values, places = stable_top_k(scores, 9)
    assert places.tolist() == [[8, 3, 5, 7, 1, 2, 6, 0, 4]]
    assert torch.equal(values, scores.gather(1, places))


@pytest.mark.parametrize("distinct", [3, 50, 10**6])
def test_top_of_many_equals_sorting_them_all(distinct: int) -> None:
    random = torch.Generator().manual_seed(distinct)
    scores = torch.randint(0, distinct, (40, 3001), generator=random).float().neg()
    scores[:, 2990:] = scores[:, :11]  # the end that fills no piece has large ones too
    expected, order = scores.sort(dim=1, descending=True, stable=True)
    for k in (1, 5, 11):
        values, places = stable_top_k(scores, k)
        assert torch.equal(values, expected[:, :k]) and torch.equal(places, order[:, :k])


def test_places_that_no_caption_fills_are_empty() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(2)
    found = beam(captioner, features, masks, max_length=1, width=10, n_best=10)  # only "" and three words exist
    assert torch.isfinite(found.log_probs[:, :4]).all()
    assert (found.log_probs[:, 4:] == -torch.inf).all() and (found.tokens[:, 4:] == PAD).all()


def test_samples_follow_the_distribution_and_their_generator() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(1)

    def draw(seed: int, temperature: float = 1.0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return sample(captioner, features, masks, 1, n=4000, temperature=temperature, generator=generator).tokens[0, :, 0]

    assert torch.equal(draw(7), draw(7)) and not torch.equal(draw(7), draw(8))
    memory = captioner.encode(features, masks)
    logits = captioner.decoder.step(torch.tensor([BOS]), captioner.decoder.start(memory), memory)[0][0]
    logits[[PAD, BOS, UNK]] = -torch.inf
    for temperature in (1.0, 2.0):
        shares = torch.bincount(draw(7, temperature), minlength=SMALL) / 4000
        assert torch.allclose(shares, torch.softmax(logits / temperature, 0), atol=0.04)


WAYS: dict[str, Callable[..., Decoded]] = {
    "greedy": lambda captioner, features, masks, **more: greedy(captioner, features, masks, 8, **more),
    "beam": lambda captioner, features, masks, **more: beam(captioner, features, masks, 8, 4, n_best=3, **more),
    "sample": lambda captioner, features, masks, **more: sample(captioner, features, masks, 8, n=3, **more),
}


@pytest.mark.parametrize("way", WAYS)
def test_sixty_four_videos_at_once_equal_sixty_four_times_one(way: str) -> None:
    captioner, (features, masks) = toy_captioner(seed=2), toy_features(64)
    torch.manual_seed(5)
    together = WAYS[way](captioner, features, masks, attention=True)
    assert len({tuple(row) for row in together.tokens[:, 0].tolist()}) > 10
    torch.manual_seed(5)  # all chances come from one stream, video after video
    for i in range(64):
        one = ({name: x[i : i + 1] for name, x in part.items()} for part in (features, masks))
        alone = WAYS[way](captioner, *one, attention=True)
        assert torch.equal(alone.tokens[0], together.tokens[i])
        assert torch.allclose(alone.log_probs[0], together.log_probs[i], atol=1e-4)
        assert alone.attention is not None and together.attention is not None
        assert torch.allclose(alone.attention[0], together.attention[i], atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_attention_is_kept_on_request_only(way: str) -> None:
    captioner, (features, masks) = toy_captioner(), toy_features(3)
    assert WAYS[way](captioner, features, masks).attention is None
    assert WAYS[way](captioner, features, masks, attention=True).attention is not None
    for width in (1, 3):
        options = SearchOptions(width=width)
        assert search(captioner, features, masks, options).attention is not None
        assert search(captioner, features, masks, options, attention=False).attention is None


def trigrams(tokens: list[int]) -> list[tuple[int, ...]]:
    words = tokens[: tokens.index(EOS)]
    return [tuple(words[i : i + 3]) for i in range(len(words) - 2)]


@pytest.mark.parametrize("way", WAYS)
def test_blocked_trigrams_are_said_once(way: str) -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL, seed=1), toy_features(8)
    with torch.no_grad():
        captioner.decoder.predict.bias[EOS] -= 8.0  # type: ignore[attr-defined]
    for blocked in (False, True):
        torch.manual_seed(0)
        found = WAYS[way](captioner, features, masks, block_trigrams=blocked).tokens.flatten(0, 1).tolist()
        repeats = [len(said) - len(set(said)) for said in map(trigrams, found)]
        assert (max(repeats) == 0) == blocked
        assert max(len(trigrams(row)) for row in found) == 6


def test_the_third_words_of_trigrams_said_before() -> None:
    said = torch.tensor([[4, 5, 6, 4, 5, 7, 4, 5], [4, 4, 4, 4, 4, 4, 4, 4], [4, 5, 6, 7, 8, 9, 4, 6]])
    assert [sorted({*row} - {PAD}) for row in repeated_trigram_ends(said).tolist()] == [[6, 7], [4], []]


@torch.no_grad()
def test_blocking_is_exact_in_a_beam_wide_enough() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=5, seed=4), toy_features(2)  # a single word
    with torch.no_grad():
        captioner.decoder.predict.bias[EOS] -= 8.0  # type: ignore[attr-defined]
    found = beam(captioner, features, masks, 5, width=8, n_best=8, block_trigrams=True)
    assert sorted(row.index(EOS) for row in found.tokens[0].tolist() if EOS in row) == [0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_captions_begin_with_their_prefix_and_are_scored_with_it(way: str) -> None:
    captioner, (features, masks) = toy_captioner(), toy_features(3)
    same = torch.tensor([9, UNK])
    found = WAYS[way](captioner, features, masks, prefix=same).tokens
    assert (found[:, :, :2] == same).all()
    each = torch.tensor([[9, 4, 4, 4], [5, PAD, PAD, PAD], [PAD, PAD, PAD, PAD]])
    torch.manual_seed(0)
    told = WAYS[way](captioner, features, masks, prefix=each, block_trigrams=True)
    assert (told.tokens[0, :, :4] == each[0]).all() and (told.tokens[1, :, 0] == 5).all()
    if way != "sample":
        free = WAYS[way](captioner, features, masks, block_trigrams=True)
        assert torch.equal(told.tokens[2], free.tokens[2])
    tokens, video_index = told.tokens.flatten(0, 1), torch.arange(3).repeat_interleave(told.tokens.shape[1])
    with_bos = torch.cat([torch.full_like(tokens[:, :1], BOS), tokens], 1)
    own = caption_log_probs(captioner, features, masks, with_bos, video_index)
    assert torch.allclose(own, told.log_probs.flatten(), atol=1e-4)


@torch.no_grad()
def test_a_wide_beam_with_a_prefix_finds_the_best_of_all_captions_that_begin_so() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(3)
    found = beam(captioner, features, masks, max_length=3, width=40, n_best=13, prefix=torch.tensor([5]))
    for video in range(3):
        ranked = [pair for pair in every_caption(captioner, video, features, masks, 3) if pair[1][0] == 5]
        assert found.tokens[video].tolist() == [tokens for _, tokens in ranked]


@pytest.mark.parametrize("wrong", [[4, EOS], [BOS, 4], [PAD, 4], [4, 4, 4, 4]])
def test_a_prefix_that_is_no_beginning_is_refused(wrong: list[int]) -> None:
    captioner, (features, masks) = toy_captioner(), toy_features(2)
    with pytest.raises(ValueError, match="a prefix"):
        greedy(captioner, features, masks, 3, prefix=torch.tensor(wrong))


def test_top_p_keeps_the_fewest_most_likely_words_that_reach_it() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25], [0.97, 0.01, 0.01, 0.01]])
    assert nucleus(probs, 0.6).tolist() == [
        pytest.approx([0, 0.4, 0, 0.3]),
        pytest.approx([0.25, 0.25, 0.25, 0]),
        pytest.approx([0.97, 0, 0, 0]),
    ]
    assert nucleus(probs, 1e-6).argmax(1).tolist() == [1, 0, 0] and (nucleus(probs, 1e-6) > 0).sum() == 3


def test_a_draw_follows_its_chance_and_never_takes_what_is_impossible() -> None:
    log_probs = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0]).log().repeat(5, 1)
    assert sample_token(log_probs, torch.tensor([0.0, 0.49, 0.51, 0.76, 1.0])).tolist() == [1, 1, 3, 4, 4]
    # at temperature 0.5 probabilities are squared: 4/6, 1/6, 1/6
    assert sample_token(log_probs, torch.tensor([0.6, 0.66, 0.68, 0.82, 0.84]), temperature=0.5).tolist() == [1, 1, 3, 3, 4]
    assert sample_token(log_probs, torch.tensor([0.0, 0.6, 0.7, 0.99, 1.0]), top_p=0.6).tolist() == [1, 1, 3, 3, 3]


def test_samples_with_top_p_stay_in_the_nucleus() -> None:
    captioner, (features, masks) = toy_captioner(vocabulary=SMALL), toy_features(1)
    first = sample(captioner, features, masks, 1, n=500, top_p=0.5, temperature=1.5).tokens[0, :, 0]
    memory = captioner.encode(features, masks)
    logits = captioner.decoder.step(torch.tensor([BOS]), captioner.decoder.start(memory), memory)[0][0]
    logits[[PAD, BOS, UNK]] = -torch.inf
    allowed = nucleus(torch.softmax(logits / 1.5, 0).unsqueeze(0), 0.5)[0].nonzero().flatten()
    assert set(first.tolist()) == set(allowed.tolist()) and len(allowed) < 4


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_temperature_and_top_p_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    captioner, (features, masks) = toy_captioner(), toy_features(1)
    with pytest.raises(ValueError, match="must be above 0"):
        sample(captioner, features, masks, 3, **wrong)  # type: ignore[arg-type]


def test_a_low_temperature_is_greedy() -> None:
    captioner, (features, masks) = toy_captioner(seed=2), toy_features(16)
    cold = sample(captioner, features, masks, 6, temperature=1e-6)
    assert torch.equal(cold.tokens, greedy(captioner, features, masks, 6).tokens)


def test_asking_for_more_captions_than_hypotheses_is_refused() -> None:
    with pytest.raises(ValidationError, match="raise width"):
        SearchOptions(width=2, n_best=3)
