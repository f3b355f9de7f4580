"""G2L's encoder, and its joint-hierarchical attention: over clips and frames first, then over regions of the key frames."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.layers.attention import AttentionSoftmax, weighted_sum
from models.layers.gumbel import TopKSampler
from models.layers.temporal_encoder import check_present, masked_mean, zero_invalid
from models.types import Memory


class G2lEncoder(nn.Module):
    """features (name and size each): frames (B, T, D2), clips (B, T, D3) of the same positions, perhaps regions
    (B, R, O, Dr) of some -> Memory.

    tokens (B, T, 2P) are [f', v'] of eq. 1, summary (B, 2P) is their mean; extras hold the masks of each half and, with
    regions, r' (B, R, O, P) of eq. 7 and which of them are there (a region of zeros is padding). The paper does not name
    its activation: it is ReLU here."""

    def __init__(self, features: Sequence[tuple[str, int]], projection: int):
        super().__init__()
        self.names, (frames, clips, *regions) = [name for name, _ in features], [size for _, size in features]
        self.project_frames = nn.Linear(frames, projection)
        self.project_clips = nn.Linear(clips, projection)
        self.project_regions = nn.Linear(regions[0], projection) if regions else None

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        check_present(self.names, features, masks)
        frame_mask, clip_mask = self._aligned(masks)
        T = frame_mask.shape[1]
        frames, clips = (_fit(features[name], T) for name in self.names[:2])
        frames = torch.relu(self.project_frames(zero_invalid(frames, frame_mask))) * frame_mask.unsqueeze(-1)  # eq. 1
        clips = torch.relu(self.project_clips(zero_invalid(clips, clip_mask))) * clip_mask.unsqueeze(-1)
        tokens = torch.cat([frames, clips], dim=-1)
        mask = frame_mask | clip_mask
        extras = {"frame_mask": frame_mask, "clip_mask": clip_mask}
        if self.project_regions is not None:
            regions = features[self.names[2]].masked_fill(~masks[self.names[2]][:, :, None, None], 0.0)
            present = (regions != 0).any(-1)
            extras["regions"] = torch.relu(self.project_regions(regions)) * present.unsqueeze(-1)  # eq. 7
            extras["region_mask"] = present
        return Memory(tokens, mask, masked_mean(tokens, mask), extras)

    def _aligned(self, masks: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The masks of frames and clips at one length T; a video that has both must have as many of each."""
        frames, clips = self.names[:2]
        frame_mask, clip_mask = masks[frames], masks[clips]
        T, other = frame_mask.shape[1], clip_mask.shape[1]
        frame_rows, clip_rows = frame_mask.sum(1), clip_mask.sum(1)
        differing = (frame_rows != clip_rows) & (frame_rows > 0) & (clip_rows > 0)
        what = f"'{frames}' and '{clips}' must be sampled at the same positions, but a video has"
        if not differing.is_cpu:  # a GPU checks by itself: to be told which video it is, it would have to be waited for
            torch._assert_async(~differing.any(), f"{what} more rows of one than of the other; give both the same stride")
        elif bool(differing.any()):
            n = int(differing.nonzero()[0, 0])
            raise ValueError(f"{what} {frame_rows[n]} rows of one and {clip_rows[n]} of the other; give both the same stride")
        return _fit(frame_mask, max(T, other)), _fit(clip_mask, max(T, other))


class ProductScore(nn.Module):
    """F_att of eq. 3: w . tanh((W_ha h) * (W_va V) + b_a)."""

    def __init__(self, hidden: int, values: int, attention: int):
        super().__init__()
        self.key = nn.Linear(values, attention, bias=False)
        self.query = nn.Linear(hidden, attention, bias=False)
        self.bias = nn.Parameter(torch.zeros(attention))
        self.score = nn.Linear(attention, 1, bias=False)

    def forward(self, hidden: Tensor, keys: Tensor) -> Tensor:
        """hidden (N, H), keys (N, ..., A) -> scores (N, ...)."""
        query = self.query(hidden).view(len(hidden), *[1] * (keys.dim() - 2), -1)
        return self.score(torch.tanh(query * keys + self.bias)).squeeze(-1)


class AlignedAttention(nn.Module):
    """Attention over [f', v'] (eq. 2) and the compact context of eq. 4: sum_i phi(a_i [f'_i, v'_i])."""

    def __init__(self, hidden: int, values: int, attention: int, size: int):
        super().__init__()
        self.score = ProductScore(hidden, values, attention)
        self.compact = nn.Linear(values, size, bias=False)
        self.bias = nn.Parameter(torch.zeros(size))
        self.softmax = AttentionSoftmax("aligned")

    def prepare(self, memory: Memory) -> dict[str, Tensor]:
        return {"aligned_keys": self.score.key(memory.tokens), "compact": self.compact(memory.tokens)}

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """hidden (N, H), memory of N -> context (N, A), weights (N, T)."""
        weights = self.softmax(self.score(hidden, memory.extras["aligned_keys"]), memory.mask)
        # phi is inside the sum, as printed; its matrix was applied ahead, since a_i is a number
        each = torch.relu(weights.unsqueeze(-1) * memory.extras["compact"] + self.bias)
        return (each * memory.mask.unsqueeze(-1)).sum(1), weights


class RegionAttention(nn.Module):
    """The key frames of a step and a shared attention over the regions of each (eq. 8 and 9).

    Regions exist for one position of every `stride`: the paper takes the middle one of three. The attention of each
    `stride` positions is averaged first (eq. 8), and the sampler chooses among these groups. A group whose frame has no
    region cannot be chosen; a last group that is not full counts its missing positions as zero."""

    def __init__(self, sampler: TopKSampler, hidden: int, values: int, attention: int, stride: int):
        super().__init__()
        self.sampler, self.stride = sampler, stride
        self.score = ProductScore(hidden, values, attention)
        self.softmax = AttentionSoftmax("regions")

    def prepare(self, memory: Memory) -> dict[str, Tensor]:
        return {"region_keys": self.score.key(memory.extras["regions"])}

    def forward(self, hidden: Tensor, attention: Tensor, memory: Memory) -> Tensor:
        """hidden (N, H), attention over positions (N, T), memory of N -> context (N, P)."""
        weights, _, values = self.regions(hidden, attention, memory)
        return torch.einsum("nko,nkop->np", weights, values)  # eq. 9: over the frames chosen and their regions

    def regions(self, hidden: Tensor, attention: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
        """The same -> weights (N, k, O) of the regions of the frames (N, k) chosen, and their values (N, k, O, P)."""
        present = memory.extras["region_mask"]
        choices = self.sampler(grouped(attention, self.stride, present.shape[1]), present.any(-1))
        rows = (memory.extras["regions"], memory.extras["region_keys"])
        largest, frame = choices.max(-1)
        if self.sampler.draws:
            values, keys = (_weighed(choices, x) for x in rows)
            valid = _weighed(choices.detach(), present.to(choices.dtype).unsqueeze(-1)).squeeze(-1) >= 0.5
        else:  # exactly one-hot: read only the frames chosen
            video = torch.arange(len(frame), device=frame.device).unsqueeze(1)
            values, keys = (x[video, frame] for x in rows)
            valid = present[video, frame] & (largest > 0).unsqueeze(-1)
        return self.softmax(self.score(hidden, keys), valid), frame, values


class G2lAttention(nn.Module):
    """The context of a step: x_t = [x_G, x_L] (eq. 4, 9, 11). Its weights are the aligned attention or, without
    alignment, the mean of the frames' and the clips'."""

    def __init__(self, hidden: int, projection: int, size: int, aligned: AlignedAttention | None, local: RegionAttention | None):
        super().__init__()
        self.projection = projection
        self.of_frames = ProductScore(hidden, projection, size)
        self.of_clips = ProductScore(hidden, projection, size)
        self.aligned, self.local = aligned, local
        self.over_frames, self.over_clips = AttentionSoftmax("frames"), AttentionSoftmax("clips")

    def prepare(self, memory: Memory) -> Memory:
        frames, clips = memory.tokens.split(self.projection, dim=-1)
        memory = memory.with_extras(frame_keys=self.of_frames.key(frames), clip_keys=self.of_clips.key(clips))
        for attention in (self.aligned, self.local):
            if attention is not None:
                memory = memory.with_extras(**attention.prepare(memory))
        return memory

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """hidden (N, H), memory of N -> context (N, X), weights (N, T)."""
        extras = memory.extras
        frames, clips = memory.tokens.split(self.projection, dim=-1)
        on_frames = self.over_frames(self.of_frames(hidden, extras["frame_keys"]), extras["frame_mask"])  # eq. 2
        on_clips = self.over_clips(self.of_clips(hidden, extras["clip_keys"]), extras["clip_mask"])
        contexts = [weighted_sum(on_frames, frames), weighted_sum(on_clips, clips)]
        if self.aligned is None:
            return torch.cat(contexts, dim=-1), (on_frames + on_clips) / 2
        compact, weights = self.aligned(hidden, memory)
        contexts.append(compact)
        if self.local is not None:
            contexts.append(self.local(hidden, weights, memory))
        return torch.cat(contexts, dim=-1), weights


def grouped(attention: Tensor, stride: int, groups: int) -> Tensor:
    """attention (N, T) -> (N, groups), the mean of each `stride` positions (eq. 8), zero past the end."""
    return _fit(attention, groups * stride).unflatten(1, (groups, stride)).sum(-1) / stride


def _fit(rows: Tensor, length: int) -> Tensor:
    """rows (N, T, ...) -> (N, length, ...), cut or filled with zeros."""
    if rows.shape[1] >= length:
        return rows[:, :length]
    return torch.cat([rows, rows.new_zeros(rows.shape[0], length - rows.shape[1], *rows.shape[2:])], dim=1)


def _weighed(choices: Tensor, frames: Tensor) -> Tensor:
    """choices (N, k, R), frames (N, R, O, P) -> (N, k, O, P)."""
    return torch.bmm(choices, frames.flatten(2)).unflatten(2, frames.shape[2:])
