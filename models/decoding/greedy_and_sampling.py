"""Greedy decoding and sampling, batched over videos. For captions, scores and dropout see `models.decoding.beam_search`."""

from collections.abc import Callable

import torch
from torch import Tensor

from models.captioner import Captioner
from models.decoding.logits_processing import LogitsProcessor, sample_token
from models.layers.recurrent import worth_dropping_rows
from models.types import BOS, EOS, PAD, Decoded, Memory


@torch.no_grad()
def greedy(
    captioner: Captioner,
    features: dict[str, Tensor],
    masks: dict[str, Tensor],
    max_length: int,
    allow_unk: bool = False,
    block_trigrams: bool = False,
    prefix: Tensor | None = None,
    attention: bool = False,
) -> Decoded:
    """The most likely token at each step: tokens (B, 1, L)."""
    memory = captioner.encode(features, masks)
    processor = LogitsProcessor.of(memory, max_length, allow_unk, block_trigrams, prefix)
    return _generate(captioner, memory, processor, 1, attention, lambda log_probs, rows, t: log_probs.argmax(-1))


@torch.no_grad()
def sample(
    captioner: Captioner,
    features: dict[str, Tensor],
    masks: dict[str, Tensor],
    max_length: int,
    n: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    allow_unk: bool = False,
    top_p: float = 1.0,
    block_trigrams: bool = False,
    prefix: Tensor | None = None,
    attention: bool = False,
) -> Decoded:
    """`n` captions per video sampled from the captioner in one pass: tokens (B, n, L), in the order drawn.

    Tokens are drawn at `temperature`, among the fewest most likely ones that together reach `top_p`; log_probs are the
    captioner's own, of temperature 1 and of all tokens. All random numbers are drawn first, video by video, so a
    generator gives the same captions to the same videos however they are batched, on any device."""
    if not temperature > 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature {temperature} must be above 0, and top_p {top_p} above 0 and at most 1")
    memory = captioner.encode(features, masks)
    processor = LogitsProcessor.of(memory, max_length, allow_unk, block_trigrams, prefix)
    device = "cpu" if generator is None else generator.device
    uniforms = torch.rand(len(memory.mask) * n, max_length + 1, generator=generator, device=device)
    uniforms = uniforms.to(memory.mask.device, non_blocking=True)

    def choose(log_probs: Tensor, rows: Tensor, t: int) -> Tensor:
        return sample_token(log_probs, uniforms[rows, t], temperature, top_p)

    return _generate(captioner, memory, processor, n, attention, choose)


def _generate(
    captioner: Captioner,
    memory: Memory,
    processor: LogitsProcessor,
    n: int,
    attention: bool,
    choose: Callable[[Tensor, Tensor, int], Tensor],
) -> Decoded:
    """`n` independent captions of each video of the memory; `choose` takes log-probabilities (R, V), the indices (R,) of
    the captions and the position t, and returns tokens (R,)."""
    B, L, device = len(memory.mask), processor.max_length + 1, memory.mask.device
    rows = torch.arange(B * n, device=device)  # the captions not dropped yet, R of all B*n
    memory = memory.select(rows // n)
    state = captioner.decoder.start(memory)
    token = torch.full_like(rows, BOS)
    running = torch.ones_like(rows, dtype=torch.bool)
    tokens = torch.full((B * n, L), PAD, device=device)
    scores = torch.zeros(B * n, device=device)
    maps: Tensor | None = None  # attention (B*n, L, T)
    for t in range(L):
        logits, state, weights = captioner.decoder.step(token, state, memory)
        log_probs = processor.log_probs(logits, tokens[rows, :t], rows // n)
        token = choose(log_probs, rows, t)
        scores[rows] += torch.where(running, log_probs.gather(1, token.unsqueeze(1)).squeeze(1), 0.0)
        tokens[rows, t] = torch.where(running, token, PAD)
        if attention and weights is not None:
            maps = weights.new_zeros(B * n, L, weights.shape[1]) if maps is None else maps
            maps[rows, t] = weights * running.unsqueeze(1)
        running &= token != EOS
        active = int(running.sum())
        if not active:
            break
        if rows.is_cpu and worth_dropping_rows(active, len(rows)):  # on a GPU every step has the same shapes
            keep = running.nonzero().squeeze(1)
            memory, state = memory.select(keep), tuple(x.index_select(0, keep) for x in state)
            rows, token, running = rows[keep], token[keep], running[keep]
    return Decoded(tokens.view(B, n, L), scores.view(B, n), None if maps is None else maps.view(B, n, L, -1))
