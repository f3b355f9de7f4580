"""Word rewards: eq. 9 and 10 as a kernel against a plain loop over n-grams, and the paper's two variants."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from models.metrics.cider import cider_d
from models.metrics.document_frequencies import DocumentFrequencies
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import Sentences, VideoCaptions
from models.rewards.baselines import against_second_sample
from models.rewards.consensus import Consensus
from models.rewards.local_discriminative import (
    DifferenceOptions,
    LocalDiscriminative,
    LocalOptions,
    StrengthenOptions,
    WordRewardOptions,
    phrase_bonus,
    prefix_differences,
    with_mean_at_end,
)
from models.types import EOS, PAD

WORDS = st.lists(st.integers(4, 9), max_size=8)
VIDEOS = st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=2, max_size=4)
LOW = LocalOptions(phrase_threshold=0.5, word_threshold=0.2)
LITERAL = LocalOptions(phrase_threshold=0.1, word_threshold=0.02, paper_literal=True)

Gram = tuple[int, ...]


class Plain:
    """Eq. 9 and 10 with dictionaries, term by term."""

    def __init__(self, corpus: list[list[list[int]]], options: LocalOptions, base: float = math.e):
        seen = Counter(gram for video in corpus for gram in {g for words in video for g in self.count(words)})
        self.df, self.videos, self.options, self.base = seen, len(corpus), options, base

    @staticmethod
    def count(words: list[int]) -> Counter[Gram]:
        return Counter(tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1))

    def tfidf(self, words: list[int], normalised: bool = False) -> dict[Gram, float]:
        """eq. 9"""
        found = {}
        for gram, tf in self.count(words).items():
            whole = len(words) - len(gram) + 1 if normalised else 1
            found[gram] = tf / whole * math.log(self.videos / max(1, self.df[gram]), self.base)
        return found

    @staticmethod
    def norm(weights: dict[Gram, float], n: int) -> float:
        return math.sqrt(sum(w * w for gram, w in weights.items() if len(gram) == n))

    def term(self, gram: Gram, mine: dict[Gram, float], theirs: dict[Gram, float]) -> float:
        scale = self.norm(mine, len(gram)) * self.norm(theirs, len(gram))
        return min(mine[gram], theirs.get(gram, 0.0)) * theirs.get(gram, 0.0) / scale if scale else 0.0

    def cider(self, words: list[int], references: list[list[int]]) -> float:
        mine, total = self.tfidf(words), 0.0
        for reference in references:
            theirs = self.tfidf(reference)
            apart = max(0, len(words) - 1) - max(0, len(reference) - 1)
            total += math.exp(-(apart**2) / 72) * sum(self.term(gram, mine, theirs) for gram in mine)
        return 10 * total / 4 / len(references)

    def bonus(self, words: list[int], references: list[list[int]]) -> list[float]:
        literal = self.options.paper_literal
        mine = self.tfidf(words, literal)
        earned = []
        for word in words:
            total = 0.0
            for reference in references:
                theirs = self.tfidf(reference, literal)
                penalty = 1.0 if literal else 10 / len(references) * math.exp(-((len(words) - len(reference)) ** 2) / 72)
                for gram, weight in mine.items():
                    high = weight > self.options.phrase_threshold if literal else weight >= self.options.phrase_threshold
                    if word in gram and high and mine[(word,)] > self.options.word_threshold:
                        total += penalty * self.term(gram, mine, theirs)
            earned.append(total)
        return earned


def rows(captions: list[list[int]], width: int) -> torch.Tensor:
    return torch.tensor([[*words, EOS, *[PAD] * (width - 1 - len(words))] for words in captions])


@settings(max_examples=60, deadline=None)
@example([[[]], [[]]], [[4]], LocalOptions(), False)
@given(VIDEOS, st.lists(WORDS, min_size=1, max_size=4), st.sampled_from([LOW, LITERAL, LocalOptions()]), st.booleans())
def test_the_kernel_is_the_equation(
    videos: list[list[list[int]]], said: list[list[int]], options: LocalOptions, unseen: bool
) -> None:
    plain = Plain([*videos, *([[[4]]] * 9 if unseen else [])], options)
    corpus = [*videos, *([[[4]]] * 9 if unseen else [])]
    index = NgramIndex.build(videos, DocumentFrequencies.count(VideoCaptions.from_lists(corpus)))
    video_of = np.arange(len(said)) % len(videos)
    found = phrase_bonus(index, Sentences.from_lists(said), video_of, options, 10)
    for row, words in enumerate(said):
        expected = plain.bonus(words, videos[video_of[row]])
        assert found[row, : len(words)] == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert not found[row, len(words) :].any()


def many_videos() -> tuple[list[list[list[int]]], NgramIndex]:
    """200 videos: "4 5" is in all, every video has a pair of words that no other has."""
    videos = [[[4, 5, 10 + v, 300 + v], [4, 5, 10 + v, 300 + v, 5]] for v in range(200)]
    return videos, NgramIndex.build(videos)


def test_rare_words_of_the_references_earn_more_and_common_words_the_sentences_reward() -> None:
    _, index = many_videos()
    samples = rows([[4, 5, 17, 307], [4, 5, 18, 308]], 6)
    rewards = LocalDiscriminative(index, eos=False)(samples, torch.tensor([7, 7]))
    sentence = Consensus(index, eos=False)(samples, torch.tensor([7, 7]))
    assert rewards.shape == (2, 6) and rewards.dtype == torch.float32
    assert torch.equal(rewards[0, :2], sentence[0].expand(2)), "in all videos: idf 0"
    assert (rewards[0, 2:4] > sentence[0] + 5).all(), "these and their phrases are this video's alone"
    assert torch.equal(rewards[0, 4:], sentence[0].expand(2)), "behind the end"
    assert torch.equal(rewards[1], sentence[1].expand(6)), "rare, but no reference has them"


def test_thresholds_include_an_n_gram_at_lambda_and_exclude_a_word_at_eta() -> None:
    _, index = many_videos()
    said, video = Sentences.from_lists([[17, 307]]), np.array([7])
    at = math.log(200.0)
    assert phrase_bonus(index, said, video, LocalOptions(phrase_threshold=at), 2).all()
    assert not phrase_bonus(index, said, video, LocalOptions(phrase_threshold=np.nextafter(at, 9)), 2).any()
    assert not phrase_bonus(index, said, video, LocalOptions(word_threshold=at), 2).any()
    assert phrase_bonus(index, said, video, LocalOptions(word_threshold=np.nextafter(at, 0)), 2).all()
    literal = LocalOptions(phrase_threshold=at / 2, paper_literal=True)  # of two words each is a half
    bigram_only = phrase_bonus(index, said, video, literal, 2)
    assert bigram_only.all() and (bigram_only < phrase_bonus(index, said, video, LocalOptions(), 2)).all()
    assert not phrase_bonus(index, said, video, LocalOptions(paper_literal=True, phrase_threshold=at), 2).any()


def test_every_occurrence_of_a_word_earns_alike() -> None:
    _, index = many_videos()
    found = phrase_bonus(index, Sentences.from_lists([[17, 4, 17, 307]]), np.array([7]), LocalOptions(), 4)[0]
    assert found[0] == found[2] > 0 and found[1] == 0


def test_two_batches_have_two_rewards_and_no_memory() -> None:
    _, index = many_videos()
    reward = LocalDiscriminative(index)
    first, second = rows([[4, 5, 17, 307]], 6), rows([[5, 4, 18, 307]], 6)
    before = reward(first, torch.tensor([7]))
    assert not torch.equal(before, reward(second, torch.tensor([8])))
    assert torch.equal(before, reward(first, torch.tensor([7])))


@settings(max_examples=40, deadline=None)
@given(VIDEOS, st.lists(WORDS, min_size=1, max_size=4))
def test_differences_are_of_prefixes_and_sum_to_the_score(videos: list[list[list[int]]], said: list[list[int]]) -> None:
    index, plain = NgramIndex.build(videos), Plain(videos, LocalOptions())
    captions, video_of = Sentences.from_lists(said), np.zeros(len(said), np.int64)
    found = prefix_differences(index, captions, video_of, 9)
    assert found.sum(1) == pytest.approx(cider_d(index, captions, video_of), abs=1e-12)
    for row, words in enumerate(said):
        scores = [plain.cider(words[:end], videos[0]) if end else 0.0 for end in range(len(words) + 1)]
        assert found[row, : len(words)] == pytest.approx(np.diff(scores), abs=1e-12)
        assert not found[row, len(words) :].any()


@settings(max_examples=40, deadline=None)
@given(VIDEOS, WORDS)
def test_the_base_of_the_logarithm_cancels(videos: list[list[list[int]]], words: list[int]) -> None:
    in_bits = Plain(videos, LocalOptions(), base=2.0).cider(words, videos[0])
    samples = rows([words], 10)
    strengthened = LocalDiscriminative(NgramIndex.build(videos), StrengthenOptions(), eos=False)
    assert strengthened(samples, torch.tensor([0]))[0].tolist() == pytest.approx([in_bits] * 10, rel=1e-6, abs=1e-9)


def test_difference_rewards_add_the_sentences_reward() -> None:
    _, index = many_videos()
    samples, video = rows([[4, 5, 17, 307]], 7), torch.tensor([7])
    sentence = Consensus(index)(samples, video)
    rewards = LocalDiscriminative(index, DifferenceOptions())(samples, video)
    assert rewards[0, 5:].tolist() == [sentence.item()] * 2
    assert (rewards - sentence)[0, :5].sum().item() == pytest.approx(sentence.item(), rel=1e-5)


def test_words_are_compared_with_a_second_sample_position_by_position() -> None:
    _, index = many_videos()
    reward, video = LocalDiscriminative(index, eos=False), torch.tensor([7])
    long, short = rows([[4, 5, 17, 307]], 6), rows([[17, 5]], 6)
    advantage = against_second_sample(reward(long, video), reward(short, video))
    sentence = Consensus(index, eos=False)
    shift = (sentence(long, video) - sentence(short, video)).item()
    assert advantage[0, 1].item() == pytest.approx(shift, abs=1e-5), "neither word earns more"
    assert advantage[0, 0].item() < shift - 1, "the second sample's word is the rarer"
    assert advantage[0, 3].item() > shift + 1, "the second sample has ended: its sentence's reward"
    with pytest.raises(ValueError, match="pad the samples"):
        against_second_sample(reward(long, video), reward(short[:, :4], video))


def test_an_unknown_kind_lists_the_known_ones() -> None:
    adapter: TypeAdapter[LocalOptions] = TypeAdapter(WordRewardOptions)
    assert adapter.validate_python({"kind": "local"}).phrase_threshold == 5
    with pytest.raises(ValidationError, match="'local', 'difference', 'strengthen'"):
        adapter.validate_python({"kind": "diff"})


def test_the_end_of_a_caption_can_earn_the_mean_bonus_of_its_words() -> None:
    bonus = np.array([[1.0, 3.0, 0.0, 0.0], [2.0, 4.0, 6.0, 8.0], [0.0, 0.0, 0.0, 0.0]])
    samples = np.array([[7, 8, EOS, PAD], [7, 8, 9, 5], [EOS, PAD, PAD, PAD]])
    assert with_mean_at_end(bonus, samples).tolist() == [[1, 3, 2, 2], [2, 4, 6, 8], [0, 0, 0, 0]]
    corpus = [[[4, 5, 6]], [[7, 8, 9]], [[7, 5, 9]]]
    index = NgramIndex.build(VideoCaptions(Sentences.from_rows(np.array([c[0] for c in corpus]), np.full(3, 3)), np.arange(4)))
    tokens, videos = torch.tensor([[4, 5, 6, EOS]]), torch.tensor([0])
    bare, mean = (
        LocalDiscriminative(index, LocalOptions(phrase_threshold=0.5, word_threshold=0.2, end=end), eos=False)
        for end in ("bare", "mean")
    )
    before, after = bare(tokens, videos)[0], mean(tokens, videos)[0]
    assert torch.equal(before[:3], after[:3]) and before[3] < before[:3].min()
    assert after[3].item() == pytest.approx(after[:3].mean().item(), rel=1e-5)
