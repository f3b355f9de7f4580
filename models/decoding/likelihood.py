"""How likely given captions are: of a caption as a whole, and word by word with gradients, as policy gradients want it.

A search gives no gradients. Its captions are turned into a batch (`sampled_batch`) and forced through the captioner once
more (`token_log_probs`), all words at a time; `chosen` says which of them the captioner was free to choose."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from models.captioner import Captioner
from models.types import BOS, PAD, Batch, Decoded

_BUDGET = 256 << 20  # bytes of logits and copies of the memory at a time


def sampled_batch(batch: Batch, decoded: Decoded) -> Batch:
    """The batch of B videos with the captions (B, K, L) that a search found for them: tokens (B*K, L+1), BOS first."""
    B, K, L = decoded.tokens.shape
    said = decoded.tokens.reshape(B * K, L)
    tokens = torch.cat([torch.full_like(said[:, :1], BOS), said], dim=1)
    owner = torch.arange(B, device=said.device).repeat_interleave(K)
    return replace(batch, tokens=tokens, owner=owner, caption_ids=(), weights=None)


def chosen(said: Tensor, prefix: Tensor | None = None) -> Tensor:
    """Tokens (..., L) of a search -> (..., L) True where the captioner chose the token: not behind its EOS, not the EOS
    that closes a caption of full length, and not a prefix ((P,) or, for (B, K, L), (B, P)) that it was told to say."""
    free = said != PAD
    free[..., -1] = False  # the last place is for EOS alone
    if prefix is not None:
        told = prefix.to(said.device) != PAD
        free[..., : told.shape[-1]] &= ~(told if told.dim() == 1 else told.unsqueeze(1))
    return free


def token_log_probs(captioner: Captioner, batch: Batch) -> Tensor:
    """B videos with N captions of L tokens -> log p (N, L-1) of tokens 1 .. L-1 given those before, 0 at PAD.

    Gradients flow. Logits are made for real tokens only, and no step is taken behind the longest caption."""
    if batch.tokens is None:
        raise ValueError("the batch has no captions; `sampled_batch` puts those of a search into it")
    tokens = batch.tokens[:, 1:]
    real = tokens != PAD
    longest = int(real.any(0).sum())
    if longest < real.shape[1]:
        batch = replace(batch, tokens=batch.tokens[:, : longest + 1])
    logits, _ = captioner.word_logits(batch)
    return _spread(logits, tokens, real)


@torch.no_grad()
def caption_log_probs(
    captioner: Captioner, features: dict[str, Tensor], masks: dict[str, Tensor], tokens: Tensor, owner: Tensor
) -> Tensor:
    """features name -> (B, T, D), masks name -> (B, T), tokens (N, L) as BOS w1 .. wn EOS PAD.., owner (N,) the row of the
    video -> log p(caption | video) (N,) with EOS, for any number of captions: those of like length go together, as many
    as a fixed budget of memory allows. Put the captioner in eval mode first."""
    memory = captioner.encode(features, masks)
    row = sum(part[0].nbytes for part in (memory.tokens, memory.mask, memory.summary, *memory.extras.values()))
    found = torch.zeros(len(tokens), device=memory.mask.device)
    lengths = (tokens != PAD).sum(1)
    order = torch.argsort(lengths, descending=True, stable=True)
    one = memory.select(owner[:1])
    logits, _, _ = captioner.decoder.step(torch.full_like(owner[:1], BOS), captioner.decoder.start(one), one)
    word = 16 * logits.numel()  # bytes of one word's logits and of what becomes of them
    start = 0
    while start < len(tokens):
        length = int(lengths[order[start]])
        if length < 2:
            break
        some = order[start : start + max(1, _BUDGET // (row + length * word))]
        start += len(some)
        said = tokens[some, :length]
        real = said[:, 1:] != PAD
        logits = captioner.decoder.forced(said, memory.select(owner[some]), real).float()
        found[some] = _spread(logits, said[:, 1:], real).sum(1)
    return found


def _spread(logits: Tensor, tokens: Tensor, real: Tensor) -> Tensor:
    """logits (R, V) of the real ones of tokens (N, L), real (N, L) -> log p of each token (N, L), 0 where it is not real."""
    log_probs = -nn.functional.cross_entropy(logits, tokens[real], reduction="none")
    return log_probs.new_zeros(real.shape).masked_scatter(real, log_probs)
