"""The consensus reward: samples stop at EOS, EOS counts on both sides or on neither, mixtures are sums, rare cases are right."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from models.metrics.bleu import bleu_4
from models.metrics.cider import cider_d
from models.metrics.document_frequencies import DocumentFrequencies
from models.metrics.ngrams import NgramIndex
from models.metrics.rouge import rouge_l
from models.metrics.sentences import Sentences, VideoCaptions
from models.rewards.consensus import Consensus, ConsensusOptions, as_sentences
from models.types import EOS, PAD

CAPTION = st.lists(st.integers(4, 10), min_size=1, max_size=8)
VIDEOS = st.lists(st.lists(CAPTION, min_size=1, max_size=4), min_size=2, max_size=5)
MIXTURES = st.sampled_from(
    [{"cider_d": 1.0}, {"cider_d": 0.0, "bleu_4": 1.0}, {"cider_d": 0.0, "rouge_l": 2.0}, {"bleu_4": 0.5, "rouge_l": 3.0}]
)


def ended(videos: list[list[list[int]]]) -> list[list[list[int]]]:
    """The same references with EOS as their last word."""
    return [[[*words, EOS] for words in video] for video in videos]


def rows(captions: list[list[int]], width: int) -> torch.Tensor:
    return torch.tensor([[*words, EOS, *[PAD] * (width - 1 - len(words))] for words in captions])


def said(sentences: Sentences) -> list[list[int]]:
    return [words.tolist() for words in np.split(sentences.tokens, sentences.starts[1:-1])]


def test_samples_stop_at_eos_and_unfinished_ones_have_none() -> None:
    samples = torch.tensor([[5, 6, EOS, 7, EOS], [5, PAD, 6, EOS, 7], [EOS, 5, 5, 5, 5], [5, 6, 7, 8, 9], [PAD] * 5])
    assert said(as_sentences(samples, eos=True)) == [[5, 6, EOS], [5], [EOS], [5, 6, 7, 8, 9], []]
    assert said(as_sentences(samples, eos=False)) == [[5, 6], [5], [], [5, 6, 7, 8, 9], []]
    with pytest.raises(ValueError, match=r"\(N, T\)"):
        as_sentences(torch.tensor([5, 6]), eos=True)


def test_what_follows_eos_changes_nothing() -> None:
    index = NgramIndex.build(ended([[[5, 6, 7]], [[8, 9]]]))
    clean, dirty = torch.tensor([[5, 6, EOS, PAD, PAD]]), torch.tensor([[5, 6, EOS, 7, EOS]])
    assert torch.equal(Consensus(index)(clean, torch.tensor([0])), Consensus(index)(dirty, torch.tensor([0])))


def test_a_caption_that_ends_beats_the_same_words_cut_off_where_eos_counts() -> None:
    videos = [[[5, 6, 7, 8]], [[8, 9]]]
    samples, video_of = torch.tensor([[5, 6, 7, 8, EOS], [5, 6, 7, 8, PAD]]), torch.tensor([0, 0])
    finished, cut = Consensus(NgramIndex.build(ended(videos)), eos=True)(samples, video_of).tolist()
    assert finished == pytest.approx(10) and cut < finished
    finished, cut = Consensus(NgramIndex.build(videos), eos=False)(samples, video_of).tolist()
    assert finished == cut == pytest.approx(10)


@settings(max_examples=40, deadline=None)
@given(VIDEOS, MIXTURES, st.booleans())
def test_a_mixture_is_the_sum_of_its_scores(videos: list[list[list[int]]], mixture: dict[str, float], eos: bool) -> None:
    index = NgramIndex.build(ended(videos) if eos else videos)
    captions = [video[-1] for video in videos]
    video_of = np.arange(len(videos))
    found = Consensus(index, ConsensusOptions(**mixture), eos)(rows(captions, 10), torch.from_numpy(video_of))
    sentences = Sentences.from_lists([[*words, EOS] if eos else words for words in captions])
    scores = {"cider_d": cider_d, "bleu_4": bleu_4, "rouge_l": rouge_l}
    weights = {"cider_d": 1.0} | mixture
    expected = sum(weight * scores[name](index, sentences, video_of) for name, weight in weights.items())
    assert found.shape == (len(videos),) and found.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(VIDEOS, CAPTION)
def test_the_only_reference_scores_highest(videos: list[list[list[int]]], other: list[int]) -> None:
    videos = [[videos[0][0]], *videos[1:]]
    index = NgramIndex.build(ended(videos))
    for mixture in ({"cider_d": 1.0}, {"cider_d": 0.0, "bleu_4": 1.0}, {"cider_d": 0.0, "rouge_l": 1.0}):
        reward = Consensus(index, ConsensusOptions(**mixture))
        equal, different = reward(rows([videos[0][0], other], 10), torch.tensor([0, 0])).tolist()
        assert equal >= different - 1e-6
        if "rouge_l" in mixture or ("bleu_4" in mixture and len(videos[0][0]) >= 3):
            assert equal == pytest.approx(1, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(VIDEOS, st.lists(CAPTION, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_new_video_changes_rewards_by_document_frequencies_alone(
    videos: list[list[list[int]]], added: list[list[int]], draw: random.Random
) -> None:
    captions = [draw.choice(video) for video in videos]
    samples, video_of = rows(captions, 10), torch.arange(len(videos))
    corpus = DocumentFrequencies.count(VideoCaptions.from_lists(ended(videos)))
    before = Consensus(NgramIndex.build(ended(videos), corpus))(samples, video_of)
    after = Consensus(NgramIndex.build(ended([*videos, added]), corpus))(samples, video_of)
    assert torch.equal(before, after)
    mixture = ConsensusOptions(cider_d=0, bleu_4=1, rouge_l=1)
    counted = Consensus(NgramIndex.build(ended([*videos, added])), mixture)(samples, video_of)
    assert torch.equal(counted, Consensus(NgramIndex.build(ended(videos)), mixture)(samples, video_of))


def test_empty_one_word_and_very_long_captions() -> None:
    long = [4 + n % 90 for n in range(200)]
    index = NgramIndex.build(ended([[[5]], [long, long[:100]], [[6, 7]]]))
    samples = rows([[], [5], long, []], 202)
    rewards = Consensus(index)(samples, torch.tensor([0, 0, 1, 1]))
    assert rewards.isfinite().all()
    assert rewards[1] == pytest.approx(5), "one word and its end: 1-grams and 2-grams agree"
    assert rewards[2] == pytest.approx(5), "equal to one reference, and 100 words longer than the other"
    assert rewards[3] < 0.01


def test_thousands_of_equal_samples_earn_alike() -> None:
    index = NgramIndex.build(ended([[[5, 6, 7, 8]] * 500, [[9, 5]]]))
    rewards = Consensus(index)(rows([[5, 6, 7, 8]] * 3000, 6), torch.zeros(3000, dtype=torch.int64))
    assert rewards.tolist() == pytest.approx([10.0] * 3000)


def test_a_reward_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="teaches nothing"):
        ConsensusOptions(cider_d=0)


def test_mixing_the_weights_of_ground_truth_captions_gives_them_the_scale_of_rewards() -> None:
    reward = Consensus(NgramIndex.build([[[5]], [[6]]]), ConsensusOptions(cider_d=2, rouge_l=0.5))
    scores = {"cider_d": np.array([1.0, 3.0]), "bleu_4": np.array([9.0, 9.0]), "rouge_l": np.array([0.2, 0.4])}
    assert reward.mix(scores).tolist() == pytest.approx([2.1, 6.2])
