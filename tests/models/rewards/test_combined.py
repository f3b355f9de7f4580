"""Rewards of sentences and of words added up: GLD's eq. 4 by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.rewards.baselines import against_second_sample
from models.rewards.combined import SumOfRewards
from models.types import EOS, PAD

SAID = torch.tensor([[7, 8, EOS], [9, EOS, PAD]])
VIDEOS = torch.tensor([0, 1])


def of_sentences(samples: Tensor, video_of: Tensor) -> Tensor:
    return torch.tensor([-0.3, -0.1])


def of_words(samples: Tensor, video_of: Tensor) -> Tensor:
    return torch.tensor([[1.0, 3.0, 1.0], [2.0, 2.0, 2.0]])


def test_a_sentence_earns_for_each_of_its_words_and_behind_its_end() -> None:
    wanted = torch.tensor([[0.7, 2.7, 0.7], [1.9, 1.9, 1.9]])
    assert torch.allclose(SumOfRewards(of_sentences, of_words)(SAID, VIDEOS), wanted)
    assert torch.allclose(SumOfRewards(of_words, of_sentences)(SAID, VIDEOS), wanted)


def test_sentences_alone_stay_sentences() -> None:
    total = SumOfRewards(of_sentences, of_sentences)(SAID, VIDEOS)
    assert total.tolist() == pytest.approx([-0.6, -0.2])
    assert of_sentences(SAID, VIDEOS).tolist() == pytest.approx([-0.3, -0.1]), "no part was changed"


def test_the_advantage_is_the_whole_of_one_sample_less_the_whole_of_the_other() -> None:
    """R(w_t) - R(w'_t) with R = R_GD + R_LD of either sample, position by position."""
    first = SumOfRewards(of_sentences, of_words)(SAID, VIDEOS)
    second = SumOfRewards(lambda *_: torch.tensor([0.0, -0.5]), lambda *_: torch.ones(2, 3))(SAID, VIDEOS)
    wanted = torch.tensor([[0.7 - 1.0, 2.7 - 1.0, 0.7 - 1.0], [1.9 - 0.5] * 3])
    assert torch.allclose(against_second_sample(first, second), wanted)


def test_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SumOfRewards()
