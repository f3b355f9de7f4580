"""Searching for captions: greedy, beam and sampling, batched over videos and hypotheses.

A caption has at most `max_length` words and is then closed by EOS, so results always have L = max_length + 1 places.
Scores are the captioner's own log-probabilities, EOS included, whatever tokens a search refuses or is told to say. Dropout
and other noise are the caller's business: put the captioner in eval mode first (`models.training.loop.undisturbed`).
Ties go to the better-ranked hypothesis, then to the lower token id, so no result depends on the device or the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field, model_validator
from torch import Tensor

from models.captioner import Captioner
from models.decoding.token_selection import Rules, check_prefix, draw, top
from models.options import Options
from models.types import BOS, EOS, PAD, Decoded, Memory, State

_CROWDED = 0.85  # part of the rows that must still be of use; else the others are dropped, which copies the memory


class SearchOptions(Options):
    """How captions are looked for."""

    width: int = Field(5, ge=1)
    """Hypotheses kept a video at each step; 1 is greedy search."""
    max_length: int = Field(20, ge=1)
    """Most words of a caption."""
    length_penalty: float = Field(0.0, ge=0)
    """Captions are ranked by log-probability / tokens**penalty; 0 ranks by the plain sum."""
    n_best: int = Field(1, ge=1)
    """Captions returned a video, best first."""
    allow_unk: bool = False
    """Whether a caption may contain the unknown word."""
    block_trigrams: bool = False
    """Whether three words in a row may be said only once in a caption."""

    @model_validator(mode="after")
    def _enough_hypotheses(self) -> SearchOptions:
        if self.n_best > self.width:
            raise ValueError(f"n_best {self.n_best} is more than the {self.width} hypotheses of width: raise width")
        return self


def search(
    captioner: Captioner,
    features: dict[str, Tensor],
    masks: dict[str, Tensor],
    options: SearchOptions,
    prefix: Tensor | None = None,
    attention: bool = True,
) -> Decoded:
    """features name -> (B, T, D), masks name -> (B, T) -> the n_best captions of each video.

    prefix: words that captions begin with, (P,) for all videos or (B, P) filled with PAD. Without `attention` none is kept."""
    how = options.max_length, options.allow_unk, options.block_trigrams
    if options.width == 1:
        return greedy(captioner, features, masks, *how, prefix, attention)
    width, penalty, n_best = options.width, options.length_penalty, options.n_best
    return beam(captioner, features, masks, how[0], width, penalty, n_best, *how[1:], prefix, attention)


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
    """The most likely word at each step: tokens (B, 1, L)."""
    memory = captioner.encode(features, masks)
    rules = _rules(memory, max_length, allow_unk, block_trigrams, prefix)
    return _roll_out(captioner, memory, rules, 1, attention, lambda log_probs, rows, t: log_probs.argmax(-1))


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
    """`n` captions a video drawn from the captioner in one pass: tokens (B, n, L), in the order drawn.

    Words are drawn at `temperature`, among the fewest most likely ones that together reach `top_p`; log_probs are the
    captioner's own, of temperature 1 and of all words. All chances are drawn first, video by video, so a generator gives
    the same captions to the same videos however they are batched, on any device."""
    if not temperature > 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature {temperature} must be above 0, and top_p {top_p} above 0 and at most 1")
    memory = captioner.encode(features, masks)
    rules = _rules(memory, max_length, allow_unk, block_trigrams, prefix)
    place = "cpu" if generator is None else generator.device
    chances = torch.rand(len(memory.mask) * n, max_length + 1, generator=generator, device=place)
    chances = chances.to(memory.mask.device)

    def choose(log_probs: Tensor, rows: Tensor, t: int) -> Tensor:
        return draw(log_probs, chances[rows, t], temperature, top_p)

    return _roll_out(captioner, memory, rules, n, attention, choose)


def _roll_out(
    captioner: Captioner,
    memory: Memory,
    rules: Rules,
    n: int,
    attention: bool,
    choose: Callable[[Tensor, Tensor, int], Tensor],
) -> Decoded:
    """`n` independent captions of each video of the memory; `choose` takes log-probabilities (R, V), the captions' numbers
    (R,) and the place t, and returns tokens (R,)."""
    B, L, device = len(memory.mask), rules.max_length + 1, memory.mask.device
    rows = torch.arange(B * n, device=device)  # the captions at work, R of all B*n
    memory = memory.select(rows // n)
    state = captioner.decoder.start(memory)
    token = torch.full_like(rows, BOS)
    running = torch.ones_like(rows, dtype=torch.bool)
    tokens = torch.full((B * n, L), PAD, device=device)
    scores = torch.zeros(B * n, device=device)
    seen: Tensor | None = None
    for t in range(L):
        logits, state, weights = captioner.decoder.step(token, state, memory)
        log_probs = rules.log_probs(logits, tokens[rows, :t], rows // n)
        token = choose(log_probs, rows, t)
        scores[rows] += torch.where(running, log_probs.gather(1, token.unsqueeze(1)).squeeze(1), 0.0)
        tokens[rows, t] = torch.where(running, token, PAD)
        if attention and weights is not None:
            seen = weights.new_zeros(B * n, L, weights.shape[1]) if seen is None else seen
            seen[rows, t] = weights * running.unsqueeze(1)
        running &= token != EOS
        left = int(running.sum())
        if not left:
            break
        if left <= _CROWDED * len(rows):
            keep = running.nonzero().squeeze(1)
            memory, state = memory.select(keep), _select(state, keep)
            rows, token, running = rows[keep], token[keep], running[keep]
    return Decoded(tokens.view(B, n, L), scores.view(B, n), None if seen is None else seen.view(B, n, L, -1))


@torch.no_grad()
def beam(
    captioner: Captioner,
    features: dict[str, Tensor],
    masks: dict[str, Tensor],
    max_length: int,
    width: int,
    length_penalty: float = 0.0,
    n_best: int = 1,
    allow_unk: bool = False,
    block_trigrams: bool = False,
    prefix: Tensor | None = None,
    attention: bool = False,
) -> Decoded:
    """The `n_best` finished captions of a beam of `width` hypotheses: tokens (B, n_best, L).

    At each step the continuations of all hypotheses are ranked; those that end and rank among the first `width` are
    finished, and the first `width` of the others go on. A video is done when no running hypothesis can still beat its
    finished ones; that rule is exact, so videos that wait for others in their batch keep the same captions. By the same rule
    hypotheses are left behind, and cost no step any more."""
    encoded = captioner.encode(features, masks)
    rules = _rules(encoded, max_length, allow_unk, block_trigrams, prefix)
    B, K, L, device = len(encoded.mask), width, max_length + 1, encoded.mask.device
    found = torch.full((B, n_best, L), PAD, device=device)
    found_scores = torch.full((B, n_best), -torch.inf, device=device)
    ranking = found_scores.clone()
    found_attention: Tensor | None = None

    videos = torch.arange(B, device=device)  # those at work, A of all B
    rows = videos * K  # the hypotheses that get a step, R of all A*K; all K start alike, so one of each is enough
    memory, state = encoded, captioner.decoder.start(encoded)
    token = torch.full((B,), BOS, device=device)
    scores = torch.full((B, K), -torch.inf, device=device)
    scores[:, 0] = 0.0
    tokens = torch.full((B, K, L), PAD, device=device)
    seen: Tensor | None = None  # attention so far (A, K, L, T)
    for t in range(L):
        logits, state, weights = captioner.decoder.step(token, state, memory)
        A, V = len(videos), logits.shape[1]
        log_probs = rules.log_probs(logits, tokens.view(A * K, L)[rows, :t], videos[rows // K])
        if attention and weights is not None:
            if seen is None or found_attention is None:
                seen = weights.new_zeros(A, K, L, weights.shape[1])
                found_attention = weights.new_zeros(B, n_best, L, weights.shape[1])
            seen.view(A * K, L, -1)[rows, t] = weights

        # At most one continuation of each hypothesis ends, so the best 2K always hold K that go on. They are among the best
        # 2K of each hypothesis, which are far fewer than all words.
        J = min(2 * K, V)
        best, words = top(log_probs, J)
        best = _spread(scores.view(-1, 1)[rows] + best, rows, A * K, -torch.inf).view(A, K * J)
        words = _spread(words, rows, A * K, PAD).view(A, K * J)
        totals, places = top(best, min(2 * K, K * J))
        parent, word = places // J, words.gather(1, places)
        grown = _rows(tokens, parent)
        grown[:, :, t] = word
        ended = word == EOS
        counts = ended & (torch.arange(word.shape[1], device=device) < K)
        ranks = (totals / (t + 1) ** length_penalty).masked_fill(~counts, -torch.inf)
        ranking[videos], keep = top(torch.cat([ranking[videos], ranks], 1), n_best)
        found_scores[videos] = torch.cat([found_scores[videos], totals], 1).gather(1, keep)
        found[videos] = _rows(torch.cat([found[videos], grown], 1), keep)
        if seen is not None and found_attention is not None:
            found_attention[videos] = _rows(torch.cat([found_attention[videos], _rows(seen, parent)], 1), keep)

        go_on = torch.sort(ended.to(torch.uint8), dim=1, stable=True).indices[:, :K]
        scores = totals.gather(1, go_on).masked_fill(ended.gather(1, go_on), -torch.inf)
        # One that cannot beat the finished ones cannot lead to one that does, nor keep such a one from the first 2K.
        alive = scores / L**length_penalty > ranking[videos, -1:]
        stepped = torch.zeros(A * K, dtype=torch.bool, device=device).index_fill_(0, rows, True).view(A, K)
        left, missing = torch.stack([alive.sum(), (alive & ~stepped).sum()]).tolist()
        if not left:
            break
        parent, tokens, word = parent.gather(1, go_on), _rows(grown, go_on), word.gather(1, go_on)
        seen = None if seen is None else _rows(seen, parent)
        row_of = torch.zeros(A * K, dtype=torch.int64, device=device)
        row_of[rows] = torch.arange(len(rows), device=device)
        before = row_of[torch.arange(A, device=device).unsqueeze(1) * K + parent]
        if missing or left <= _CROWDED * len(rows):
            at = alive.any(1).nonzero().squeeze(1)
            videos, scores, tokens, before, word = videos[at], scores[at], tokens[at], before[at], word[at]
            seen = None if seen is None else seen[at]
            rows = alive[at].view(-1).nonzero().squeeze(1)
            memory = encoded.select(videos[rows // K])
        token, state = word.reshape(-1)[rows], _select(state, before.reshape(-1)[rows])
    empty = ranking == -torch.inf
    if found_attention is not None:
        found_attention[empty] = 0.0
    return Decoded(
        found.masked_fill(empty.unsqueeze(2), PAD), found_scores.masked_fill(empty, -torch.inf), found_attention
    )


def _rules(memory: Memory, max_length: int, allow_unk: bool, block_trigrams: bool, prefix: Tensor | None) -> Rules:
    begin = check_prefix(prefix, len(memory.mask), max_length, memory.mask.device)
    return Rules(max_length, allow_unk, block_trigrams, begin)


def _select(state: State, rows: Tensor) -> State:
    return tuple(part.index_select(0, rows) for part in state)


def _spread(x: Tensor, rows: Tensor, places: int, fill: float) -> Tensor:
    """x (R, J), rows (R,) rising -> (places, J), `fill` where there is no row."""
    if len(rows) == places:
        return x
    return x.new_full((places, x.shape[1]), fill).index_copy_(0, rows, x)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x (B, J, ...), index (B, K) -> (B, K, ...)."""
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:]))
