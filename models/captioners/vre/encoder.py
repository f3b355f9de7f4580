"""VRE's video refocusing encoder: encode around the middle frame, look for the key frame, encode again around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.captioners.vre.key_frame_gru import KeyFrameGru
from models.layers.temporal_encoder import check_present, masked_mean
from models.types import Memory


class ProductScores(nn.Module):
    """W tanh(W_q q * W_v v) + b of eq. 8 and 14."""

    def __init__(self, query: int, values: int, attention: int):
        super().__init__()
        self.query = nn.Linear(query, attention, bias=False)
        self.key = nn.Linear(values, attention, bias=False)
        self.score = nn.Linear(attention, 1)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """query (N, A) and keys (N, T, A), both already in the common space -> scores (N, T)."""
        return self.score(torch.tanh(query.unsqueeze(1) * keys)).squeeze(-1)


class RefocusEncoder(nn.Module):
    """Features of B videos -> Memory: raw temporal rows (B, K, C), and o_1 or o_2 of Algorithm 1 as summary (B, H).

    Extras: with spatial features "spatial" (B, S, C) and "spatial_mask"; with audio "audio" (B, A), zero where a video has
    none; after two steps "first" (B, H) = o_1, "key_frame" (B,), and "focus" (B, K), the scores a of eq. 8 with the lowest
    number at padding.

    steps: 0 leaves the encoder out (o is zero: "features only"), 1 stops at o_1, 2 refocuses. The frame with the largest
    alpha is the key frame (eq. 11), in training as at inference. With `key_frames`, the name of a feature (B, 1, 1) that
    holds each video's key frame, counted from 0, there is no refocusing module: the third phase of training. A video for
    which that feature is missing keeps its middle frame."""

    def __init__(
        self,
        temporal: tuple[str, int],
        spatial: str | None,
        audio: tuple[str, int] | None,
        key_frames: str | None,
        hidden: int,
        steps: int,
    ):
        super().__init__()
        self.temporal, self.spatial, self.key_frames = temporal[0], spatial, key_frames
        self.audio = None if audio is None else audio[0]
        self.hidden = hidden
        self.steps = self.most_steps = steps  # training's first phase sets `steps` to 1 for a while
        heard = 0 if audio is None else audio[1]
        if steps >= 1:
            self.around = KeyFrameGru(temporal[1], hidden)
            self.represent = nn.Linear(hidden + heard, hidden)  # W_a, shared by both steps
        if steps >= 2:
            self.merge = nn.Linear(2 * hidden, hidden)  # W_m
        if steps >= 2 and key_frames is None:
            self.refocus = ProductScores(hidden, temporal[1], hidden)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        self._check(features, masks)
        rows, mask = _clean(features[self.temporal], masks[self.temporal]), masks[self.temporal]
        extras: dict[str, Tensor] = {}
        if self.spatial is not None:
            extras["spatial"] = _clean(features[self.spatial], masks[self.spatial])
            extras["spatial_mask"] = masks[self.spatial]
        if self.audio is not None:
            extras["audio"] = masked_mean(_clean(features[self.audio], masks[self.audio]), masks[self.audio])
        if self.steps == 0:
            return Memory(rows, mask, rows.new_zeros(len(rows), self.hidden), extras)

        lengths = mask.sum(1)
        middle = lengths // 2
        around_middle = self.around(rows, lengths, middle)
        first = self._represent(around_middle, extras)  # o_1
        if self.steps == 1:
            return Memory(rows, mask, first, extras)

        if self.key_frames is None:
            focus = self.refocus(self.refocus.query(first), self.refocus.key(rows))
            focus = focus.masked_fill(~mask, torch.finfo(focus.dtype).min)
            key = focus.argmax(-1)
            extras["focus"] = focus
        else:
            given, known = features[self.key_frames][:, 0, 0], masks[self.key_frames][:, 0]
            given = given.masked_fill(~known, 0.0).round().long()
            key = torch.where(known, given.clamp(min=0).minimum((lengths - 1).clamp(min=0)), middle)
        around_key = self.around(rows, lengths, key)
        both = torch.tanh(self.merge(torch.cat([around_middle, around_key], dim=-1)))
        extras |= {"first": first, "key_frame": key}
        return Memory(rows, mask, self._represent(both, extras), extras)  # o_2

    def _represent(self, encoded: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """o = tanh(W_a [encoded, v_a] + b_a)."""
        parts = [encoded] if self.audio is None else [encoded, extras["audio"]]
        return torch.tanh(self.represent(torch.cat(parts, dim=-1)))

    def _check(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> None:
        wanted = [name for name in (self.temporal, self.spatial, self.audio, self.key_frames) if name is not None]
        check_present(wanted, features, masks)


def _clean(rows: Tensor, mask: Tensor) -> Tensor:
    """rows (B, T, D) with zeros where they are not real: those may hold anything, NaN included."""
    return rows.masked_fill(~mask.unsqueeze(-1), 0.0)
