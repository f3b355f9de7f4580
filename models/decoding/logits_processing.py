"""From logits to the next token, row by row: which tokens are allowed at a step, and sampling one of them."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from models.types import BOS, EOS, PAD, UNK, Memory


@dataclass(frozen=True)
class LogitsProcessor:
    """Which tokens captions may hold. A caption has at most `max_length` words; the position after them is EOS.

    prefix: (B, P) the words that each video's caption begins with, padded with PAD."""

    max_length: int
    allow_unk: bool = False
    block_trigrams: bool = False
    prefix: Tensor | None = None

    @classmethod
    def of(cls, memory: Memory, max_length: int, unk: bool, block_trigrams: bool, prefix: Tensor | None) -> Self:
        """For the videos of a memory; prefix: (P,) of all captions, or (B, P), one for each video."""
        prefix = check_prefix(prefix, len(memory.mask), max_length, memory.mask.device)
        return cls(max_length, unk, block_trigrams, prefix)

    def log_probs(self, logits: Tensor, tokens: Tensor, video_index: Tensor) -> Tensor:
        """logits (N, V), tokens (N, t) so far, video_index (N,) of each row -> the captioner's own log-probabilities
        (N, V), with -inf for tokens that are not allowed at position t."""
        own = torch.log_softmax(logits.float(), dim=-1)
        position = tokens.shape[1]
        if position == self.max_length:
            return _only(own, torch.full_like(video_index, EOS))
        allowed = own.clone() if self.prefix is not None else own
        for token in (PAD, BOS) if self.allow_unk else (PAD, BOS, UNK):  # one by one: a list would be sent to a GPU each time
            allowed[:, token] = -torch.inf
        if self.block_trigrams and position >= 3:
            allowed.scatter_(1, repeated_trigram_ends(tokens), -torch.inf)
        if self.prefix is None or position >= self.prefix.shape[1]:
            return allowed
        given = self.prefix[video_index, position]
        return torch.where((given != PAD).unsqueeze(1), _only(own, given), allowed)


def check_prefix(prefix: Tensor | None, videos: int, max_length: int, device: torch.device) -> Tensor | None:
    """A prefix (P,) of all captions, or one of each video (B, P) -> (B, P), or None where there is none."""
    if prefix is None or not prefix.shape[-1]:
        return None
    rows = prefix.to(device).expand(videos, -1)
    if rows.shape[1] > max_length:
        words = f"a prefix of {rows.shape[1]} words"
        raise ValueError(f"{words} does not fit into captions of at most {max_length}; raise max_length")
    after_a_gap = ((rows == PAD).cumsum(1) > 0) & (rows != PAD)
    if bool(((rows == BOS) | (rows == EOS) | after_a_gap).any()):
        raise ValueError("a prefix holds words alone, without BOS or EOS, and PAD only behind them")
    return rows


def repeated_trigram_ends(tokens: Tensor) -> Tensor:
    """tokens (N, t), t >= 3 -> (N, t-2): the tokens that would repeat a trigram of the caption; PAD where there is none."""
    again = (tokens[:, :-2] == tokens[:, -2:-1]) & (tokens[:, 1:-1] == tokens[:, -1:])
    return torch.where(again & (tokens[:, 2:] != EOS), tokens[:, 2:], PAD)


def sample_token(log_probs: Tensor, uniforms: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
    """log_probs (N, V), uniforms (N,) in [0, 1) -> one token per row (N,).

    One random number per row decides, so a row's sample depends neither on the other rows nor on V."""
    probs = torch.softmax(log_probs if temperature == 1 else log_probs / temperature, dim=-1)
    if top_p < 1:
        probs = nucleus(probs, top_p)
    mass = probs.cumsum_(-1)
    total = mass[:, -1:].contiguous()
    token = torch.searchsorted(mass, uniforms.to(mass).unsqueeze(1) * total, right=True)
    # Rounding can carry a number near 1 to the total itself: then it is the last token that has any probability.
    return torch.minimum(token, torch.searchsorted(mass, total)).squeeze(1)


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """probs (N, V) -> those of the fewest most likely tokens that together reach `top_p`, 0 for the others.

    The most likely token stays whatever `top_p` is."""
    ordered, indices = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    kept[:, 0] = ordered[:, 0]
    return torch.zeros_like(probs).scatter_(1, indices, kept)


def _only(log_probs: Tensor, token: Tensor) -> Tensor:
    """log_probs (N, V), token (N,) -> -inf for all but that token of each row."""
    index = token.unsqueeze(1)
    return torch.full_like(log_probs, -torch.inf).scatter_(1, index, log_probs.gather(1, index))
