"""A captioner: an encoder, a decoder, optionally a reconstructor, and the teacher-forced pass over a batch."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from models.captioners.recnet.reconstructors import Reconstruction, Reconstructor
from models.decoding.scheduled_sampling import Own, mix_tokens
from models.types import Batch, Decoder, DecoderWithStates, Encoder, Memory, TeacherForcedStates

_T = TypeVar("_T")


@dataclass(frozen=True)
class TeacherForced:
    """A teacher-forced pass over N captions with R valid tokens, EOS included: logits (R, V) and the target tokens (R,); valid
    (N, L-1) says where they are; memory of N; states are the decoder's, kept if the captioner has a reconstructor."""

    logits: Tensor
    tokens: Tensor
    valid: Tensor
    memory: Memory
    states: TeacherForcedStates | None


class Captioner(nn.Module):
    """An encoder and a decoder with a teacher-forced pass; searches and samplers drive `decoder` step by step."""

    encoder: Encoder
    decoder: Decoder
    reconstructor: Reconstructor | None

    def __init__(self, encoder: Encoder, decoder: Decoder, reconstructor: Reconstructor | None = None):
        super().__init__()
        self.encoder, self.decoder, self.reconstructor = encoder, decoder, reconstructor
        self._cache: dict[Hashable, tuple[Batch, Any]] | None = None

    def encode(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        """features name -> (B, T, D), masks name -> (B, T) -> Memory of B, ready for the decoder."""
        return self.decoder.prepare(self.encoder(features, masks))

    def forward(self, batch: Batch) -> Tensor:
        """B videos with N captions of L tokens -> log-probabilities (N, L-1, V) of tokens 1 .. L-1 given those before.

        A video is encoded once, however many captions it has."""
        return torch.log_softmax(self.decoder.teacher_forced(*self._prepare(batch)).float(), dim=-1)

    def word_logits(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> tuple[Tensor, Tensor]:
        """The same pass at the R valid tokens only, EOS included: logits (R, V) and the target tokens (R,). With `truth` below
        1 the inputs, not the targets, are mixed with the captioner's own words (`models.decoding.scheduled_sampling`)."""
        output = self.teacher_forced_pass(batch, truth, own)
        return output.logits, output.tokens

    def teacher_forced_pass(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> TeacherForced:
        """`word_logits` and what a reconstructor needs of the pass."""
        return self._once("teacher_forced", batch, truth, own, lambda: self._teacher_forced(batch, truth, own))

    def reconstruct(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> Reconstruction:
        """The rows of the videos as the reconstructor predicts them from each caption."""
        reconstructor = self.reconstructor
        if reconstructor is None:
            raise ValueError("this captioner has no reconstructor: train one of kind recnet, or leave the term out")

        def compute() -> Reconstruction:
            output = self.teacher_forced_pass(batch, truth, own)
            assert output.states is not None
            return reconstructor(output.states, output.valid, output.memory.mask)

        return self._once("reconstruction", batch, truth, own, compute)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Inside, a pass over the same batch is computed once, for all who ask for it. The weights must not change."""
        outer, self._cache = self._cache, {}
        try:
            yield
        finally:
            self._cache = outer

    def _once(self, what: str, batch: Batch, truth: float, own: Own, compute: Callable[[], _T]) -> _T:
        if self._cache is None:
            return compute()
        key = (what, id(batch), truth, own, self.training, torch.is_grad_enabled())
        if key not in self._cache:
            self._cache[key] = (batch, compute())  # the batch is kept too, so that no other gets its id
        cached: _T = self._cache[key][1]
        return cached

    def _teacher_forced(self, batch: Batch, truth: float, own: Own) -> TeacherForced:
        tokens, memory = self._prepare(batch)
        valid = batch.valid
        assert valid is not None
        inputs = tokens if truth >= 1 else mix_tokens(self.decoder, tokens, memory, truth, own)
        states = None
        if self.reconstructor is None:
            logits = self.decoder.teacher_forced(inputs, memory, valid)
        else:
            if not isinstance(self.decoder, DecoderWithStates):
                name = type(self.decoder).__name__
                raise TypeError(f"a {name} does not return the states that a reconstructor reads")
            logits, states = self.decoder.teacher_forced_states(inputs, memory, valid)
        return TeacherForced(logits.float(), valid.select(tokens[:, 1:]), valid.mask, memory, states)

    def _prepare(self, batch: Batch) -> tuple[Tensor, Memory]:
        """The captions' tokens (N, L) and the memory of each caption's video."""
        if batch.tokens is None or batch.video_index is None:
            videos = ", ".join(batch.video_ids[:3])
            raise ValueError(f"the batch of {videos}... has no captions to force: it holds features only")
        return batch.tokens, self.encode(batch.features, batch.masks).select(batch.video_index)


def wanted_sizes(names: tuple[str, ...], sizes: Mapping[str, int], reader: str = "captioner") -> dict[str, int]:
    """The sizes of the features that a captioner reads, in its order."""
    missing = [name for name in names if name not in sizes]
    if missing:
        there = f"there are {', '.join(sorted(sizes)) or 'none'}: extract them or change the {reader}'s features"
        raise ValueError(f"the {reader} reads features {', '.join(missing)} that are not there; {there}")
    return {name: sizes[name] for name in names}
