"""The log-likelihood of tokens, for all losses on words: torch's cross_entropy with fewer passes over the logits."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from models.layers.words import padded_rows

_BLOCK = 2**18  # logits that stay in a core's cache while they are worked on


def token_log_likelihood(
    logits: Tensor, tokens: Tensor, smoothing: float = 0.0, temperature: float = 1.0, excluded: tuple[int, ...] = ()
) -> Tensor:
    """logits (R, V), tokens (R,) -> log p(token) (R,), with p = softmax(logits / temperature) over all but the excluded tokens.

    With smoothing e it is 1 - e of that, and e of the mean log p over the vocabulary; then nothing may be excluded."""
    likelihood: Tensor = _TokenLogLikelihood.apply(logits, tokens, smoothing, temperature, excluded)
    return likelihood


class _TokenLogLikelihood(torch.autograd.Function):
    """Works on blocks of rows; the gradient is laid out as the output layer wants it."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, smoothing: float, temperature: float, excluded: tuple[int, ...]
    ) -> Tensor:
        ctx.smoothing, ctx.policy = smoothing, (temperature, list(excluded))
        ctx.save_for_backward(logits, tokens)
        result = logits.new_empty(len(logits))
        for rows, scaled in _blocks(logits, *ctx.policy):
            log_probs = torch.log_softmax(scaled, 1)
            torch.gather(log_probs, 1, tokens[rows].unsqueeze(1), out=result[rows].unsqueeze(1))
            if smoothing:
                result[rows].lerp_(log_probs.mean(1), smoothing)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, tokens = ctx.saved_tensors
        scale, result = (gradient / ctx.policy[0]).unsqueeze(1), padded_rows(logits, *logits.shape)
        for rows, scaled in _blocks(logits, *ctx.policy):
            probabilities = torch.softmax(scaled, 1)
            if ctx.smoothing:
                probabilities -= ctx.smoothing / logits.shape[1]
            torch.mul(probabilities, -scale[rows], out=result[rows])
        result.scatter_add_(1, tokens.unsqueeze(1), (1 - ctx.smoothing) * scale)
        return result, None, None, None, None


def _blocks(logits: Tensor, temperature: float, excluded: list[int]) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows, all in one on a GPU, and their logits as the softmax takes them."""
    R, V = logits.shape
    size = max(1, _BLOCK // V) if logits.is_cpu else max(R, 1)
    for first in range(0, R, size):
        rows = slice(first, first + size)
        scaled = logits[rows]
        if temperature != 1 or excluded:
            scaled = scaled / temperature
            for token in excluded:  # one by one: a list would be sent to a GPU each time
                scaled[:, token] = -torch.inf
        yield rows, scaled
