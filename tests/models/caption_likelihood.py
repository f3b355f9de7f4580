"""Log-probabilities of given captions by the plain pass over all positions: what decoding and losses are held against."""

from __future__ import annotations

import torch
from torch import Tensor

from models.captioner import Captioner
from models.types import PAD, Batch


def token_log_probs(captioner: Captioner, batch: Batch) -> Tensor:
    """B videos with N captions of L tokens -> log p (N, L-1) of tokens 1 .. L-1 given those before, 0 at PAD."""
    assert batch.tokens is not None
    targets = batch.tokens[:, 1:]
    log_probs = captioner(batch).gather(2, targets.unsqueeze(2)).squeeze(2)
    return torch.where(targets != PAD, log_probs, 0.0)


@torch.no_grad()
def caption_log_probs(
    captioner: Captioner, features: dict[str, Tensor], masks: dict[str, Tensor], tokens: Tensor, video_index: Tensor
) -> Tensor:
    """tokens (N, L) as BOS w1 .. wn EOS PAD.., video_index (N,) -> log p(caption | video) (N,), EOS included."""
    return token_log_probs(captioner, Batch((), features, masks, tokens, video_index)).sum(1)
