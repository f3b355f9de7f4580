"""The few types that captioners, losses and decoding pass to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Batch:
    """B videos and N captions of them.

    features: name -> (B, T, D) float32; masks: name -> (B, T) bool, True where a row is valid (all False: the video lacks
    the feature). tokens: (N, L) int64 as BOS w1 .. wn EOS PAD..; video_index: (N,) int64, the row of each caption's video;
    weights: (N,) float32 or None. tokens and video_index are None in a batch of features only."""

    video_ids: tuple[str, ...]
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    tokens: Tensor | None = None
    video_index: Tensor | None = None
    caption_ids: tuple[str, ...] = ()
    weights: Tensor | None = None

    def to(self, device: str) -> Batch:
        features = {k: v.to(device, non_blocking=True) for k, v in self.features.items()}
        masks = {k: v.to(device, non_blocking=True) for k, v in self.masks.items()}
        optional = (self.tokens, self.video_index, self.weights)
        tokens, video_index, weights = (x if x is None else x.to(device) for x in optional)
        return replace(self, features=features, masks=masks, tokens=tokens, video_index=video_index, weights=weights)


@dataclass(frozen=True)
class Memory:
    """An encoder's output: tokens (B, T, H), mask (B, T), summary (B, H), and extras by name (B, ...)."""

    tokens: Tensor
    mask: Tensor
    summary: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)

    def select(self, rows: Tensor) -> Memory:
        """The memory of the given rows (repeats allowed): rows (N,) -> a Memory of N."""
        return self._map(lambda x: x.index_select(0, rows))

    def first(self, n: int) -> Memory:
        """The memory of the first n rows."""
        return self._map(lambda x: x[:n])

    def with_extras(self, **extras: Tensor) -> Memory:
        return replace(self, extras={**self.extras, **extras})

    def _map(self, of: Callable[[Tensor], Tensor]) -> Memory:
        extras = {name: of(x) for name, x in self.extras.items()}
        return Memory(of(self.tokens), of(self.mask), of(self.summary), extras)


@dataclass(frozen=True)
class Decoded:
    """Captions that a search or a sampler produced, best first for each video.

    tokens (B, K, L) without BOS, ending in EOS then PAD; log_probs (B, K) summed over the caption; attention
    (B, K, L, T) or None. Where there are fewer than K captions, log_probs is -inf and tokens are PAD."""

    tokens: Tensor
    log_probs: Tensor
    attention: Tensor | None = None


class Encoder(Protocol):
    """Features in, Memory out."""

    def __call__(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory: ...


class Decoder(Protocol):
    """One step at a time; `state` is a tuple of (N, ...) tensors so that a beam search can reorder its rows."""

    def prepare(self, memory: Memory) -> Memory:
        """The memory plus, in its extras, what depends on it alone (attention keys), so that it is computed once."""
        ...

    def start(self, memory: Memory) -> State: ...

    def step(
        self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T) or None. With `wanted` (W,) the logits
        are those of these rows only, (W, V)."""
        ...

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `valid` (N, L-1) only
        at the R positions it marks, (R, V): the output layer is most of the work, and most of a batch is padding."""
        ...


@dataclass(frozen=True)
class TeacherForcedStates:
    """A decoder's states in a teacher-forced pass: hidden (N, L-1, H), from which tokens 1 .. L-1 are predicted, and the
    attention (N, L-1, T) of these steps, or None. Both may be zero at padding."""

    hidden: Tensor
    attention: Tensor | None = None


@runtime_checkable
class DecoderWithStates(Decoder, Protocol):
    """A decoder whose teacher-forced pass also returns the states that a reconstructor reads."""

    def teacher_forced_states(
        self, tokens: Tensor, memory: Memory, valid: Tensor | None = None
    ) -> tuple[Tensor, TeacherForcedStates]: ...
