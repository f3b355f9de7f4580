"""The key frame based GRU is two plain GRUs run from the key frame to the ends."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.captioners.vre.encoder import KeyFrameGru


def _by_hand(net: KeyFrameGru, rows: torch.Tensor, key: int) -> torch.Tensor:
    """rows (K, C) without padding -> (H,), one GRU cell's step after another (eq. 5 to 7)."""
    ends = []
    for gru, frames in ((net.leftwards, range(key, -1, -1)), (net.rightwards, range(key, len(rows)))):
        cell = nn.GRUCell(gru.input_size, gru.hidden_size)
        cell.load_state_dict({name.removesuffix("_l0"): x for name, x in gru.state_dict().items()})
        state = torch.zeros(gru.hidden_size)
        for i in frames:
            state = cell(rows[i], state)
        ends.append(state)
    return torch.tanh(net.combine(torch.cat(ends)))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_it_equals_two_gru_cells_run_by_hand_from_every_key_frame(length: int) -> None:
    torch.manual_seed(length)
    net, rows = KeyFrameGru(3, 4), torch.randn(length, 3)
    for key in range(length):
        found = net(rows.unsqueeze(0), torch.tensor([length]), torch.tensor([key]))
        assert torch.allclose(found[0], _by_hand(net, rows, key), atol=1e-6)


def test_key_frames_lengths_and_padding_differ_within_a_batch() -> None:
    torch.manual_seed(0)
    net, rows = KeyFrameGru(3, 4), torch.randn(6, 7, 3)
    lengths, keys = torch.tensor([7, 7, 7, 4, 4, 1]), torch.tensor([0, 6, 3, 3, 0, 0])
    found = net(rows, lengths, keys)
    for i, (length, key) in enumerate(zip(lengths.tolist(), keys.tolist(), strict=True)):
        assert torch.allclose(found[i], _by_hand(net, rows[i, :length], key), atol=1e-6)


def test_padding_gets_no_gradient() -> None:
    net, rows = KeyFrameGru(3, 4), torch.randn(1, 5, 3, requires_grad=True)
    net(rows, torch.tensor([3]), torch.tensor([1])).sum().backward()
    assert rows.grad is not None
    assert rows.grad[0, :3].abs().sum(1).gt(0).all() and not rows.grad[0, 3:].any()


def test_a_video_without_rows_gives_numbers() -> None:
    found = KeyFrameGru(3, 4)(torch.zeros(1, 2, 3), torch.tensor([0]), torch.tensor([0]))
    assert torch.isfinite(found).all()
