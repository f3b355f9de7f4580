"""The few types that captioners, losses and search pass to each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Batch:
    """B videos and N captions of them.

    features: name -> (B, T, D) float32; masks: name -> (B, T) bool, True where a row is real (all False: the feature is
    missing for that video). tokens: (N, L) int64 as BOS w1 .. wn EOS PAD..; owner: (N,) int64, the row of the video that
    each caption belongs to; weights: (N,) float32 or None. tokens and owner are None when only features are wanted."""

    video_ids: tuple[str, ...]
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    tokens: Tensor | None = None
    owner: Tensor | None = None
    caption_ids: tuple[str, ...] = ()
    weights: Tensor | None = None

    def to(self, device: str) -> Batch:
        features = {k: v.to(device, non_blocking=True) for k, v in self.features.items()}
        masks = {k: v.to(device, non_blocking=True) for k, v in self.masks.items()}
        tokens, owner, weights = (x if x is None else x.to(device) for x in (self.tokens, self.owner, self.weights))
        return replace(self, features=features, masks=masks, tokens=tokens, owner=owner, weights=weights)


@dataclass(frozen=True)
class Memory:
    """What an encoder tells a decoder: tokens (B, T, H), mask (B, T), summary (B, H), and extras by name (B, ...)."""

    tokens: Tensor
    mask: Tensor
    summary: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)

    def select(self, rows: Tensor) -> Memory:
        """The memory of the given rows (repeats allowed): rows (N,) -> a Memory of N."""
        extras = {k: v.index_select(0, rows) for k, v in self.extras.items()}
        return Memory(
            self.tokens.index_select(0, rows),
            self.mask.index_select(0, rows),
            self.summary.index_select(0, rows),
            extras,
        )


@dataclass(frozen=True)
class Decoded:
    """Captions a search produced, best first for each video.

    tokens (B, K, L) without BOS, ending in EOS then PAD; log_probs (B, K) summed over the caption; attention
    (B, K, L, T) or None. A place that no caption could fill has log-probability -inf and only PAD."""

    tokens: Tensor
    log_probs: Tensor
    attention: Tensor | None = None


class Encoder(Protocol):
    """Features in, Memory out."""

    def __call__(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory: ...


class Decoder(Protocol):
    """One step at a time; `state` is a tuple of (N, ...) tensors so that search can reorder it by rows."""

    def prepare(self, memory: Memory) -> Memory:
        """The memory plus, in its extras, what depends on it alone (attention keys), so that it is computed once."""
        ...

    def start(self, memory: Memory) -> State: ...

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T) or None."""
        ...

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V)."""
        ...
