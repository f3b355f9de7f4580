"""Recurrences of decoders: the LSTM's and the GRU's equations, one step at a time, for gates that have more inputs than torch's
cells; and `Unrolling`, which runs steps over captions of different lengths, so that few are spent on padding."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from models.types import Memory, State, ValidTokens

_Output = TypeVar("_Output", bound=tuple)
Step = Callable[[Tensor, State, Memory], _Output]
Start = Callable[[Memory], State]
_GROUPS = 4  # of captions by their length: more would make small products of them


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """gates (N, 4H) before their nonlinearities, in torch's order; cell (N, H) -> hidden (N, H) and cell (N, H), in float32:
    what a cell adds up over the steps would drown in bfloat16."""
    i, f, g, o = gates.float().chunk(4, dim=-1)
    cell = torch.sigmoid(f) * cell.float() + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> Tensor:
    """Gates (N, 3H) from the input and from the hidden state, in torch's order; hidden (N, H) -> hidden (N, H), in
    float32 as those of an LSTM."""
    r, z, n = from_input.float().chunk(3, dim=-1)
    hidden_r, hidden_z, hidden_n = from_hidden.float().chunk(3, dim=-1)
    n = torch.tanh(n + torch.sigmoid(r + hidden_r) * hidden_n)
    return n + torch.sigmoid(z + hidden_z) * (hidden - n)


class LSTM(nn.LSTM):
    """nn.LSTM, in float32 under autocast too."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return _in_float32(super().forward, input, hx)


class GRU(nn.GRU):
    """nn.GRU, in float32 under autocast too."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return _in_float32(super().forward, input, hx)


class LSTMCell(nn.LSTMCell):
    """nn.LSTMCell, in float32 under autocast too."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return _in_float32(super().forward, input, hx)


def _in_float32(forward: Callable[..., Any], input: Any, state: Any) -> Any:
    """`forward` of tensors, or of a PackedSequence, without autocast."""
    device = input.data.device.type
    if not torch.is_autocast_enabled(device):
        return forward(input, state)
    with torch.autocast(device, enabled=False):
        packed = input._replace(data=input.data.float()) if isinstance(input, PackedSequence) else input.float()
        return forward(packed, tuple(x.float() for x in state) if isinstance(state, tuple) else state)


def open_forget_gate(bias: Tensor) -> None:
    """Start the forget gate open, so that a fresh LSTM remembers: bias (4H,) in torch's order of gates."""
    hidden = len(bias) // 4
    with torch.no_grad():
        bias[hidden : 2 * hidden] = 1.0


def one_weight_gradient(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    """`linear`, to be applied at every step of a recurrence: the gradient of its weight is computed once, for all steps.

    It is one product, when the gradients of all steps have come back, instead of one per step, each with a sum over the whole
    weight."""
    steps: list[tuple[Tensor, Tensor]] = []
    after_all = _WeightGradient.apply(linear.weight, linear.bias, steps)
    bias = None if linear.bias is None else linear.bias.detach()

    def apply(x: Tensor) -> Tensor:
        y = nn.functional.linear(x, linear.weight.detach(), bias)
        applied: Tensor = _NoteGradient.apply(y, after_all, x.detach(), steps)
        return applied

    return apply


class _WeightGradient(torch.autograd.Function):
    """Its result is a zero that every step depends on, so its backward pass comes after theirs: `steps` then holds the input
    and the gradient of the output of each."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.steps, ctx.bias = steps, bias is not None
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        inputs, gradients = map(torch.cat, zip(*ctx.steps, strict=True))
        weight = gradients.t() @ inputs.to(gradients.dtype)
        return weight, gradients.sum(0) if ctx.bias else None, None


class _NoteGradient(torch.autograd.Function):
    """Identity; the backward pass notes the gradient that comes through."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, after_all: Tensor, x: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.x, ctx.steps, ctx.after_all = x, steps, after_all
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ctx.steps.append((ctx.x, gradient))
        return gradient, torch.zeros_like(ctx.after_all), None, None


def lstm_where_valid(lstm: nn.LSTM, inputs: Tensor, valid: ValidTokens) -> Tensor:
    """One layer over captions: inputs (N, S, X), valid (N, S) -> hidden (R, H) of the valid positions, caption after caption.
    Captions go through it in groups of similar length, each no further than its longest."""
    host, device = valid.host, inputs.device
    lengths = host.sum(1)
    numbers = (host.flatten().cumsum(0) - 1).view_as(host)  # of the valid positions, 0 .. R-1
    hidden, positions = [], []
    for rows in lengths.argsort(descending=True, stable=True).chunk(_GROUPS):
        longest = max(1, int(lengths[rows[0]]))
        there = ValidTokens(host[rows, :longest], device)
        captions = inputs.index_select(0, rows.to(device, non_blocking=True))[:, :longest]
        hidden.append(there.select(lstm(captions)[0]))
        positions.append(numbers[rows, :longest][there.host])
    order = torch.cat(positions).argsort()
    return torch.cat(hidden).index_select(0, order.to(device, non_blocking=True))


def worth_dropping_rows(active: int, rows: int) -> bool:
    """Whether so few rows of a batch are still active that it is worth copying them out: below 85 %."""
    return active <= 0.85 * rows


class Unrolling:
    """Which of N captions take part in each of S steps. Packed tensors have P rows, step after step, the longest captions first:
    all valid positions, and some padding not worth dropping. All indices are found on the CPU and sent to the device."""

    def __init__(self, valid: ValidTokens):
        N, S = self._shape = valid.host.shape
        order = torch.argsort(valid.host.sum(1), descending=True, stable=True)
        self.counts: list[int] = []  # captions that take part in each step
        rows = N
        for active in valid.host.sum(0).tolist():
            rows = active if worth_dropping_rows(active, rows) else rows
            self.counts.append(rows)
        takes_part = torch.tensor(self.counts).unsqueeze(1) > torch.arange(N)
        positions = (order * S + torch.arange(S).unsqueeze(1))[takes_part]
        packed = torch.empty(N * S, dtype=torch.int64)
        packed[positions] = torch.arange(len(positions))
        packed = packed[valid.host.flatten()]
        sent = (x.to(valid.device, non_blocking=True) for x in (order, positions, packed))
        self._order, self._positions, self._packed = sent  # (N,); (P,) of N*S; (R,) of P

    def pack(self, x: Tensor) -> Tensor:
        """x (N, S, X) -> (P, X)."""
        return x.flatten(0, 1).index_select(0, self._positions)

    def valid(self, x: Tensor) -> Tensor:
        """x (P, X) -> (R, X): the valid positions, caption after caption."""
        return x.index_select(0, self._packed)

    def unpack(self, x: Tensor) -> Tensor:
        """x (P, X) -> (N, S, X), zero where no step was taken."""
        N, S = self._shape
        return x.new_zeros(N * S, x.shape[1]).index_copy(0, self._positions, x).view(N, S, -1)

    def run(self, step: Step[_Output], inputs: Tensor, memory: Memory, start: Start) -> Iterator[_Output]:
        """inputs (P, X) packed, memory of N. Yields for every step what `step` returns, whose first item is the state."""
        memory = memory.select(self._order)
        state = start(memory)
        for now in inputs.split(self.counts):
            if not len(now):
                return
            if len(now) < len(memory.mask):
                memory, state = memory.first(len(now)), tuple(x[: len(now)] for x in state)
            output = step(now, state, memory)
            state = output[0]
            yield output
