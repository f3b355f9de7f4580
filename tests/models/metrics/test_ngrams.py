"""The integer index over references: keys, document frequencies, postings; and what is refused."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

from models.metrics.document_frequencies import DocumentFrequencies, profile
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import MAX_WORDS, Sentences, VideoCaptions

REFERENCES = [[[0, 1, 2, 1, 2], [2, 1]], [[1, 2, 3, 4], [0]], [[5]]]


def key(*words: int) -> int:
    packed = 0
    for word in words:
        packed = packed << 16 | word + 1
    return packed


def counted(sentence: list[int]) -> Counter[int]:
    return Counter(key(*sentence[i : i + n]) for n in range(1, 5) for i in range(len(sentence) - n + 1))


@pytest.mark.parametrize("length", [0, 1, 2, 5, 49, 200])
def test_a_profile_counts_every_n_gram_once_in_order(length: int) -> None:
    draw = random.Random(length)
    sentences = [[draw.randrange(7) for _ in range(length)], [3, 3, 3, 3, 3], [MAX_WORDS - 1] * 2]
    grams = profile(Sentences.from_lists(sentences))
    for i, sentence in enumerate(sentences):
        part = slice(grams.starts[i], grams.starts[i + 1])
        keys = grams.keys[part].tolist()
        assert keys == sorted(keys)
        assert dict(zip(keys, grams.tf[part].tolist(), strict=True)) == counted(sentence)


def test_document_frequencies_count_videos_not_captions() -> None:
    frequencies = DocumentFrequencies.count(VideoCaptions.from_lists(REFERENCES))
    expected = Counter(gram for video in REFERENCES for gram in {g for sentence in video for g in counted(sentence)})
    assert dict(zip(frequencies.keys.tolist(), frequencies.counts.tolist(), strict=True)) == expected
    assert frequencies.videos == 3
    idf = frequencies.idf_of(np.array([key(1, 2), key(5), key(9, 9)], np.uint64))
    assert idf.tolist() == pytest.approx([math.log(3 / 2), math.log(3), math.log(3)])


def test_every_one_of_many_n_grams_is_found_again() -> None:
    draw = np.random.default_rng(0)
    videos = VideoCaptions.from_lists([[draw.integers(0, 500, 12).tolist() for _ in range(3)] for _ in range(300)])
    frequencies = DocumentFrequencies.count(videos)
    assert np.array_equal(frequencies.idf_of(frequencies.keys), frequencies.idf)
    absent = np.setdiff1d(np.arange(1 << 20, (1 << 20) + 5000, dtype=np.uint64), frequencies.keys)
    assert set(frequencies.idf_of(absent)) == {math.log(300)}


def test_postings_hold_each_reference_of_the_video_with_its_count() -> None:
    postings = NgramIndex.build(REFERENCES).postings
    for video, sentences in enumerate(REFERENCES):
        found = {}
        for row in range(postings.keys_of[video], postings.keys_of[video + 1]):
            part = slice(postings.starts[row], postings.starts[row + 1])
            found[int(postings.keys[row])] = list(zip(postings.reference[part].tolist(), postings.tf[part].tolist(), strict=True))
        expected: dict[int, list[tuple[int, int]]] = {}
        for number, sentence in enumerate(sentences):
            for gram, count in counted(sentence).items():
                expected.setdefault(gram, []).append((number, count))
        assert found == expected


def test_adding_a_video_changes_only_what_depends_on_the_corpus() -> None:
    before, after = NgramIndex.build(REFERENCES), NgramIndex.build([*REFERENCES, [[1, 2], [7, 8]]])
    rows = len(before.postings.keys)
    assert np.array_equal(after.postings.keys[:rows], before.postings.keys)
    assert np.array_equal(after.postings.starts[: rows + 1], before.postings.starts)
    assert np.array_equal(after.postings.tf[: len(before.postings.tf)], before.postings.tf)
    shared = np.isin(before.postings.keys, np.array([key(1), key(2), key(1, 2)], np.uint64))
    grown = after.idf[:rows] - before.idf
    assert grown[~shared] == pytest.approx(math.log(4 / 3))
    assert grown[shared] == pytest.approx(math.log(4 / 3) - math.log(3 / 2))
    corpus = before.frequencies
    assert np.array_equal(NgramIndex.build([*REFERENCES, [[1, 2]]], corpus).norms[:5], before.norms)


def test_padded_rows_and_lists_and_words_are_the_same_sentences() -> None:
    lists = Sentences.from_lists([[4, 5], [], [6]])
    rows = Sentences.from_rows([[4, 5, 0], [0, 0, 0], [6, 9, 9]], [2, 0, 1])
    numbers = {"four": 4, "five": 5, "six": 6}
    words = Sentences.from_words([["four", "five"], [], ["six"]], numbers)
    for other in (rows, words):
        assert np.array_equal(other.tokens, lists.tokens) and np.array_equal(other.starts, lists.starts)


def test_large_vocabularies_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="more than 65,535 words"):
        Sentences.from_lists([[MAX_WORDS]])
    with pytest.raises(ValueError, match="from 0 to 65534"):
        Sentences.from_lists([[-1]])


@pytest.mark.parametrize("starts", [[0, 1], [1, 2], [0, 3], [0, 2, 1, 2], []])
def test_starts_that_do_not_fit_are_refused(starts: list[int]) -> None:
    with pytest.raises(ValueError, match="must rise from 0"):
        Sentences.from_flat([1, 2], starts)


def test_a_video_without_references_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 2 videos have no reference, the first is number 1"):
        VideoCaptions.from_lists([[[1]], []])


def test_unknown_videos_and_references_are_refused() -> None:
    index, said = NgramIndex.build(REFERENCES), Sentences.from_lists([[1]])
    with pytest.raises(ValueError, match="the index has 3 videos"):
        index.match(said, [3])
    with pytest.raises(ValueError, match="as many video numbers"):
        index.match(said, [0, 1])
    with pytest.raises(ValueError, match="left out must be one of its video's"):
        index.match(said, [2], [1])


def test_document_frequencies_that_cannot_be_are_refused() -> None:
    keys = np.array([1, 2], np.uint64)
    with pytest.raises(ValueError, match="distinct and sorted"):
        DocumentFrequencies(keys[::-1], np.ones(2, np.int32), 3)
    with pytest.raises(ValueError, match="from 1 to the number of videos, 3"):
        DocumentFrequencies(keys, np.array([1, 4], np.int32), 3)
