"""Attention of a decoder over the rows of a Memory, and its masked softmax."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from models.types import Memory

_BLOCK = 2**19  # numbers that are worked on in turn: they stay in a core's cache


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """scores (..., T), mask (..., T) -> weights (..., T) that sum to 1 over the valid entries, all 0 if there are none."""
    floor = torch.finfo(scores.dtype).min  # not -inf: a row without valid entries must not become NaN
    return torch.softmax(scores.masked_fill(~mask, floor), dim=-1) * mask


class AttentionSoftmax(nn.Module):
    """`masked_softmax` of an attention module, named after what it attends to; it can drop a share of the weights, from 0 to 1
    (G2L, Fig. 6)."""

    drop_share = 0.0

    def __init__(self, over: str = "rows"):
        super().__init__()
        self.over = over

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        weights = masked_softmax(scores, mask)
        return drop_smallest(weights, mask, self.drop_share) if self.drop_share else weights


@contextmanager
def dropping_smallest_weights(model: nn.Module, share: float, over: str | None = None) -> Iterator[None]:
    """Inside, every attention of `model`, or the one over `over` alone, drops that share of its weights, the smallest first."""
    softmaxes = [x for x in model.modules() if isinstance(x, AttentionSoftmax) and over in (None, x.over)]
    for softmax in softmaxes:
        softmax.drop_share = share
    try:
        yield
    finally:
        for softmax in softmaxes:
            softmax.drop_share = 0.0


def attention_modules(model: nn.Module) -> list[str]:
    """What the attentions of a model attend to, by name."""
    return list(dict.fromkeys(module.over for module in model.modules() if isinstance(module, AttentionSoftmax)))


def drop_smallest(weights: Tensor, mask: Tensor, share: float) -> Tensor:
    """weights (..., T), mask (..., T) -> weights (..., T), zero for `share` of the valid entries, rounded down: the
    smallest, and of equals the last ones. The others sum to 1 again."""
    order = weights.masked_fill(~mask, -1.0).argsort(dim=-1, descending=True, stable=True)
    valid = mask.sum(-1, keepdim=True)
    kept = valid - torch.floor(share * valid + 1e-3)  # 0.53 x 100 are 53
    first = (torch.arange(mask.shape[-1], device=mask.device) < kept).expand_as(mask)
    left = weights * torch.zeros_like(mask).scatter(-1, order, first)
    return left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)


Read = Callable[[Tensor, Memory], tuple[Tensor, Tensor | None]]


class Attention(Protocol):
    """What a decoder asks at each step: hidden (N, H), memory of N -> context (N, M), weights (N, T) or None."""

    def prepare(self, memory: Memory) -> Memory: ...

    def __call__(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor | None]: ...


class UnrolledAttention(Attention, Protocol):
    """An attention that a recurrence can unroll."""

    def unrolled(self) -> Read:
        """The same for all steps of a teacher-forced pass, each over the first rows of the first step's memory: the gradient
        of this memory is computed once, for all steps."""
        ...


class AdditiveAttention(nn.Module):
    """Soft attention over time (RecNet eq. 3 to 5): e_j = w . tanh(W_v v_j + W_h h + b).

    Since tanh(x) = 2 sigmoid(2x) - 1 and a softmax ignores what is added to all its inputs, e_j is computed as
    2 w . sigmoid(2x): torch's sigmoid is six times as fast as its tanh, which would take a tenth of a beam search."""

    def __init__(self, memory: int, hidden: int, attention: int):
        super().__init__()
        self.from_memory = nn.Linear(memory, attention)
        self.from_hidden = nn.Linear(hidden, attention, bias=False)
        self.score = nn.Linear(attention, 1, bias=False)
        self.softmax = AttentionSoftmax()

    def prepare(self, memory: Memory) -> Memory:
        return memory.with_extras(keys=2 * self.from_memory(memory.tokens))

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        query = 2 * self.from_hidden(hidden).unsqueeze(1)
        scores = 2 * self.score((memory.extras["keys"] + query).sigmoid_()).squeeze(-1)
        weights = self.softmax(scores, memory.mask)
        return weighted_sum(weights, memory.tokens), weights

    def unrolled(self) -> Read:
        noted: _Noted | None = None
        after_all: Tensor

        def read(hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
            nonlocal noted, after_all
            if noted is None:
                read_from = memory.extras["keys"], memory.tokens, self.score.weight.squeeze(0)
                noted = _Noted(*(x.detach() for x in read_from))
                after_all = _MemoryGradient.apply(*read_from, noted)
            scores = 2 * _Scores.apply(2 * self.from_hidden(hidden), after_all, noted)
            weights = self.softmax(scores, memory.mask)
            return _WeightedSum.apply(weights, after_all, noted), weights

        return read


class _Noted:
    """What the steps of an unrolled attention share: keys (N, T, A), rows (N, T, D), the weight (A,) of the scores; and what
    their backward passes note for the gradients of these three."""

    def __init__(self, keys: Tensor, rows: Tensor, weight: Tensor):
        self.keys, self.rows, self.weight = keys, rows, weight.to(keys.dtype)  # under autocast keys are of half precision
        self.keys_gradient: Tensor | None = None
        self.weight_gradient = torch.zeros_like(weight)
        self.sums: list[tuple[Tensor, Tensor]] = []  # of each step, weights (n, T) and the gradient of their context (n, D)

    def sigmoids(self, query: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """query (n, A) -> blocks of rows, and sigmoid(key + query) of each: on a CPU, as many as its cache holds."""
        size = max(1, _BLOCK // self.keys[0].numel()) if query.is_cpu else len(query)
        for first in range(0, len(query), size):
            rows = slice(first, min(first + size, len(query)))
            yield rows, (self.keys[rows] + query[rows].unsqueeze(1)).sigmoid_()


class _MemoryGradient(torch.autograd.Function):
    """Its result is a zero that every step depends on, so its backward pass comes after theirs."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, rows: Tensor, weight: Tensor, noted: _Noted) -> Tensor:
        ctx.noted = noted
        return keys.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        noted: _Noted = ctx.noted
        N, T, D = noted.rows.shape
        weights = noted.rows.new_zeros(N, len(noted.sums), T)
        contexts = noted.rows.new_zeros(N, len(noted.sums), D)
        for step, (of_rows, gradient) in enumerate(noted.sums):
            weights[: len(of_rows), step], contexts[: len(of_rows), step] = of_rows, gradient
        rows = torch.bmm(weights.transpose(1, 2), contexts)
        keys = None if noted.keys_gradient is None else noted.keys_gradient * noted.weight
        return keys, rows, noted.weight_gradient, None


class _Scores(torch.autograd.Function):
    """query (n, A) -> scores (n, T): weight . sigmoid(key + query), over the first n of the keys."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, after_all: Tensor, noted: _Noted) -> Tensor:
        ctx.noted, ctx.after_all = noted, after_all
        ctx.save_for_backward(query)
        scores = query.new_empty(len(query), noted.keys.shape[1])
        for rows, sigmoid in noted.sigmoids(query):
            torch.matmul(sigmoid, noted.weight, out=scores[rows])
        return scores

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        noted: _Noted = ctx.noted
        (query,) = ctx.saved_tensors
        of_query = torch.empty_like(query)
        if noted.keys_gradient is None:
            noted.keys_gradient = torch.zeros_like(noted.keys)
        for rows, sigmoid in noted.sigmoids(query):  # to compute them again costs less than to keep them
            noted.weight_gradient += sigmoid.flatten(0, 1).t() @ gradient[rows].flatten()
            slope = sigmoid.addcmul_(sigmoid, sigmoid, value=-1)
            noted.keys_gradient[rows].addcmul_(slope, gradient[rows].unsqueeze(-1))  # times the weight, in the end
            torch.bmm(gradient[rows].unsqueeze(1), slope, out=of_query[rows].unsqueeze(1))
        return of_query * noted.weight, torch.zeros_like(ctx.after_all), None


class _WeightedSum(torch.autograd.Function):
    """weights (n, T) -> their sum of the first n of the rows (n, D)."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, after_all: Tensor, noted: _Noted) -> Tensor:
        ctx.noted, ctx.after_all = noted, after_all
        ctx.save_for_backward(weights)
        return weighted_sum(weights, noted.rows[: len(weights)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        noted: _Noted = ctx.noted
        (weights,) = ctx.saved_tensors
        noted.sums.append((weights.detach(), gradient))  # without their graph, which holds `noted` itself
        rows = noted.rows[: len(gradient)].to(gradient.dtype)
        of_weights = torch.bmm(gradient.unsqueeze(1), rows.transpose(1, 2)).squeeze(1)
        return of_weights, torch.zeros_like(ctx.after_all), None


class MeanContext(nn.Module):
    """No attention: every step reads the mean of the rows (MP-LSTM)."""

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def unrolled(self) -> Read:
        return self

    def forward(self, hidden: Tensor, memory: Memory) -> tuple[Tensor, None]:
        return memory.summary, None


def weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """weights (N, T), rows (N, T, D) -> (N, D)."""
    return torch.bmm(weights.unsqueeze(1), rows).squeeze(1)
