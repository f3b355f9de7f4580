"""The few types that captioners, losses and decoding pass to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Batch:
    """B videos and N captions of them.

    features: name -> (B, T, D) float32, or float16 on their way to a GPU; masks: name -> (B, T) bool, True where a row is valid
    (all False: the video lacks the feature). tokens: (N, L) int64 as BOS w1 .. wn EOS PAD..; video_index: (N,) int64, the row
    of each caption's video; weights: (N,) float32 or None. tokens and video_index are None in a batch of features only."""

    video_ids: tuple[str, ...]
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    tokens: Tensor | None = None
    video_index: Tensor | None = None
    caption_ids: tuple[str, ...] = ()
    weights: Tensor | None = None
    host_tokens: Tensor | None = None
    """tokens as they are on the CPU, for a batch on a GPU: who asks for lengths need not wait for it"""

    def to(self, device: str) -> Batch:
        """The batch on a device, its features as float32; those of a GPU may come as float16, which is half to send."""
        moved = self._map(lambda x: x.to(device, non_blocking=True))
        features = {name: x.float() for name, x in moved.features.items()}
        return replace(moved, features=features, host_tokens=self.tokens if self.host_tokens is None else self.host_tokens)

    def pin_memory(self) -> Batch:
        """The batch in memory that a GPU copies from without making the host wait."""
        return self._map(Tensor.pin_memory)

    def _map(self, of: Callable[[Tensor], Tensor]) -> Batch:
        features, masks = ({name: of(x) for name, x in part.items()} for part in (self.features, self.masks))
        tokens, video_index, weights = (x if x is None else of(x) for x in (self.tokens, self.video_index, self.weights))
        return replace(self, features=features, masks=masks, tokens=tokens, video_index=video_index, weights=weights)

    @property
    def valid(self) -> ValidTokens | None:
        """The targets of teacher forcing: all tokens but BOS and PAD."""
        if self.tokens is None:
            return None
        host = self.tokens.cpu() if self.host_tokens is None else self.host_tokens
        return ValidTokens(host[:, 1:] != PAD, self.tokens.device)


@dataclass(frozen=True)
class ValidTokens:
    """Which of S positions of N captions hold tokens: `host` (N, S) on the CPU, True up to the end of each, so that their number
    R and their indices are known without waiting for a GPU."""

    host: Tensor
    device: torch.device

    @cached_property
    def mask(self) -> Tensor:
        """(N, S) on the device"""
        return self.host.to(self.device, non_blocking=True)

    @cached_property
    def indices(self) -> Tensor:
        """(R,) on the device, in the flattened mask"""
        return self.host.flatten().nonzero().squeeze(1).to(self.device, non_blocking=True)

    def select(self, x: Tensor) -> Tensor:
        """x (N, S, ...) -> (R, ...), caption after caption."""
        return x.flatten(0, 1).index_select(0, self.indices)

    @classmethod
    def all_of(cls, tokens: Tensor) -> ValidTokens:
        """Every position of tokens (N, S), PAD too."""
        return cls(torch.ones(tokens.shape, dtype=torch.bool), tokens.device)

    def repeat(self, times: int) -> ValidTokens:
        """All captions so many times, one round after the other."""
        return ValidTokens(self.host.repeat(times, 1), self.device)


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

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
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
        self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None
    ) -> tuple[Tensor, TeacherForcedStates]: ...
