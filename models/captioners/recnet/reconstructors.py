"""RecNet's reconstructors, global and local: from the decoder's hidden states back to the video's feature rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.layers.attention import AdditiveAttention
from models.layers.recurrent import LSTM, LSTMCell
from models.layers.temporal_encoder import Join, masked_mean, zero_invalid
from models.types import Batch, Memory, TeacherForcedStates


@dataclass(frozen=True)
class Reconstruction:
    """The rows of videos of up to `length` frames, reconstructed from N captions: rows (N, S, D), mask (N, S). With
    per_frame row j stands for frame j, and S is length; else rows belong to words, and only their mean is compared."""

    rows: Tensor
    mask: Tensor
    length: int
    per_frame: bool


@dataclass(frozen=True)
class ReconstructionTarget:
    """The rows of B videos to reconstruct: rows (B, T, D) and valid (B, T, D), or (B, T, 1) where it is the same for all
    D. A feature that a video lacks is not compared."""

    rows: Tensor
    valid: Tensor


class Reconstructor(nn.Module):
    """A net that reconstructs, and the features it reconstructs: those of the captioner, joined as the captioner does."""

    def __init__(self, sizes: Mapping[str, int], join: Join, net: nn.Module):
        super().__init__()
        self.sizes, self.join, self.net = dict(sizes), join, net

    def forward(self, states: TeacherForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        """states of N captions; words (N, L-1) and frames (N, T), True where they are valid."""
        reconstruction: Reconstruction = self.net(states, words, frames)
        return reconstruction

    def target(self, batch: Batch, length: int) -> ReconstructionTarget:
        """The rows of the batch's B videos; `length` is T, as reconstructed."""
        rows, valid = [], []
        for name, size in self.sizes.items():
            x, mask = batch.features[name], batch.masks[name]
            if self.join == "depth" and x.shape[1] != length:  # no video of the batch has it: it may have any length
                x, mask = x.new_zeros(len(x), length, size), mask.new_zeros(len(x), length)
            rows.append(zero_invalid(x, mask))
            valid.append(mask.unsqueeze(-1))
        if len(rows) == 1:
            return ReconstructionTarget(rows[0], valid[0])
        if self.join == "depth":
            valid = [mask.expand_as(x) for mask, x in zip(valid, rows, strict=True)]
        dim = 2 if self.join == "depth" else 1
        return ReconstructionTarget(torch.cat(rows, dim), torch.cat(valid, dim))


class GlobalReconstructor(nn.Module):
    """The global reconstructor (eq. 6, 7): an LSTM over words, fed with [h_t, mean of all h]; only its states' mean counts."""

    def __init__(self, hidden: int, size: int):
        super().__init__()
        self.lstm = LSTM(2 * hidden, size, batch_first=True)

    def forward(self, states: TeacherForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        sentence = masked_mean(states.hidden, words).unsqueeze(1).expand_as(states.hidden)
        rows, _ = self.lstm(torch.cat([states.hidden, sentence], dim=-1))
        return Reconstruction(rows, words, frames.shape[1], per_frame=False)


class LocalReconstructor(nn.Module):
    """The local reconstructor (eq. 9 to 11): an LSTM over frames whose last state attends to the decoder's states, its input."""

    def __init__(self, hidden: int, size: int, attention: int):
        super().__init__()
        self.attention = AdditiveAttention(hidden, size, attention)
        self.cell = LSTMCell(hidden, size)

    def forward(self, states: TeacherForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        caption = self.attention.prepare(Memory(states.hidden, words, states.hidden[:, 0]))
        rows = _frame_by_frame(self.cell, frames, lambda _, last: self.attention(last, caption)[0])
        return Reconstruction(rows, frames, frames.shape[1], per_frame=True)


class TransposedReconstructor(nn.Module):
    """A local reconstructor without attention of its own (Table 6): the decoder's attention to frame t for word i is the
    weight of word i for frame t. Over the words of a caption these weights need not sum to 1."""

    def __init__(self, hidden: int, size: int):
        super().__init__()
        self.cell = LSTMCell(hidden, size)

    def forward(self, states: TeacherForcedStates, words: Tensor, frames: Tensor) -> Reconstruction:
        assert states.attention is not None  # the options refuse a base without attention
        weights = states.attention * words.unsqueeze(-1)
        contexts = torch.bmm(weights.transpose(1, 2), states.hidden)
        rows = _frame_by_frame(self.cell, frames, lambda t, _: contexts[:, t])
        return Reconstruction(rows, frames, frames.shape[1], per_frame=True)


def _frame_by_frame(cell: nn.LSTMCell, frames: Tensor, context: Callable[[int, Tensor], Tensor]) -> Tensor:
    """frames (N, T); context(t, last state (N, D)) -> (N, H) -> the states (N, T, D).

    An invalid frame leaves the state as it is, wherever it is: padding may come between features joined in time."""
    hidden = memory = cell.weight_ih.new_zeros(len(frames), cell.hidden_size)
    rows = []
    for t, valid in enumerate(frames.unsqueeze(-1).unbind(1)):
        new_hidden, new_memory = cell(context(t, hidden), (hidden, memory))
        hidden, memory = torch.where(valid, new_hidden, hidden), torch.where(valid, new_memory, memory)
        rows.append(hidden)
    return torch.stack(rows, dim=1)
