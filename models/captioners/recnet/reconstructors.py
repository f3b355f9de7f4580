"""RecNet's reconstructors: from what a decoder thought while it said a caption back to the video's feature rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.layers.attention import AdditiveAttention
from models.layers.lstm_decoder import ForcedStates
from models.layers.temporal_encoder import Join, masked_mean
from models.types import Batch, Memory


@dataclass(frozen=True)
class Reconstruction:
    """What N captions tell of their videos of up to `length` frames: rows (N, S, D), mask (N, S). With per_frame row j
    stands for frame j, and S is length; else the rows belong to the words, and only their mean means something."""

    rows: Tensor
    mask: Tensor
    length: int
    per_frame: bool


@dataclass(frozen=True)
class Target:
    """What is to be rebuilt of B videos: rows (B, T, D) and real (B, T, D), or (B, T, 1) where it is the same for all D.
    A feature that a video lacks is not asked for."""

    rows: Tensor
    real: Tensor


class Reconstructor(nn.Module):
    """A net that rebuilds, and the features that it is to rebuild: those of the captioner, joined as the captioner does."""

    def __init__(self, sizes: Mapping[str, int], join: Join, net: nn.Module):
        super().__init__()
        self.sizes = dict(sizes)
        self.join = join
        self.net = net

    def forward(self, states: ForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        """states of N captions, words (N, L-1) and frames (N, T) True where they are real."""
        rebuilt: Reconstruction = self.net(states, words, frames)
        return rebuilt

    def target(self, batch: Batch, length: int) -> Target:
        """The rows of the batch's B videos; `length` is T, as rebuilt."""
        rows, real = [], []
        for name, size in self.sizes.items():
            x, mask = batch.features[name], batch.masks[name]
            if self.join == "depth" and x.shape[1] != length:  # no video of the batch has it: it may have any length
                x, mask = x.new_zeros(len(x), length, size), mask.new_zeros(len(x), length)
            rows.append(x.masked_fill(~mask.unsqueeze(-1), 0.0))  # what is not real may hold anything, NaN included
            real.append(mask.unsqueeze(-1))
        if len(rows) == 1:
            return Target(rows[0], real[0])
        if self.join == "depth":
            real = [mask.expand_as(x) for mask, x in zip(real, rows, strict=True)]
        dim = 2 if self.join == "depth" else 1
        return Target(torch.cat(rows, dim), torch.cat(real, dim))


class GlobalNet(nn.Module):
    """Word by word, eq. 6 and 7: an LSTM fed with [h_t, mean of all h]; the mean of its states is the video's."""

    def __init__(self, hidden: int, size: int):
        super().__init__()
        self.lstm = nn.LSTM(2 * hidden, size, batch_first=True)

    def forward(self, states: ForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        sentence = masked_mean(states.hidden, words).unsqueeze(1).expand_as(states.hidden)
        rows, _ = self.lstm(torch.cat([states.hidden, sentence], dim=-1))
        return Reconstruction(rows, words, frames.shape[1], per_frame=False)


class LocalNet(nn.Module):
    """Frame by frame, eq. 9 to 11: an LSTM fed with the decoder's states, weighted by attention with its own last one."""

    def __init__(self, hidden: int, size: int, attention: int):
        super().__init__()
        self.attention = AdditiveAttention(hidden, size, attention)
        self.cell = nn.LSTMCell(hidden, size)

    def forward(self, states: ForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        caption = self.attention.prepare(Memory(states.hidden, words, states.hidden[:, 0]))
        rows = _frame_by_frame(self.cell, frames, lambda _, last: self.attention(last, caption)[0])
        return Reconstruction(rows, frames, frames.shape[1], per_frame=True)


class TransposedNet(nn.Module):
    """Frame by frame (Table 6): how much the decoder looked at frame t for word i is the weight of word i for frame t.

    The weights of a frame are taken as they are: over the words of a caption they need not sum to 1."""

    def __init__(self, hidden: int, size: int):
        super().__init__()
        self.cell = nn.LSTMCell(hidden, size)

    def forward(self, states: ForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        assert states.attention is not None  # the options refuse a base without attention
        weights = states.attention * words.unsqueeze(-1)
        contexts = torch.bmm(weights.transpose(1, 2), states.hidden)
        rows = _frame_by_frame(self.cell, frames, lambda t, _: contexts[:, t])
        return Reconstruction(rows, frames, frames.shape[1], per_frame=True)


def _frame_by_frame(cell: nn.LSTMCell, frames: Tensor, context: Callable[[int, Tensor], Tensor]) -> Tensor:
    """frames (N, T); context(t, last state (N, D)) -> (N, H) -> the states (N, T, D).

    A frame that is not real changes nothing, wherever it stands: padding may come between features joined in time."""
    hidden = cell.weight_ih.new_zeros(len(frames), cell.hidden_size)
    memory = hidden
    rows = []
    for t, there in enumerate(frames.unsqueeze(-1).unbind(1)):
        new_hidden, new_memory = cell(context(t, hidden), (hidden, memory))
        hidden, memory = torch.where(there, new_hidden, hidden), torch.where(there, new_memory, memory)
        rows.append(hidden)
    return torch.stack(rows, dim=1)
