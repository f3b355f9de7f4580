"""Which word comes next: what a caption may say at a place, drawing one word by chance, ranking many.

Everything here works on all rows at once and on each row by itself: no row's answer depends on its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.types import BOS, EOS, PAD, UNK

_PIECE = 32  # scores of which the maximum is taken first, where a few of many are looked for


@dataclass(frozen=True)
class Rules:
    """What captions may say. A caption has at most `max_length` words; the place after them is for EOS alone.

    prefix: (B, P) the words that each video's caption begins with, filled with PAD behind shorter ones."""

    max_length: int
    allow_unk: bool = False
    block_trigrams: bool = False
    prefix: Tensor | None = None

    def log_probs(self, logits: Tensor, said: Tensor, videos: Tensor) -> Tensor:
        """logits (N, V), said (N, t) the words so far, videos (N,) whose caption each row is -> log-probabilities
        (N, V), the captioner's own, with -inf for what may not be said in place t."""
        own = torch.log_softmax(logits.float(), dim=-1)
        place = said.shape[1]
        if place == self.max_length:
            return _only(own, torch.full_like(videos, EOS))
        allowed = own.clone() if self.prefix is not None else own
        allowed[:, [PAD, BOS] if self.allow_unk else [PAD, BOS, UNK]] = -torch.inf
        if self.block_trigrams and place >= 3:
            allowed.scatter_(1, third_words(said), -torch.inf)
        if self.prefix is None or place >= self.prefix.shape[1]:
            return allowed
        forced = self.prefix[videos, place]
        return torch.where((forced != PAD).unsqueeze(1), _only(own, forced), allowed)


def check_prefix(prefix: Tensor | None, videos: int, max_length: int, device: torch.device) -> Tensor | None:
    """A prefix (P,) of all captions, or one of each video (B, P) -> (B, P), or None where there is none."""
    if prefix is None or not prefix.shape[-1]:
        return None
    rows = prefix.to(device).expand(videos, -1)
    if rows.shape[1] > max_length:
        raise ValueError(
            f"a prefix of {rows.shape[1]} words does not fit into captions of at most {max_length}; raise max_length"
        )
    after_a_gap = ((rows == PAD).cumsum(1) > 0) & (rows != PAD)
    if bool(((rows == BOS) | (rows == EOS) | after_a_gap).any()):
        raise ValueError("a prefix holds words alone, without BOS or EOS, and PAD only behind them")
    return rows


def third_words(said: Tensor) -> Tensor:
    """said (N, t), t >= 3 -> (N, t-2): the words that would complete a trigram said before; PAD where there is none."""
    again = (said[:, :-2] == said[:, -2:-1]) & (said[:, 1:-1] == said[:, -1:])
    return torch.where(again & (said[:, 2:] != EOS), said[:, 2:], PAD)


def draw(log_probs: Tensor, chance: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """log_probs (N, V), chance (N,) even in [0, 1) -> one token a row (N,).

    The chances alone decide: one number a row, so that what a row draws depends neither on the others nor on V."""
    probs = torch.softmax(log_probs / temperature, dim=-1)
    if top_p < 1:
        probs = nucleus(probs, top_p)
    mass = probs.cumsum(-1)
    total = mass[:, -1:].contiguous()
    token = torch.searchsorted(mass, chance.to(mass).unsqueeze(1) * total, right=True)
    # Rounding can carry a chance near 1 to the total itself: then it is the last token that has any probability.
    return torch.minimum(token, torch.searchsorted(mass, total)).squeeze(1)


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """probs (N, V) -> those of the fewest most likely tokens that together reach `top_p`, 0 for the others.

    The most likely token stays whatever `top_p` is."""
    ordered, places = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    kept[:, 0] = ordered[:, 0]
    return torch.zeros_like(probs).scatter_(1, places, kept)


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """scores (B, J) float32 -> the k largest of each row and where they are; of equals the leftmost comes first."""
    values, places = _largest(scores, min(k + 1, scores.shape[1]))
    if values.shape[1] > k:
        # torch.topk leaves open which of equals it takes; with -inf nobody minds.
        last, beyond = values[:, k - 1], values[:, k]
        if bool(((last == beyond) & (last > -torch.inf)).any()):
            return _top_by_key(scores, k)
        places = places[:, :k]
    places = places.sort(dim=1).values
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk, several times faster for few of many: the k largest are in the k pieces with the largest maxima."""
    J = scores.shape[1]
    pieces = J // _PIECE
    if pieces < 4 * k:
        return torch.topk(scores, k, dim=1)
    cut = scores[:, : pieces * _PIECE].unflatten(1, (pieces, _PIECE))
    chosen = torch.topk(cut.amax(2), k, dim=1, sorted=False).indices
    inside = torch.arange(_PIECE, device=scores.device)
    rest = torch.arange(pieces * _PIECE, J, device=scores.device).expand(len(scores), -1)
    places = torch.cat([(chosen.unsqueeze(2) * _PIECE + inside).flatten(1), rest], 1)
    values, order = torch.topk(scores.gather(1, places), k, dim=1)
    return values, places.gather(1, order)


def _top_by_key(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same for any scores, several times slower. A float's bits, read as an integer, keep its order once the negative
    half is mirrored; with the place in the lower half no two keys are equal."""
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 makes -0.0 and 0.0 the same
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    places = torch.arange(scores.shape[1], device=scores.device)
    keys = (ordered << 32) | (scores.shape[1] - 1 - places)
    where = torch.topk(keys, k, dim=1).indices
    return scores.gather(1, where), where


def _only(log_probs: Tensor, token: Tensor) -> Tensor:
    """log_probs (N, V), token (N,) -> -inf for all but that token of each row."""
    place = token.unsqueeze(1)
    return torch.full_like(log_probs, -torch.inf).scatter_(1, place, log_probs.gather(1, place))
