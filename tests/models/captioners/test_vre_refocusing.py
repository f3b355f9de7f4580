"""The refocus loss pushes the key frame's probability where the reward points; rewards are remembered by caption."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from models.captioners.vre.captioner import VreCaptioner, VreOptions, build_vre
from models.captioners.vre.encoder import BatchNorm, choose_frames
from models.captioners.vre.key_frame_loss import RefocusLoss, RewardMemory, StepLoss, refocus_loss
from models.losses.cross_entropy import CrossEntropy
from models.training.objective import Objective
from models.types import BOS, EOS, Batch
from tests.models.toy_captions import VOCABULARY, toy_batch

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


def test_a_caption_is_compared_with_its_own_reward_of_the_epoch_before() -> None:
    rewards = RewardMemory()
    assert rewards.change(["a", "b"], torch.tensor([1.0, 2.0]), 4).tolist() == [0, 0]  # never seen: nothing to compare
    assert rewards.change(["b", "c"], torch.tensor([1.5, 9.0]), 5).tolist() == [-0.5, 0]
    assert rewards.change(["c", "a", "b"], torch.tensor([10.0, 1.25, 1.5]), 6).tolist() == [1, 0, 0]  # a's is two epochs old
    with pytest.raises(ValueError, match="2 captions came with 1 ids"):
        rewards.change(["a"], torch.zeros(2), 0)


def test_its_state_survives_json_to_the_last_bit() -> None:
    rewards, now = RewardMemory(), torch.tensor([0.1, -1 / 3])
    rewards.change(["a", "b"], now, 0)
    again = RewardMemory(json.loads(json.dumps(rewards.state())))
    assert len(again) == 2 and again.change(["b", "a"], now.flip(0), 1).tolist() == [0, 0]
    assert again.change(["a"], now[:1] + 1, 2).tolist() == [1]


def test_rewards_carry_no_gradient() -> None:
    rewards = RewardMemory({"a": (0, 0.0)})
    assert not rewards.change(["a"], torch.tensor([1.0], requires_grad=True), 1).requires_grad


def test_frames_are_drawn_by_alpha_and_candidates_are_the_likeliest_and_three_others() -> None:
    torch.manual_seed(0)
    alpha = torch.tensor([0.5, 0.3, 0.2, 0.0])
    focus, mask = alpha.clamp(min=1e-30).log().repeat(4000, 1), torch.ones(4000, 4, dtype=torch.bool)
    assert (choose_frames(focus, mask, "argmax") == 0).all()
    drawn = choose_frames(focus, mask, "sample")[:, 0].bincount(minlength=4) / 4000
    assert drawn.tolist() == pytest.approx(alpha.tolist(), abs=0.03)
    focus = torch.cat([focus, torch.zeros(4000, 2)], dim=1)
    mask = torch.cat([mask, torch.zeros(4000, 2, dtype=torch.bool)], dim=1)
    focus[~mask] = torch.finfo(torch.float32).min
    found = choose_frames(focus, mask, "candidates")
    assert found.shape == (4000, 4) and (found[:, 0] == 0).all()
    assert all(len(set(row)) == 4 and max(row) < 4 for row in found.tolist())
    mask[:, 2:] = False  # two valid frames: the key frame fills the rest
    assert choose_frames(focus.masked_fill(~mask, -1e38), mask, "candidates").sort(1).values.unique(dim=0).tolist() == [
        [0, 0, 0, 1]
    ]


def _vre(**options: Any) -> tuple[VreCaptioner, Batch]:
    torch.manual_seed(1)
    captioner = build_vre(VreOptions(temporal="rgb", hidden=8, **options), {"rgb": 6}, VOCABULARY)
    return captioner.train(), toy_batch(videos=6, captions=2)


def test_both_steps_are_hit_by_the_same_dropout_and_the_same_own_words() -> None:
    """With one representation for both steps their losses are equal, whatever is drawn."""
    captioner, batch = _vre(dropout=0.5)
    assert batch.tokens is not None and batch.video_index is not None
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    losses = captioner.losses_given(batch.tokens, memory, [memory.summary] * 3, truth=0.5)
    assert torch.allclose(losses[:, 0], losses[:, 1], atol=1e-5) and torch.allclose(losses[:, 0], losses[:, 2], atol=1e-5)
    again = captioner.losses_given(batch.tokens, memory, [memory.summary] * 3, truth=0.5)
    assert not torch.allclose(losses, again), "dropout and own words are drawn anew every time"


def test_the_refocus_loss_of_candidates_is_the_policy_gradient_by_hand() -> None:
    captioner, batch = _vre(dropout=0.0)
    captioner.refocus_choice = "candidates"
    with captioner.sharing():
        losses, found = captioner.step_losses(batch), RefocusLoss(RewardMemory())(captioner, batch)
    assert losses.focus is not None and losses.second.shape == losses.key.shape == (12, 4)
    expected = 0.0
    for n in range(12):
        alpha = torch.softmax(losses.focus[n], 0)
        rewards = [losses.first[n].item() - loss for loss in losses.second[n].tolist()]
        mean = sum(rewards) / 4
        expected -= sum((r - mean) * math.log(alpha[k].item()) for r, k in zip(rewards, losses.key[n].tolist(), strict=True))
    assert found.item() == pytest.approx(expected / 12, abs=1e-5)
    assert (captioner.eval().step_losses(batch).key == losses.key[:, :1]).all(), "in eval mode it is the likeliest frame alone"


def test_candidates_find_the_frame_that_says_what_the_caption_is() -> None:
    """Six frames of noise, one of which holds the caption's word and a mark; only the representation knows the frames."""
    torch.manual_seed(0)
    N, K = 128, 6
    where, word = torch.randint(K, (N,)), torch.randint(4, 9, (N,))
    rows = torch.zeros(N, K, 12)
    rows[:, :, :5] = nn.functional.one_hot(torch.randint(5, (N, K)), 5).float()
    rows[torch.arange(N), where] = torch.cat([nn.functional.one_hot(word - 4, 5).float(), torch.ones(N, 7)], dim=1)
    tokens = torch.stack([torch.full((N,), BOS), word, torch.full((N,), EOS)], dim=1)
    ids = tuple(str(n) for n in range(N))
    batch = Batch(ids, {"scene": rows}, {"scene": torch.ones(N, K, dtype=torch.bool)}, tokens, torch.arange(N), ids)
    options = VreOptions(temporal="scene", hidden=32, dropout=0.0, temporal_attention=False)
    captioner = build_vre(options, {"scene": 12}, 9)
    captioner.refocus_choice = "candidates"
    optimiser = torch.optim.Adam(captioner.parameters(), 3e-3)
    objective = Objective(step1=(1.0, StepLoss(1)), step2=(1.0, StepLoss(2)), refocus=(0.3, RefocusLoss(RewardMemory())))
    for _ in range(100):
        optimiser.zero_grad()
        objective(captioner.train(), batch)[0].backward()
        optimiser.step()
    key = captioner.eval().encode(batch.features, batch.masks).extras["key_frame"]
    assert (key == where).float().mean() > 0.9


def test_batch_norm_keeps_videos_apart_where_large_steps_make_them_one() -> None:
    spreads = {}
    for batch_norm in (False, True):
        captioner, batch = _vre(dropout=0.0, steps=1, batch_norm=batch_norm)
        common = replace(batch, features={"rgb": 0.1 * batch.features["rgb"] + 2})  # what all videos share is large
        optimiser = torch.optim.Adam(captioner.parameters(), 0.1)
        for _ in range(60):
            optimiser.zero_grad()
            CrossEntropy()(captioner, common).backward()
            optimiser.step()
        assert captioner.spread is not None
        spreads[batch_norm] = captioner.spread.item()
    assert spreads[False] < 0.01 and spreads[True] > 0.3, spreads


def test_a_batch_of_one_video_is_normalised_by_what_was_seen_before() -> None:
    norm = BatchNorm(3)
    norm(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    seen = norm.running_mean.clone() if norm.running_mean is not None else None
    alone = norm(torch.tensor([[1.0, 2.0, 3.0]]))
    assert torch.isfinite(alone).all() and norm.running_mean is not None and torch.equal(norm.running_mean, seen)
    assert torch.equal(alone, norm.eval()(torch.tensor([[1.0, 2.0, 3.0]])))
