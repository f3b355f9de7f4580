"""The LSTM's and the GRU's equations, one step at a time, for decoders whose gates have more inputs than torch's cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def lstm_step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """gates (N, 4H) before their nonlinearities, in torch's order; cell (N, H) -> hidden (N, H) and cell (N, H)."""
    i, f, g, o = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def gru_step(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> Tensor:
    """Gates (N, 3H) from the input and from the hidden state, in torch's order; hidden (N, H) -> hidden (N, H)."""
    r, z, n = from_input.chunk(3, dim=-1)
    hidden_r, hidden_z, hidden_n = from_hidden.chunk(3, dim=-1)
    n = torch.tanh(n + torch.sigmoid(r + hidden_r) * hidden_n)
    return n + torch.sigmoid(z + hidden_z) * (hidden - n)


def open_forget_gate(bias: Tensor) -> None:
    """Start the forget gate open, so that a fresh LSTM remembers: bias (4H,) in torch's order of gates."""
    hidden = len(bias) // 4
    with torch.no_grad():
        bias[hidden : 2 * hidden] = 1.0


def one_weight_gradient(linear: nn.Linear, added_to: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Apply `linear` (no bias) at every step of a recurrence, but compute its weight's gradient once, for all steps.

    added_to (P, G): what the result of every step is added to, step after step. Returns it, and the function to call
    instead of `linear`. The gradient of a sum is that of its terms, so when the gradient of `added_to` has come back
    from all steps, the weight's is one product instead of one per step, each with a sum over the whole weight."""
    inputs: list[Tensor] = []

    def apply(x: Tensor) -> Tensor:
        inputs.append(x.detach())
        return nn.functional.linear(x, linear.weight.detach())

    return _WeightGradient.apply(added_to, linear.weight, inputs), apply


class _WeightGradient(torch.autograd.Function):
    """Identity in the forward pass; in the backward pass the gradient of `weight` from the inputs of all steps."""

    @staticmethod
    def forward(ctx: Any, added_to: Tensor, weight: Tensor, inputs: list[Tensor]) -> Tensor:
        ctx.inputs, ctx.dtype = inputs, weight.dtype
        return added_to.view_as(added_to)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        inputs = torch.cat(ctx.inputs).to(gradient.dtype)
        return gradient, (gradient.t() @ inputs).to(ctx.dtype), None
