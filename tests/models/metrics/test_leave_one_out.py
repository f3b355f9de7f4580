"""Caption weights: each reference against the others of its video, and never against itself."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.metrics import leave_one_out as leave_one_out_module
from models.metrics.document_frequencies import DocumentFrequencies
from models.metrics.leave_one_out import SCORES, leave_one_out, weigh
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import Sentences, VideoCaptions

VIDEOS = st.lists(st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(VIDEOS, st.sampled_from(sorted(SCORES)))
def test_weights_are_scores_against_an_index_without_the_caption(videos: list[list[list[int]]], score: str) -> None:
    corpus = DocumentFrequencies.count(VideoCaptions.from_lists(videos))
    weights = iter(leave_one_out(NgramIndex.build(videos), score))
    for captions in videos:
        for i, caption in enumerate(captions):
            others = captions[:i] + captions[i + 1 :]
            expected = np.nan
            if others:
                expected = SCORES[score](NgramIndex.build([others], corpus), Sentences.from_lists([caption]), [0])[0]
            assert next(weights) == pytest.approx(expected, rel=1e-12, abs=1e-15, nan_ok=True)


@settings(max_examples=40, deadline=None)
@given(VIDEOS, st.sampled_from(sorted(SCORES)), st.randoms(use_true_random=False))
def test_permuting_captions_permutes_their_weights(videos: list[list[list[int]]], score: str, draw: random.Random) -> None:
    orders = [draw.sample(range(len(captions)), len(captions)) for captions in videos]
    shuffled = [[captions[i] for i in order] for captions, order in zip(videos, orders, strict=True)]
    edges = np.cumsum([0, *map(len, videos)])
    permutation = np.concatenate([edge + np.array(order) for edge, order in zip(edges, orders, strict=False)])
    before, after = leave_one_out(NgramIndex.build(videos), score), leave_one_out(NgramIndex.build(shuffled), score)
    assert after == pytest.approx(before[permutation], rel=1e-12, abs=1e-15, nan_ok=True)


@settings(max_examples=40, deadline=None)
@given(VIDEOS, st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=4))
def test_adding_a_video_changes_only_what_depends_on_document_frequencies(
    videos: list[list[list[int]]], added: list[list[int]]
) -> None:
    before, after = NgramIndex.build(videos), NgramIndex.build([*videos, added])
    count = sum(map(len, videos))
    for score in ("bleu_4", "rouge_l"):
        assert np.array_equal(leave_one_out(after, score)[:count], leave_one_out(before, score), equal_nan=True)
    fixed = NgramIndex.build([*videos, added], before.frequencies)
    expected = leave_one_out(before, "cider_d")
    assert np.array_equal(leave_one_out(fixed, "cider_d")[:count], expected, equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(VIDEOS, st.integers(1, 12))
def test_weights_made_in_blocks_are_those_of_one_index(videos: list[list[list[int]]], block: int) -> None:
    references = VideoCaptions.from_lists(videos)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leave_one_out_module, "_BLOCK", block)
        found = weigh(references, DocumentFrequencies.count(references))
    assert list(found) == ["cider_d", "bleu_4", "rouge_l"]
    for score, weights in found.items():
        assert np.array_equal(weights, leave_one_out(NgramIndex.build(videos), score), equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(VIDEOS, st.sampled_from(sorted(SCORES)))
def test_a_caption_that_all_others_repeat_weighs_most(videos: list[list[list[int]]], score: str) -> None:
    twin = videos[0][0] * 4  # long enough for every n-gram
    index = NgramIndex.build([[*videos[0], twin, twin], *videos[1:], [[50]]])
    weights = leave_one_out(index, score)[: len(videos[0]) + 2]
    if twin and score == "rouge_l":
        assert weights[-1] == pytest.approx(1)
    alone = leave_one_out(NgramIndex.build([[twin, twin], *videos, [[50]]]), score)
    assert alone[0] == alone[1] >= weights[-1] - 1e-12 and weights[-1] == weights[-2]


def test_a_new_video_with_a_rare_word_makes_it_less_rare() -> None:
    videos = [[[1, 2, 3], [1, 2, 4]], [[5, 6], [5, 7]]]
    before = leave_one_out(NgramIndex.build(videos), "cider_d")
    after = leave_one_out(NgramIndex.build([*videos, [[1, 2]]]), "cider_d")
    # what the first two share (1, 2) weighs less against what they do not; the others' weights are all ln 3 for ln 2
    assert (after[:2] < before[:2]).all()
    assert after[2:4] == pytest.approx(before[2:4], rel=1e-12)


def test_a_lone_reference_has_no_weight_and_twins_the_highest() -> None:
    index = NgramIndex.build([[[1, 2, 3, 4]], [[5, 6, 7, 8], [5, 6, 7, 8]]])
    for score, top in (("cider_d", 10), ("bleu_4", 1), ("rouge_l", 1)):
        weights = leave_one_out(index, score)
        assert np.isnan(weights[0]) and weights[1:].tolist() == pytest.approx([top, top], abs=1e-8)


def test_thousands_of_identical_captions() -> None:
    index = NgramIndex.build([[[1, 2, 3, 4]] * 3000, [[9]]])
    for score, top in (("cider_d", 10), ("bleu_4", 1), ("rouge_l", 1)):
        weights = leave_one_out(index, score)
        assert weights[:3000] == pytest.approx(top, rel=1e-8) and np.isnan(weights[3000])


def test_an_unknown_score_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="there are cider_d, bleu_4, rouge_l"):
        leave_one_out(NgramIndex.build([[[1]]]), "meteor")
