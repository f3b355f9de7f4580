"""Beam search, batched over videos and hypotheses; and `search`, which is greedy decoding for a beam of one.

A caption has at most `max_length` words and is then closed by EOS, so results always have L = max_length + 1 positions.
Scores are the captioner's own log-probabilities, EOS included, whatever tokens are not allowed or given by a prefix.
Dropout is up to the caller: put the captioner in eval mode first (`models.training.loop.undisturbed`). Ties go to the
better-ranked hypothesis, then to the lower token id, so no result depends on the device or the batch."""

from __future__ import annotations

import torch
from pydantic import Field, model_validator
from torch import Tensor

from models.captioner import Captioner
from models.decoding.greedy_and_sampling import greedy
from models.decoding.logits_processing import LogitsProcessor
from models.layers.recurrent import worth_dropping_rows
from models.layers.top_k import stable_top_k
from models.options import Options
from models.types import BOS, EOS, PAD, Decoded


class SearchOptions(Options):
    """How captions are decoded."""

    width: int = Field(5, ge=1)
    """Hypotheses kept per video at each step; 1 is greedy decoding."""
    max_length: int = Field(20, ge=1)
    """Most words of a caption."""
    length_penalty: float = Field(0.0, ge=0)
    """Captions are ranked by log-probability / tokens**penalty; 0 ranks by the plain sum."""
    n_best: int = Field(1, ge=1)
    """Captions returned per video, best first."""
    allow_unk: bool = False
    """Whether a caption may contain the unknown word."""
    block_trigrams: bool = False
    """Whether a caption may hold the same three words in a row only once."""

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
    o = options
    rules = o.allow_unk, o.block_trigrams, prefix, attention
    if o.width == 1:
        return greedy(captioner, features, masks, o.max_length, *rules)
    return beam(captioner, features, masks, o.max_length, o.width, o.length_penalty, o.n_best, *rules)


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
    finished ones; that rule is exact, so videos that wait for others in their batch keep the same captions. By the same
    rule single hypotheses are dropped, and cost no further step."""
    encoded = captioner.encode(features, masks)
    processor = LogitsProcessor.of(encoded, max_length, allow_unk, block_trigrams, prefix)
    B, K, L, device = len(encoded.mask), width, max_length + 1, encoded.mask.device
    finished = torch.full((B, n_best, L), PAD, device=device)
    finished_scores = torch.full((B, n_best), -torch.inf, device=device)
    ranking = finished_scores.clone()
    finished_maps: Tensor | None = None

    videos = torch.arange(B, device=device)  # the videos not done, A of all B
    # The hypotheses that get a step, R of all A*K. All K start alike, so one of each is enough; on a GPU all get every step, so
    # that each has the same shapes and none waits to know which hypotheses are left.
    on_cpu = encoded.mask.is_cpu
    rows = videos * K if on_cpu else torch.arange(B * K, device=device)
    memory = encoded if on_cpu else encoded.select(rows // K)
    state, token = captioner.decoder.start(memory), torch.full_like(rows, BOS)
    scores = torch.full((B, K), -torch.inf, device=device)
    scores[:, 0] = 0.0
    tokens = torch.full((B, K, L), PAD, device=device)
    maps: Tensor | None = None  # attention so far (A, K, L, T)
    for t in range(L):
        logits, state, weights = captioner.decoder.step(token, state, memory)
        A, V = len(videos), logits.shape[1]
        log_probs = processor.log_probs(logits, tokens.view(A * K, L)[rows, :t], videos[rows // K])
        if attention and weights is not None:
            if maps is None or finished_maps is None:
                maps = weights.new_zeros(A, K, L, weights.shape[1])
                finished_maps = weights.new_zeros(B, n_best, L, weights.shape[1])
            maps.view(A * K, L, -1)[rows, t] = weights

        # At most one continuation of each hypothesis ends, so the best 2K always hold K that go on. They are among the
        # best 2K of each hypothesis, which are far fewer than all tokens.
        J = min(2 * K, V)
        best, candidates = stable_top_k(log_probs, J)
        best = _unpack(scores.view(-1, 1)[rows] + best, rows, A * K, -torch.inf).view(A, K * J)
        candidates = _unpack(candidates, rows, A * K, PAD).view(A, K * J)
        totals, index = stable_top_k(best, min(2 * K, K * J))
        parent, word = index // J, candidates.gather(1, index)
        grown = _rows(tokens, parent)
        grown[:, :, t] = word
        ended = word == EOS
        counts = ended & (torch.arange(word.shape[1], device=device) < K)
        ranks = (totals / (t + 1) ** length_penalty).masked_fill(~counts, -torch.inf)
        ranking[videos], keep = stable_top_k(torch.cat([ranking[videos], ranks], 1), n_best)
        finished_scores[videos] = torch.cat([finished_scores[videos], totals], 1).gather(1, keep)
        finished[videos] = _rows(torch.cat([finished[videos], grown], 1), keep)
        if maps is not None and finished_maps is not None:
            finished_maps[videos] = _rows(torch.cat([finished_maps[videos], _rows(maps, parent)], 1), keep)

        go_on = torch.sort(ended.to(torch.uint8), dim=1, stable=True).indices[:, :K]
        scores = totals.gather(1, go_on).masked_fill(ended.gather(1, go_on), -torch.inf)
        # One that cannot beat the finished ones cannot lead to one that does, nor keep such a one from the first 2K.
        alive = scores / L**length_penalty > ranking[videos, -1:]
        stepped = torch.zeros(A * K, dtype=torch.bool, device=device).index_fill_(0, rows, True).view(A, K)
        active, missing = torch.stack([alive.sum(), (alive & ~stepped).sum()]).tolist()  # all at once: one wait for a GPU
        if not active:
            break
        parent, tokens, word = parent.gather(1, go_on), _rows(grown, go_on), word.gather(1, go_on)
        maps = None if maps is None else _rows(maps, parent)
        row_of = torch.zeros(A * K, dtype=torch.int64, device=device)
        row_of[rows] = torch.arange(len(rows), device=device)
        before = row_of[torch.arange(A, device=device).unsqueeze(1) * K + parent]
        if on_cpu and (missing or worth_dropping_rows(active, len(rows))):
            at = alive.any(1).nonzero().squeeze(1)
            videos, scores, tokens, before, word = videos[at], scores[at], tokens[at], before[at], word[at]
            maps = None if maps is None else maps[at]
            rows = alive[at].view(-1).nonzero().squeeze(1)
            memory = encoded.select(videos[rows // K])
        token, before = word.reshape(-1)[rows], before.reshape(-1)[rows]
        state = tuple(x.index_select(0, before) for x in state)
    empty = ranking == -torch.inf
    if finished_maps is not None:
        finished_maps[empty] = 0.0
    tokens = finished.masked_fill(empty.unsqueeze(2), PAD)
    return Decoded(tokens, finished_scores.masked_fill(empty, -torch.inf), finished_maps)


def _unpack(x: Tensor, rows: Tensor, count: int, fill: float) -> Tensor:
    """x (R, J), rows (R,) rising -> (count, J), `fill` where there is no row."""
    if len(rows) == count:
        return x
    return x.new_full((count, x.shape[1]), fill).index_copy_(0, rows, x)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x (B, J, ...), index (B, K) -> (B, K, ...)."""
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand(-1, -1, *x.shape[2:]))
