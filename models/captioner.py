"""A captioner: an encoder and a decoder, at times a reconstructor, and the teacher-forced pass over a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from models.captioners.recnet.reconstructors import Reconstruction, Reconstructor
from models.decoding.scheduled_sampling import Own, mixed_words
from models.layers.lstm_decoder import DecoderWithStates, ForcedStates
from models.types import PAD, Batch, Decoder, Encoder, Memory

_T = TypeVar("_T")


@dataclass(frozen=True)
class Forced:
    """A teacher-forced pass over N captions with R real tokens, EOS included.

    logits (R, V) and words (R,), those that were to be said; real (N, L-1) says where they stand; memory of N; states
    are the decoder's, kept when the captioner has a reconstructor."""

    logits: Tensor
    words: Tensor
    real: Tensor
    memory: Memory
    states: ForcedStates | None


class Captioner(nn.Module):
    """Encodes videos and says how likely captions of them are. Searches drive `decoder` step by step."""

    encoder: Encoder
    decoder: Decoder
    reconstructor: Reconstructor | None

    def __init__(self, encoder: Encoder, decoder: Decoder, reconstructor: Reconstructor | None = None):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.reconstructor = reconstructor
        self._kept: dict[Hashable, tuple[Batch, Any]] | None = None

    def encode(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        """features name -> (B, T, D), masks name -> (B, T) -> Memory of B, ready for the decoder."""
        return self.decoder.prepare(self.encoder(features, masks))

    def forward(self, batch: Batch) -> Tensor:
        """B videos with N captions of L tokens -> log-probabilities (N, L-1, V) of tokens 1 .. L-1 given those before.

        A video is encoded once, however many captions it has."""
        return torch.log_softmax(self.decoder.forced(*self._prepared(batch)).float(), dim=-1)

    def word_logits(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> tuple[Tensor, Tensor]:
        """The same pass at the R real tokens only, EOS included: logits (R, V) and the tokens (R,).

        With `truth` below 1 the words fed are mixed with the captioner's own (`models.decoding.scheduled_sampling`);
        those to be said stay the true ones."""
        said = self.forced_pass(batch, truth, own)
        return said.logits, said.words

    def forced_pass(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> Forced:
        """`word_logits` and what a reconstructor needs to know of the pass."""
        return self._once("forced", batch, truth, own, lambda: self._force(batch, truth, own))

    def rebuilt(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> Reconstruction:
        """The rows of the videos as the reconstructor imagines them from each caption."""
        reconstructor = self.reconstructor
        if reconstructor is None:
            raise ValueError("this captioner has no reconstructor: train one of kind recnet, or leave the term out")

        def make() -> Reconstruction:
            said = self.forced_pass(batch, truth, own)
            assert said.states is not None
            return reconstructor(said.states, said.real, said.memory.mask)

        return self._once("rebuilt", batch, truth, own, make)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Inside, a pass over the same batch is made once, for all who ask for it. The weights must not change inside."""
        outer, self._kept = self._kept, {}
        try:
            yield
        finally:
            self._kept = outer

    def _once(self, what: str, batch: Batch, truth: float, own: Own, make: Callable[[], _T]) -> _T:
        if self._kept is None:
            return make()
        key = (what, id(batch), truth, own, self.training, torch.is_grad_enabled())
        if key not in self._kept:
            self._kept[key] = (batch, make())  # the batch is kept too, so that no other gets its id
        found: _T = self._kept[key][1]
        return found

    def _force(self, batch: Batch, truth: float, own: Own) -> Forced:
        tokens, memory = self._prepared(batch)
        real = tokens[:, 1:] != PAD
        fed = tokens if truth >= 1 else mixed_words(self.decoder, tokens, memory, truth, own)
        states = None
        if self.reconstructor is None:
            logits = self.decoder.forced(fed, memory, real)
        else:
            if not isinstance(self.decoder, DecoderWithStates):
                raise TypeError(
                    f"a {type(self.decoder).__name__} does not return the states that a reconstructor reads"
                )
            logits, states = self.decoder.forced_states(fed, memory, real)
        return Forced(logits.float(), tokens[:, 1:][real], real, memory, states)

    def _prepared(self, batch: Batch) -> tuple[Tensor, Memory]:
        """The captions' tokens (N, L) and the memory of each caption's video."""
        if batch.tokens is None or batch.owner is None:
            raise ValueError(
                f"the batch of {', '.join(batch.video_ids[:3])}... has no captions to force: it was made for features only"
            )
        return batch.tokens, self.encode(batch.features, batch.masks).select(batch.owner)


def wanted_sizes(names: tuple[str, ...], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of the features that a captioner reads, in its order."""
    missing = [name for name in names if name not in sizes]
    if missing:
        raise ValueError(
            f"the captioner reads features {', '.join(missing)} that are not there; "
            f"there are {', '.join(sorted(sizes)) or 'none'}: extract them or change the captioner's features"
        )
    return {name: sizes[name] for name in names}
