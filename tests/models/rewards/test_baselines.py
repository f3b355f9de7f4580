"""Baselines on toys that can be worked out by hand: two videos, samples in any order, sentence and word level."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from models.rewards.baselines import (
    BaselineOptions,
    SampleBaseline,
    against_samples,
    against_second_sample,
    against_truth,
    truth_means,
)

REWARDS = torch.tensor([1.0, 10.0, 3.0, 20.0, 8.0])
OWNER = torch.tensor([0, 1, 0, 1, 0])


def test_greedy_is_taken_away_from_its_own_video() -> None:
    assert against_second_sample(REWARDS, torch.tensor([2.0, 5.0])[OWNER]).tolist() == [-1, 5, 1, 15, 6]
    words, greedy = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [10.0, 20.0]])
    assert against_second_sample(words, greedy[torch.tensor([1, 0])]).tolist() == [[-9, -18], [3, 3]]


def test_truth_is_the_mean_of_the_ground_truth_captions() -> None:
    means = truth_means(np.array([1.0, 2.0, 3.0, 10.0]), np.array([0, 3, 4]))
    assert means.tolist() == [2, 10]
    truth = torch.from_numpy(means).float()
    assert against_truth(REWARDS, truth, OWNER).tolist() == [-1, 0, 1, 10, 6]
    words = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert against_truth(words, truth, torch.tensor([1, 0])).tolist() == [[-9, -8], [1, 2]]


@pytest.mark.parametrize(
    ("top", "leave_one_out", "advantages"),
    [
        (None, False, [-3, -5, -1, 5, 4]),  # means 4 and 15
        (2, False, [-4.5, -5, -2.5, 5, 2.5]),  # the best two: 5.5 and 15
        (1, False, [-7, -10, -5, 0, 0]),  # the best: 8 and 20
        (9, False, [-3, -5, -1, 5, 4]),  # more than there are: all
        (None, True, [-4.5, -10, -1.5, 10, 6]),  # others: 5.5, 20, 4.5, 10, 2
        (1, True, [-7, -10, -5, 10, 5]),  # the best other: 8, 20, 8, 10, 3
    ],
)
def test_own_samples(top: int | None, leave_one_out: bool, advantages: list[float]) -> None:
    assert against_samples(REWARDS, OWNER, top, leave_one_out).tolist() == advantages


def test_own_samples_word_by_word() -> None:
    words = torch.tensor([[1.0, 5.0], [3.0, 1.0], [5.0, 3.0]])
    video_index = torch.zeros(3, dtype=torch.int64)
    assert against_samples(words, video_index).tolist() == [[-2, 2], [0, -2], [2, 0]]
    assert against_samples(words, video_index, top=1).tolist() == [[-4, 0], [-2, -4], [0, -2]]
    assert against_samples(words, video_index, top=1, leave_one_out=True).tolist() == [[-4, 2], [-2, -4], [2, -2]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 10, width=32), min_size=2, max_size=12), st.integers(1, 12), st.booleans())
def test_each_position_is_a_sentence_of_its_own(values: list[float], top: int, leave_one_out: bool) -> None:
    rewards, video_index = torch.tensor(values), torch.zeros(len(values), dtype=torch.int64)
    words = torch.stack([rewards, rewards.flip(0)], 1)
    found = against_samples(words, video_index, top, leave_one_out)
    alone = against_samples(rewards, video_index, top, leave_one_out)
    assert found[:, 0].tolist() == pytest.approx(alone.tolist(), abs=1e-5)
    assert found[:, 1].tolist() == pytest.approx(alone.flip(0).tolist(), abs=1e-5)


def test_a_lone_sample_has_no_others() -> None:
    assert against_samples(torch.tensor([3.0]), torch.tensor([0])).tolist() == [0]
    with pytest.raises(ValueError, match="two samples per video"):
        against_samples(torch.tensor([3.0]), torch.tensor([0]), leave_one_out=True)


def test_a_second_sample_of_another_shape_is_refused() -> None:
    assert against_second_sample(REWARDS, REWARDS.flip(0)).tolist() == [-7, -10, 0, 10, 7]
    with pytest.raises(ValueError, match="one width"):
        against_second_sample(REWARDS, torch.zeros(5, 2))


def test_options_are_chosen_by_kind() -> None:
    adapter: TypeAdapter[SampleBaseline] = TypeAdapter(BaselineOptions)
    assert adapter.validate_python({"kind": "b2", "top": 3}) == SampleBaseline(top=3)
    for kind in ("none", "scst", "b1", "second_sample"):
        assert adapter.validate_python({"kind": kind}).kind == kind
    with pytest.raises(ValidationError, match="'none', 'scst', 'b1', 'b2', 'second_sample'"):
        adapter.validate_python({"kind": "greedy"})
