"""VRE's refocusing encoder and its key-frame BiGRU: encode around the middle frame, find the key frame, encode again."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from models.layers.recurrent import GRU
from models.layers.temporal_encoder import check_present, masked_mean, zero_invalid
from models.types import Memory

RefocusChoice = Literal["argmax", "sample", "candidates"]
CANDIDATES = 4


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


class KeyFrameGru(nn.Module):
    """KBiGRU (VRE eq. 4 to 7): h = tanh(W_c [h_left, h_right] + b_c).

    One GRU reads the frames key, key - 1, .., 0, the other key, key + 1, .., K - 1: the key frame is read by both, first,
    from a state of zeros. With the key frame at an end, one of them reads that frame alone."""

    def __init__(self, size: int, hidden: int, batch_norm: bool = False):
        super().__init__()
        self.leftwards = GRU(size, hidden, batch_first=True)
        self.rightwards = GRU(size, hidden, batch_first=True)
        self.combine = _linear(2 * hidden, hidden, batch_norm)

    def forward(self, rows: Tensor, lengths: Tensor, key: Tensor) -> Tensor:
        """rows (B, K, C), lengths (B,) of which are valid and come first, key (B,) < lengths -> (B, H).

        A video without rows (length 0, key 0) reads its first row, which is padding: zeros by contract."""
        left = _run(self.leftwards, rows, key, -1, key)
        right = _run(self.rightwards, rows, key, 1, (lengths - 1 - key).clamp(min=0))
        return torch.tanh(self.combine(torch.cat([left, right], dim=-1)))


class BatchNorm(nn.BatchNorm1d):
    """nn.BatchNorm1d without weights, for batches of a single video too: those are measured by the running statistics."""

    def __init__(self, size: int):
        super().__init__(size, affine=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.training and len(input) < 2:
            return nn.functional.batch_norm(input, self.running_mean, self.running_var, eps=self.eps)
        return super().forward(input)


def _linear(inputs: int, outputs: int, batch_norm: bool) -> nn.Module:
    """A linear layer in front of a tanh; with BatchNorm behind it, the tanh cannot saturate for all videos alike."""
    linear = nn.Linear(inputs, outputs)
    return nn.Sequential(linear, BatchNorm(outputs)) if batch_norm else linear


def _run(gru: nn.GRU, rows: Tensor, key: Tensor, direction: int, steps: Tensor) -> Tensor:
    """The state (B, H) after the key frame and `steps` (B,) further frames in `direction`."""
    K = rows.shape[1]
    offsets = torch.arange(K, device=rows.device) * direction
    # Positions past the end are clamped to any frame: they come after the state that is read.
    order = (key.unsqueeze(1) + offsets).clamp(0, K - 1)
    states, _ = gru(rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[2])))
    return states.gather(1, steps.view(-1, 1, 1).expand(-1, 1, states.shape[2])).squeeze(1)


class RefocusEncoder(nn.Module):
    """Features of B videos -> Memory: raw temporal rows (B, K, C), and o_1 or o_2 of Algorithm 1 as summary (B, H).

    Extras: with spatial features "spatial" (B, S, C) and "spatial_mask"; with audio "audio" (B, A), zero where a video has
    none; after two steps "first" (B, H) = o_1, "key_frame" (B,), and "focus" (B, K), the scores a of eq. 8 with the lowest
    number at padding. Where candidates are compared, "candidates" (B, n) are frames and "refocused" (B, n, H) the o_2 of each.

    steps: 0 leaves the encoder out (o is zero: "features only"), 1 stops at o_1, 2 refocuses. The frame with the largest
    alpha is the key frame (eq. 11), at inference always, in training with `choice` "argmax" too. "sample" draws it by alpha in
    training; "candidates" compares it with three others that are drawn by alpha, without repeats. With `key_frames`, the name of
    a feature (B, 1, 1) that holds each video's key frame, counted from 0, there is no refocusing module: the third phase of
    training. A video for which that feature is missing keeps its middle frame."""

    def __init__(
        self,
        names: tuple[str, str | None, str | None, str | None],
        temporal: int,
        audio: int,
        hidden: int,
        steps: int,
        batch_norm: bool = False,
    ):
        """names: of the temporal, spatial and audio features and of key_frames; temporal and audio: sizes of theirs"""
        super().__init__()
        self.temporal, self.spatial, self.audio, self.key_frames = names
        self.names = [name for name in names if name is not None]
        self.hidden = hidden
        self.choice: RefocusChoice = "argmax"  # seeding sets it
        self.steps = self.most_steps = steps  # training's first phase sets `steps` to 1 for a while
        if steps >= 1:
            self.around = KeyFrameGru(temporal, hidden, batch_norm)
            self.represent = _linear(hidden + audio, hidden, batch_norm)  # W_a, shared by both steps
        if steps >= 2:
            self.merge = _linear(2 * hidden, hidden, batch_norm)  # W_m
            if self.key_frames is None:
                self.refocus = ProductScores(hidden, temporal, hidden)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        check_present(self.names, features, masks)
        rows, mask = zero_invalid(features[self.temporal], masks[self.temporal]), masks[self.temporal]
        extras: dict[str, Tensor] = {}
        if self.spatial is not None:
            extras["spatial"] = zero_invalid(features[self.spatial], masks[self.spatial])
            extras["spatial_mask"] = masks[self.spatial]
        if self.audio is not None:
            extras["audio"] = masked_mean(zero_invalid(features[self.audio], masks[self.audio]), masks[self.audio])
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
            candidates = choose_frames(focus, mask, self.choice if self.training else "argmax")
            extras["focus"] = focus
        else:
            given, known = features[self.key_frames][:, 0, 0], masks[self.key_frames][:, 0]
            given = given.masked_fill(~known, 0.0).round().long()
            candidates = torch.where(known, given.clamp(min=0).minimum((lengths - 1).clamp(min=0)), middle).unsqueeze(1)
        memory = Memory(rows, mask, first, {**extras, "first": first, "key_frame": candidates[:, 0]})
        refocused = [self._refocus(memory, around_middle, frame) for frame in candidates.unbind(1)]
        if len(refocused) > 1:
            memory = memory.with_extras(candidates=candidates, refocused=torch.stack(refocused, dim=1))
        return replace(memory, summary=refocused[0])

    def around_every_frame(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Tensor:
        """The o_2 (B, K, H) that each frame would give, were it the key frame."""
        memory = self(features, masks)
        lengths = memory.mask.sum(1)
        around_middle = self.around(memory.tokens, lengths, lengths // 2)
        frames = torch.arange(memory.tokens.shape[1], device=lengths.device)
        each = [self._refocus(memory, around_middle, frame.minimum((lengths - 1).clamp(min=0))) for frame in frames]
        return torch.stack(each, dim=1)

    def _refocus(self, memory: Memory, around_middle: Tensor, key: Tensor) -> Tensor:
        """Step 2 of Algorithm 1: key (B,) -> o_2 (B, H)."""
        around_key = self.around(memory.tokens, memory.mask.sum(1), key)
        both = torch.tanh(self.merge(torch.cat([around_middle, around_key], dim=-1)))
        return self._represent(both, memory.extras)

    def _represent(self, encoded: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """o = tanh(W_a [encoded, v_a] + b_a)."""
        inputs = [encoded] if self.audio is None else [encoded, extras["audio"]]
        return torch.tanh(self.represent(torch.cat(inputs, dim=-1)))


def choose_frames(focus: Tensor, mask: Tensor, choice: RefocusChoice) -> Tensor:
    """focus (B, K), scores of frames; mask (B, K), valid ones -> the frames to encode around (B, n), the key frame first. Of the
    candidates of a video with fewer frames, the rest repeats its key frame."""
    best = focus.argmax(-1, keepdim=True)
    if choice == "argmax":
        return best
    gumbel = -torch.empty_like(focus, dtype=torch.float32).exponential_().log()
    drawn = (focus.float() + gumbel).masked_fill(~mask, -torch.inf)  # its largest entries: draws by alpha, without repeats
    if choice == "sample":
        return torch.where(mask.any(1, keepdim=True), drawn.argmax(-1, keepdim=True), best)
    drawn = drawn.scatter(1, best, torch.inf)
    scores, frames = drawn.topk(min(CANDIDATES, focus.shape[1]), dim=1)
    return torch.where(scores == -torch.inf, best, frames)
