"""GLD's global reward: eq. 6, 7 and 8 by hand, and the reward of samples put together from them."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from models.rewards.global_discriminative import (
    GlobalDiscriminative,
    GlobalOptions,
    batch_reward,
    nearest_indices,
    neighbour_reward,
)
from models.rewards.two_judges import TwoJudges
from models.types import EOS, PAD
from models.vse import VisualSemantic, VseOptions
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch


def test_against_the_nearest_neighbour_by_hand() -> None:
    captions = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    own = torch.tensor([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0]])
    nearest = torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])
    # 0.2 + 0.6 - 0.8 = 0 | 0.2 + 0.6 - 1 < 0 | 0.2 + 1 - 0
    assert neighbour_reward(captions, own, nearest).tolist() == pytest.approx([0, 0, -1.2], abs=1e-6)
    assert neighbour_reward(captions, own, nearest, 0.5).tolist() == pytest.approx([-0.3, -0.1, -1.5], abs=1e-6)


def test_against_the_minibatch_by_hand() -> None:
    scores = torch.tensor([[0.9, 0.8, 0.1], [0.3, 0.6, 0.0], [0.5, 0.7, 0.65]])
    # captions: 0.2 + 0.5 - 0.9 < 0 | 0.2 + 0.8 - 0.6 | 0.2 + 0.1 - 0.65 < 0
    # videos:   0.2 + 0.8 - 0.9     | 0.2 + 0.3 - 0.6 | 0.2 + 0.7 - 0.65
    assert batch_reward(scores, torch.arange(3)).tolist() == pytest.approx([-0.1, -0.4, -0.25])
    # two samples of video 0: they are no negatives of each other
    two = batch_reward(scores[:, :2], torch.tensor([0, 0, 1])).tolist()
    assert two == pytest.approx([-0.1, -(0.2 + 0.5 - 0.3) - (0.2 + 0.6 - 0.3), -(0.2 + 0.8 - 0.7)])
    assert batch_reward(scores[:2, :1], torch.tensor([0, 0])).tolist() == [0, 0]


def test_neighbours_become_numbers() -> None:
    found = nearest_indices(["a", "b", "c", "d"], {"a": "c", "b": "a", "c": "gone"})
    assert found.tolist() == [2, 0, -1, -1]


@torch.no_grad()
def test_samples_earn_the_weighted_sum_of_both() -> None:
    torch.manual_seed(0)
    net = VisualSemantic(VseOptions(features=("rgb",), size=8, embedding=6), SIZES, VOCABULARY).eval()
    batch = toy_batch(videos=6)
    videos = net.videos(batch.features, batch.masks)
    nearest = torch.tensor([1, 0, 3, 2, 5, -1])
    samples = torch.tensor([[4, 5, EOS, PAD], [6, EOS, PAD, PAD], [7, 8, 9, EOS], [4, 4, EOS, PAD]])
    video_of = torch.tensor([2, 5, 0, 2])
    said, at = net.sentences(samples), videos[video_of]
    own = (said * at).sum(1)
    close = -(0.2 + (said * videos[nearest[video_of]]).sum(1) - own).clamp(min=0)
    close[1] = 0  # video 5 has no neighbour
    hard = []
    for n in range(4):
        others = [m for m in range(4) if video_of[m] != video_of[n]]
        image = max(float(said[n] @ videos[video_of[m]]) for m in others)
        caption = max(float(said[m] @ at[n]) for m in others)
        hard.append(-max(0.0, 0.2 + image - float(own[n])) - max(0.0, 0.2 + caption - float(own[n])))
    both = GlobalDiscriminative(net, videos, nearest)(samples, video_of)
    assert both.shape == (4,) and both.tolist() == pytest.approx((close + torch.tensor(hard)).tolist(), abs=1e-5)
    assert both.min() < -0.01
    weights = GlobalOptions(neighbour=0.5, batch=0.0)
    assert torch.allclose(GlobalDiscriminative(net, videos, nearest, weights)(samples, video_of), 0.5 * close, atol=1e-6)


def test_another_batch_earns_other_rewards_and_no_gradient_is_kept() -> None:
    torch.manual_seed(0)
    net = VisualSemantic(VseOptions(features=("rgb",), size=8, embedding=6), SIZES, VOCABULARY)
    batch = toy_batch(videos=6)
    reward = GlobalDiscriminative(net, net.videos(batch.features, batch.masks).detach(), torch.arange(6).flip(0))
    one = reward(torch.tensor([[4, EOS], [5, EOS]]), torch.tensor([0, 1]))
    two = reward(torch.tensor([[8, EOS], [9, EOS]]), torch.tensor([0, 1]))
    assert not torch.allclose(one, two) and not one.requires_grad
    assert torch.equal(one, reward(torch.tensor([[4, EOS], [5, EOS]]), torch.tensor([0, 1])))


@torch.no_grad()
def test_a_video_that_is_not_embedded_earns_nothing_and_is_nobodys_negative() -> None:
    torch.manual_seed(0)
    net = VisualSemantic(VseOptions(features=("rgb",), size=8, embedding=6), SIZES, VOCABULARY).eval()
    batch = toy_batch(videos=4)
    videos = net.videos(batch.features, batch.masks)
    videos[2] = 0
    samples, video_of = torch.tensor([[4, EOS], [5, EOS], [6, EOS]]), torch.tensor([0, 1, 2])
    reward = GlobalDiscriminative(net, videos, torch.tensor([2, 0, 0, 1]))
    without = reward(samples[:2], video_of[:2])
    assert reward(samples, video_of).tolist() == pytest.approx([*without.tolist(), 0.0])
    assert reward(samples[2:], video_of[2:]).tolist() == [0.0]
    alone = reward(samples[:1], video_of[:1])
    assert alone.tolist() == [0.0], "its neighbour is not embedded, and there is no other in the batch"


def test_a_global_reward_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="teaches nothing"):
        GlobalOptions(neighbour=0.0, batch=0.0)


def test_tables_of_other_sizes_are_refused() -> None:
    net = VisualSemantic(VseOptions(features=("rgb",), size=8, embedding=6), SIZES, VOCABULARY)
    with pytest.raises(ValueError, match="3 videos are embedded, but 2"):
        GlobalDiscriminative(net, torch.zeros(3, 8), torch.zeros(2, dtype=torch.int64))


def test_each_of_two_judges_rewards_the_half_that_it_was_not_trained_on() -> None:
    judges = TwoJudges(lambda samples, videos: videos + 100.0, lambda samples, videos: videos + 200.0, torch.tensor([0, 1, 1, 0]))
    assert judges(torch.zeros(5, 3), torch.tensor([0, 1, 2, 3, 1])).tolist() == [200, 101, 102, 203, 101]
