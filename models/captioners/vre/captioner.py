"""VRE: a video encoded twice, around its middle frame and around its key frame, by one decoder that speaks after each.

The rows of its Table 1: `steps: 0` (V^f + v^s); `steps: 1` without spatial and audio (KBiGRU(V^f)); `steps: 1` with them;
`steps: 2` (VRE). Its training: a few epochs with `captioner.active_steps = 1`, then both steps and the refocus loss
(models/captioners/vre/key_frame_loss.py), then a captioner of its own whose `key_frames` are those that the best model found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.captioner import Captioner, wanted_sizes
from models.captioners.vre.encoder import ProductScores, RefocusEncoder
from models.decoding.scheduled_sampling import Own, mixed_words
from models.layers.attention import masked_softmax
from models.layers.output_layer import WordLayer
from models.layers.unrolling import Unrolling
from models.options import Options
from models.types import BOS, PAD, Batch, Memory, State


class VreOptions(Options):
    """VRE: a refocusing encoder, attention over time and over space, and an LSTM decoder."""

    kind: Literal["vre"] = "vre"
    """Which captioner."""
    temporal: str
    """Name of the features over time, one row a frame."""
    spatial: str | None = None
    """Name of the features over space, one row a place; none leaves them out."""
    audio: str | None = None
    """Name of the audio features, which a video may lack; none leaves them out."""
    key_frames: str | None = None
    """Name of the feature that holds each video's key frame; none lets the refocusing module look for it."""
    steps: Literal[0, 1, 2] = 2
    """How often a video is encoded: not at all, around its middle, or around its key frame too."""
    hidden: int = Field(512, ge=1)
    """Size of the GRUs, the LSTM, the attention, the video's representation and a word's vector."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Part of the LSTM's outputs that is dropped in training."""

    @model_validator(mode="after")
    def _key_frames_need_two_steps(self) -> VreOptions:
        if self.key_frames is not None and self.steps != 2:
            raise ValueError(f"key frames matter in the second step, but there are {self.steps}: set 'steps' to 2")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it reads."""
        return tuple(x for x in (self.temporal, self.spatial, self.audio, self.key_frames) if x is not None)

    @property
    def optional_features(self) -> tuple[str, ...]:
        """Those of them that a video may lack."""
        return () if self.audio is None else (self.audio,)


class RefocusDecoder(nn.Module):
    """Algorithm 2: an LSTM fed with [v_T, v_S, v_a, last word], words from its hidden state.

    The video's representation o (the memory's summary) starts the cell, takes the place of the first word, and guides both
    attentions together with the hidden state (eq. 12 to 16). Everything that does not depend on the state is ready before
    the first step."""

    def __init__(
        self, vocabulary_size: int, temporal: int, spatial: int | None, audio: int | None, hidden: int, dropout: float
    ):
        super().__init__()
        self.over_time = ProductScores(hidden, temporal, hidden)
        self.over_space = None if spatial is None else ProductScores(hidden, spatial, hidden)
        # W_h [o, h] is a part for h, in the scores, and a part for o that is the same at every step
        self.query_from_video = nn.Linear(hidden, 2 * hidden, bias=False)
        self.embed = nn.Embedding(vocabulary_size, hidden, padding_idx=PAD)
        self.gates_from_word = nn.Linear(hidden, 4 * hidden)
        self.gates_from_audio = None if audio is None else nn.Linear(audio, 4 * hidden, bias=False)
        self.gates_from_past = nn.Linear(temporal + (spatial or 0) + hidden, 4 * hidden, bias=False)
        self.predict = WordLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.gates_from_word.bias[hidden : 2 * hidden] = 1.0  # the forget gate starts open
            self.embed.weight.mul_(0.1)  # unit-variance embeddings would drown the context at first

    def prepare(self, memory: Memory) -> Memory:
        ready = {"time_keys": self.over_time.key(memory.tokens)}
        if self.over_space is not None:
            ready["space_keys"] = self.over_space.key(memory.extras["spatial"])
        if self.gates_from_audio is not None:
            ready["audio_gates"] = self.gates_from_audio(memory.extras["audio"])
        return self.guided(replace(memory, extras={**memory.extras, **ready}), memory.summary)

    def guided(self, memory: Memory, summary: Tensor) -> Memory:
        """A prepared memory with another representation o (N, H) of its videos: the other step's."""
        time, space = self.query_from_video(summary).chunk(2, dim=-1)
        return replace(memory, summary=summary, extras={**memory.extras, "time_query": time, "space_query": space})

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H), zeros, and cell (N, H), o."""
        return torch.zeros_like(memory.summary), memory.summary

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention over time (N, T)."""
        state, weights = self._advance(self.gates_from_word(self._words(token, memory.summary)), state, memory)
        return self._speak(state[0]), state, weights

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V)."""
        said = tokens[:, :-1]
        steps = Unrolling(torch.ones_like(said, dtype=torch.bool) if real is None else real)
        words = steps.packed(self._words(said, memory.summary.unsqueeze(1)))
        taken = steps.run(self._advance, self.gates_from_word(words), memory, self.start)
        logits = self._speak(steps.real(torch.cat([state[0] for state, _ in taken])))
        return logits.unflatten(0, said.shape) if real is None else logits

    def _words(self, tokens: Tensor, summary: Tensor) -> Tensor:
        """tokens (N, ...) -> vectors (N, ..., H): o in the place of BOS."""
        return torch.where((tokens == BOS).unsqueeze(-1), summary, self.embed(tokens))

    def _advance(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Tensor]:
        """The LSTM's own equations; gates in torch's order (input, forget, cell, output)."""
        hidden, cell = state
        extras = memory.extras
        scores = self.over_time(self.over_time.query(hidden) + extras["time_query"], extras["time_keys"])
        weights = masked_softmax(scores, memory.mask)
        entering = [torch.bmm(weights.unsqueeze(1), memory.tokens).squeeze(1)]  # eq. 16
        if self.over_space is not None:
            scores = self.over_space(self.over_space.query(hidden) + extras["space_query"], extras["space_keys"])
            places = masked_softmax(scores, extras["spatial_mask"])
            entering.append(torch.bmm(places.unsqueeze(1), extras["spatial"]).squeeze(1))
        gates = from_word + self.gates_from_past(torch.cat([*entering, hidden], dim=-1))
        if self.gates_from_audio is not None:
            gates = gates + extras["audio_gates"]
        enter, keep, new, leave = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(new)
        return (torch.sigmoid(leave) * torch.tanh(cell), cell), weights

    def _speak(self, hidden: Tensor) -> Tensor:
        """hidden (..., H) -> logits (..., V)."""
        return self.predict(self.dropout(hidden))


@dataclass(frozen=True)
class StepLosses:
    """What both steps say of N captions: first and second (N,), -log p(caption) summed over its tokens (eq. 17, 18).

    And of each caption's video: key (N,), the key frame of the second step; mask (N, K), its real frames; focus (N, K), the
    scores by which the key frame was chosen, None if it was given."""

    first: Tensor
    second: Tensor
    key: Tensor
    mask: Tensor
    focus: Tensor | None


class VreCaptioner(Captioner):
    """Speaks after its last step: searches, `forward` and `word_logits` are about that one alone."""

    @property
    def active_steps(self) -> int:
        """After how many steps it speaks. Set it to 1 for the epochs that train the first step only, then back to 2."""
        return cast(RefocusEncoder, self.encoder).steps

    @active_steps.setter
    def active_steps(self, steps: int) -> None:
        encoder = cast(RefocusEncoder, self.encoder)
        if not 1 <= steps <= encoder.most_steps:
            raise ValueError(f"this captioner was built for {encoder.most_steps} steps and cannot do {steps}")
        encoder.steps = steps

    def step_losses(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> StepLosses:
        """Both steps over the N captions of a batch, in one pass of the decoder. With `truth` below 1, each step is fed a
        mixture of the true words and its own."""
        return self._once("steps", batch, truth, own, lambda: self._take_both(batch, truth, own))

    def _take_both(self, batch: Batch, truth: float, own: Own) -> StepLosses:
        if self.active_steps != 2:
            raise ValueError(
                f"losses of two steps are wanted, but {self.active_steps} are active; set active_steps to 2"
            )
        decoder = cast(RefocusDecoder, self.decoder)
        tokens, memory = self._prepared(batch)
        N = len(tokens)
        twice = memory.select(torch.arange(N, device=tokens.device).repeat(2))
        twice = decoder.guided(twice, torch.cat([memory.extras["first"], memory.summary]))
        tokens = tokens.repeat(2, 1)
        fed = tokens if truth >= 1 else mixed_words(decoder, tokens, twice, truth, own)
        targets = tokens[:, 1:]
        real = targets != PAD
        each = nn.functional.cross_entropy(decoder.forced(fed, twice, real).float(), targets[real], reduction="none")
        losses = each.new_zeros(real.shape).masked_scatter(real, each).sum(1)
        return StepLosses(losses[:N], losses[N:], memory.extras["key_frame"], memory.mask, memory.extras.get("focus"))


def build_vre(options: VreOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> VreCaptioner:
    o, sizes = options, wanted_sizes(options.features, feature_sizes)
    temporal, spatial = sizes[o.temporal], None if o.spatial is None else sizes[o.spatial]
    audio = None if o.audio is None else (o.audio, sizes[o.audio])
    return VreCaptioner(
        RefocusEncoder((o.temporal, temporal), o.spatial, audio, o.key_frames, o.hidden, o.steps),
        RefocusDecoder(vocabulary_size, temporal, spatial, None if audio is None else audio[1], o.hidden, o.dropout),
    )
