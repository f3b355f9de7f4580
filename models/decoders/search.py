"""Searching for captions: greedy, beam and sampling, batched over videos and hypotheses.

A caption has at most `max_length` words and is then closed by EOS, so results always have L = max_length + 1 places.
Scores are the captioner's own log-probabilities, EOS included, whatever tokens a search refuses to say. Dropout and
other noise are the caller's business: put the captioner in eval mode first (`models.training.loop.undisturbed`).
Ties go to the better-ranked hypothesis, then to the lower token id, so no result depends on the device or the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field, model_validator
from torch import Tensor

from models.captioner import Captioner
from models.options import Options
from models.types import BOS, EOS, PAD, UNK, Decoded


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

    @model_validator(mode="after")
    def _enough_hypotheses(self) -> SearchOptions:
        if self.n_best > self.width:
            raise ValueError(f"n_best {self.n_best} is more than the {self.width} hypotheses of width: raise width")
        return self


def search(
    captioner: Captioner, features: dict[str, Tensor], masks: dict[str, Tensor], options: SearchOptions
) -> Decoded:
    """features name -> (B, T, D), masks name -> (B, T) -> the n_best captions of each video."""
    if options.width == 1:
        return greedy(captioner, features, masks, options.max_length, options.allow_unk)
    return beam(
        captioner,
        features,
        masks,
        options.max_length,
        options.width,
        options.length_penalty,
        options.n_best,
        options.allow_unk,
    )


@torch.no_grad()
def greedy(
    captioner: Captioner,
    features: dict[str, Tensor],
    masks: dict[str, Tensor],
    max_length: int,
    allow_unk: bool = False,
) -> Decoded:
    """The most likely word at each step: tokens (B, 1, L)."""
    return _roll_out(captioner, features, masks, max_length, 1, allow_unk, lambda log_probs: log_probs.argmax(-1))


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
) -> Decoded:
    """`n` captions a video drawn from the captioner: tokens (B, n, L), in the order drawn.

    Words are drawn at `temperature`; log_probs are the captioner's own, at temperature 1."""

    def draw(log_probs: Tensor) -> Tensor:
        return torch.multinomial(torch.softmax(log_probs / temperature, -1), 1, generator=generator).squeeze(1)

    return _roll_out(captioner, features, masks, max_length, n, allow_unk, draw)


def _roll_out(
    captioner: Captioner,
    features: dict[str, Tensor],
    masks: dict[str, Tensor],
    max_length: int,
    n: int,
    allow_unk: bool,
    choose: Callable[[Tensor], Tensor],
) -> Decoded:
    """`n` independent captions a video; `choose` takes log-probabilities (B*n, V) and returns tokens (B*n,)."""
    memory = captioner.encode(features, masks)
    B, T = memory.mask.shape
    L, device = max_length + 1, memory.mask.device
    memory = memory.select(torch.arange(B, device=device).repeat_interleave(n))
    state = captioner.decoder.start(memory)
    token = torch.full((B * n,), BOS, device=device)
    running = torch.ones(B * n, dtype=torch.bool, device=device)
    tokens = torch.full((B * n, L), PAD, device=device)
    scores = torch.zeros(B * n, device=device)
    attention = torch.zeros(B * n, L, T, device=device)
    weights: Tensor | None = None
    for t in range(L):
        logits, state, weights = captioner.decoder.step(token, state, memory)
        log_probs = _speakable(logits, last=t == max_length, allow_unk=allow_unk)
        token = choose(log_probs)
        scores += torch.where(running, log_probs.gather(1, token.unsqueeze(1)).squeeze(1), 0.0)
        tokens[:, t] = torch.where(running, token, PAD)
        if weights is not None:
            attention[:, t] = weights * running.unsqueeze(1)
        running &= token != EOS
        if not running.any():
            break
    kept = None if weights is None else attention.view(B, n, L, T)
    return Decoded(tokens.view(B, n, L), scores.view(B, n), kept)


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
) -> Decoded:
    """The `n_best` finished captions of a beam of `width` hypotheses: tokens (B, n_best, L).

    At each step the continuations of all hypotheses are ranked; those that end and rank among the first `width` are
    finished, and the first `width` of the others go on. A video is done when no running hypothesis can still beat its
    finished ones; that rule is exact, so videos that wait for others in their batch keep the same captions."""
    memory = captioner.encode(features, masks)
    B, T = memory.mask.shape
    K, L, device = width, max_length + 1, memory.mask.device
    first_row = torch.arange(B, device=device).unsqueeze(1) * K
    memory = memory.select(torch.arange(B, device=device).repeat_interleave(K))
    state = captioner.decoder.start(memory)
    token = torch.full((B * K,), BOS, device=device)
    scores = torch.full((B, K), -torch.inf, device=device)
    scores[:, 0] = 0.0  # all K start alike: only one of them counts
    tokens = torch.full((B, K, L), PAD, device=device)
    attention = torch.zeros(B, K, L, T, device=device)
    done_tokens, done_attention = tokens[:, :n_best].clone(), attention[:, :n_best].clone()
    done_scores = torch.full((B, n_best), -torch.inf, device=device)
    done_ranking = done_scores.clone()
    weights: Tensor | None = None
    for t in range(L):
        logits, state, weights = captioner.decoder.step(token, state, memory)
        V = logits.shape[1]
        log_probs = _speakable(logits, last=t == max_length, allow_unk=allow_unk)
        if weights is not None:
            attention[:, :, t] = weights.view(B, K, T)
        # At most one continuation of each hypothesis ends, so the best 2K always hold K that go on.
        totals, flat = _top((scores.unsqueeze(2) + log_probs.view(B, K, V)).view(B, K * V), 2 * K)
        parent, word = flat // V, flat % V
        new_tokens, new_attention = _rows(tokens, parent), _rows(attention, parent)
        new_tokens[:, :, t] = word

        ended = word == EOS
        finished = ended & (torch.arange(2 * K, device=device) < K)
        ranking = (totals / (t + 1) ** length_penalty).masked_fill(~finished, -torch.inf)
        done_ranking, keep = _top(torch.cat([done_ranking, ranking], 1), n_best)
        done_scores = torch.cat([done_scores, totals], 1).gather(1, keep)
        done_tokens = _rows(torch.cat([done_tokens, new_tokens], 1), keep)
        done_attention = _rows(torch.cat([done_attention, new_attention], 1), keep)

        go_on = torch.sort(ended.to(torch.uint8), dim=1, stable=True).indices[:, :K]
        scores = totals.gather(1, go_on).masked_fill(ended.gather(1, go_on), -torch.inf)
        if bool((done_ranking[:, -1] >= scores[:, 0] / L**length_penalty).all()):
            break
        tokens, attention = _rows(new_tokens, go_on), _rows(new_attention, go_on)
        token = word.gather(1, go_on).view(-1)
        rows = (first_row + parent.gather(1, go_on)).view(-1)
        state = tuple(part.index_select(0, rows) for part in state)
    done_scores = done_scores.masked_fill(done_ranking == -torch.inf, -torch.inf)
    return Decoded(done_tokens, done_scores, None if weights is None else done_attention)


def _speakable(logits: Tensor, last: bool, allow_unk: bool) -> Tensor:
    """logits (N, V) -> log-probabilities with -inf for what may not be said; in the last place only EOS may."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    if last:
        only = torch.full_like(log_probs, -torch.inf)
        only[:, EOS] = log_probs[:, EOS]
        return only
    log_probs[:, [PAD, BOS] if allow_unk else [PAD, BOS, UNK]] = -torch.inf
    return log_probs


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x (B, J, ...), index (B, K) -> (B, K, ...)."""
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:]))


def _top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """scores (B, J) float32 -> the k largest of each row and where they are; of equals the leftmost comes first.

    torch.topk leaves the order of equals open. A float's bits, read as an integer, keep its order once the negative half
    is mirrored; with the place in the lower half no two keys are equal."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 makes -0.0 and 0.0 the same
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    places = torch.arange(scores.shape[1], device=scores.device)
    keys = (ordered << 32) | (scores.shape[1] - 1 - places)
    where = torch.topk(keys, k, dim=1).indices
    return scores.gather(1, where), where
