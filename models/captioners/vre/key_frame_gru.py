"""The key frame based bidirectional GRU of VRE: two GRUs that start at the key frame and run to the ends of the video."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class KeyFrameGru(nn.Module):
    """KBiGRU (VRE eq. 4 to 7): h = tanh(W_c [h_left, h_right] + b_c).

    One GRU reads the frames key, key - 1, .., 0, the other key, key + 1, .., K - 1: the key frame is read by both, first,
    from a state of zeros. With the key frame at an end, one of them reads that frame alone."""

    def __init__(self, size: int, hidden: int):
        super().__init__()
        self.leftwards = nn.GRU(size, hidden, batch_first=True)
        self.rightwards = nn.GRU(size, hidden, batch_first=True)
        self.combine = nn.Linear(2 * hidden, hidden)

    def forward(self, rows: Tensor, lengths: Tensor, key: Tensor) -> Tensor:
        """rows (B, K, C), lengths (B,) of which are real and come first, key (B,) < lengths -> (B, H).

        A video without rows (length 0, key 0) reads its first place, which holds padding: zeros by contract."""
        left = _run(self.leftwards, rows, key, -1, key)
        right = _run(self.rightwards, rows, key, 1, (lengths - 1 - key).clamp(min=0))
        return torch.tanh(self.combine(torch.cat([left, right], dim=-1)))


def _run(gru: nn.GRU, rows: Tensor, key: Tensor, direction: int, steps: Tensor) -> Tensor:
    """The state (B, H) after the key frame and `steps` (B,) further frames in `direction`."""
    K = rows.shape[1]
    offsets = torch.arange(K, device=rows.device) * direction
    # Places past the end are clamped to any frame: they come after the state that is read.
    order = (key.unsqueeze(1) + offsets).clamp(0, K - 1)
    states, _ = gru(rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[2])))
    return states.gather(1, steps.view(-1, 1, 1).expand(-1, 1, states.shape[2])).squeeze(1)
