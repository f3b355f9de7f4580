"""The refocus loss pushes the key frame's probability where the reward points; rewards are remembered by caption."""

from __future__ import annotations

import json
import math

import pytest
import torch

from models.captioners.vre.key_frame_loss import RewardMemory, refocus_loss

ALL = torch.ones(1, 3, dtype=torch.bool)


def _gradient(key_score: float, change: float, mask: torch.Tensor = ALL) -> list[float]:
    focus = torch.tensor([[0.0, key_score, 0.0]], requires_grad=True)
    refocus_loss(focus, mask, torch.tensor([1]), torch.tensor([change])).sum().backward()
    assert focus.grad is not None
    return focus.grad[0].tolist()


def test_it_is_the_weighted_log_by_hand() -> None:
    focus, key = torch.tensor([[0.0, 1.0, 0.0]] * 3), torch.tensor([1, 1, 1])
    alpha = math.e / (math.e + 2)
    found = refocus_loss(focus, ALL.expand(3, 3), key, torch.tensor([0.7, -0.7, 0.0]))
    assert found.tolist() == pytest.approx([-0.7 * math.log(alpha), -0.7 * math.log(1 - alpha), 0.0], abs=1e-6)


@pytest.mark.parametrize("key_score", [-5.0, 5.0])
@pytest.mark.parametrize("change", [0.5, -0.5])
def test_descent_raises_the_key_frame_after_a_rise_and_lowers_it_after_a_fall(key_score: float, change: float) -> None:
    _, of_key, _ = _gradient(key_score, change)
    assert -of_key * change > 0


def test_a_key_frame_that_is_certain_can_still_be_left() -> None:
    # alpha is exactly 1 in float32 here, where a gradient through 1 - alpha would be lost
    left, of_key, right = _gradient(200.0, -0.5)
    assert of_key == pytest.approx(0.5) and left == right == pytest.approx(-0.25)


def test_an_equal_reward_a_single_frame_and_padding_push_nothing() -> None:
    assert _gradient(1.0, 0.0) == [0, 0, 0]
    assert _gradient(1.0, -1.0, torch.tensor([[False, True, False]])) == [0, 0, 0]
    assert _gradient(1.0, -1.0, torch.tensor([[True, True, False]]))[2] == 0


def test_a_caption_is_compared_with_its_own_last_reward() -> None:
    rewards = RewardMemory()
    assert rewards.change(["a", "b"], torch.tensor([1.0, 2.0])).tolist() == [0, 0]  # never seen: nothing to compare
    assert rewards.change(["b", "c"], torch.tensor([1.5, 9.0])).tolist() == [-0.5, 0]
    assert rewards.change(["c", "a", "b"], torch.tensor([10.0, 1.25, 1.5])).tolist() == [1, 0.25, 0]
    with pytest.raises(ValueError, match="2 captions came with 1 ids"):
        rewards.change(["a"], torch.zeros(2))


def test_its_state_survives_json_to_the_last_bit() -> None:
    rewards, now = RewardMemory(), torch.tensor([0.1, -1 / 3])
    rewards.change(["a", "b"], now)
    again = RewardMemory(json.loads(json.dumps(rewards.state())))
    assert len(again) == 2 and again.change(["b", "a"], now.flip(0)).tolist() == [0, 0]


def test_rewards_carry_no_gradient() -> None:
    rewards = RewardMemory({"a": 0.0})
    assert not rewards.change(["a"], torch.tensor([1.0], requires_grad=True)).requires_grad
