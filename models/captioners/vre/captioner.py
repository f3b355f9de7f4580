"""VRE: a video is encoded twice, around its middle frame and around its key frame, and captioned after each step.

The rows of its Table 1: `steps: 0` (V^f + v^s); `steps: 1` without spatial and audio (KBiGRU(V^f)); `steps: 1` with them;
`steps: 2` (VRE). Its training: a few epochs with `captioner.active_steps = 1`, then both steps and the refocus loss
(models/captioners/vre/key_frame_loss.py), then a captioner of its own whose `key_frames` are those that the best model chose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.captioner import Captioner, wanted_sizes
from models.captioners.vre.encoder import ProductScores, RefocusEncoder
from models.decoding.scheduled_sampling import Own, mix_tokens
from models.layers.attention import AttentionSoftmax, weighted_sum
from models.layers.recurrent import Unrolling, lstm_step, open_forget_gate
from models.layers.words import OutputLayer, word_embedding
from models.options import Options
from models.types import BOS, Batch, Memory, State, ValidTokens


class VreOptions(Options):
    """VRE: a refocusing encoder, attention over time and over space, and an LSTM decoder."""

    kind: Literal["vre"] = "vre"
    """Which captioner."""
    temporal: str
    """Name of the features over time, one row per frame."""
    spatial: str | None = None
    """Name of the features over space, one row per cell; none leaves them out."""
    audio: str | None = None
    """Name of the audio features, which a video may lack; none leaves them out."""
    key_frames: str | None = None
    """Name of the feature that holds each video's key frame; none lets the refocusing module choose it."""
    steps: Literal[0, 1, 2] = 2
    """How often a video is encoded: not at all, around its middle, or around its key frame too."""
    hidden: int = Field(512, ge=1)
    """Size of the GRUs, the LSTM, the attention, the video's representation and a word's vector."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the LSTM's outputs that is dropped in training."""

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
    """Algorithm 2: an LSTM fed with [v_T, v_S, v_a, last word]; the next word is predicted from its hidden state.

    The video's representation o (the memory's summary) is the first cell state, replaces BOS, and is part of the query of
    both attentions, with the hidden state (eq. 12 to 16). What does not depend on the state is computed in advance."""

    def __init__(self, words: int, temporal: int, spatial: int | None, audio: int | None, hidden: int, dropout: float):
        super().__init__()
        self.over_time = ProductScores(hidden, temporal, hidden)
        self.over_space = None if spatial is None else ProductScores(hidden, spatial, hidden)
        # W_h [o, h] is a part for h, in the scores, and a part for o that is the same at every step
        self.query_from_video = nn.Linear(hidden, 2 * hidden, bias=False)
        self.embed = word_embedding(words, hidden)
        self.gates_from_word = nn.Linear(hidden, 4 * hidden)
        self.gates_from_audio = None if audio is None else nn.Linear(audio, 4 * hidden, bias=False)
        self.gates_from_past = nn.Linear(temporal + (spatial or 0) + hidden, 4 * hidden, bias=False)
        self.predict = OutputLayer(hidden, words)
        self.dropout = nn.Dropout(dropout)
        self.softmax = AttentionSoftmax()
        open_forget_gate(self.gates_from_word.bias)

    def prepare(self, memory: Memory) -> Memory:
        extras = {"time_keys": self.over_time.key(memory.tokens)}
        if self.over_space is not None:
            extras["space_keys"] = self.over_space.key(memory.extras["spatial"])
        if self.gates_from_audio is not None:
            extras["audio_gates"] = self.gates_from_audio(memory.extras["audio"])
        return self.guided(memory.with_extras(**extras), memory.summary)

    def guided(self, memory: Memory, summary: Tensor) -> Memory:
        """A prepared memory with another representation o (N, H) of its videos: the other step's."""
        time, space = self.query_from_video(summary).chunk(2, dim=-1)
        return replace(memory, summary=summary).with_extras(time_query=time, space_query=space)

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H), zeros, and cell (N, H), o."""
        return torch.zeros_like(memory.summary), memory.summary

    def step(
        self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention over time (N, T)."""
        state, weights = self._advance(self.gates_from_word(self._words(token, memory.summary)), state, memory)
        return self.predict(self.dropout(state[0]), wanted), state, weights

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        inputs = tokens[:, :-1]
        steps = Unrolling(valid or ValidTokens.all_of(inputs))
        words = steps.pack(self._words(inputs, memory.summary.unsqueeze(1)))
        outputs = steps.run(self._advance, self.gates_from_word(words), memory, self.start)
        logits = self.predict(self.dropout(steps.valid(torch.cat([state[0] for state, _ in outputs]))))
        return logits.unflatten(0, inputs.shape) if valid is None else logits

    def _words(self, tokens: Tensor, summary: Tensor) -> Tensor:
        """tokens (N, ...) -> vectors (N, ..., H): o in place of BOS."""
        return torch.where((tokens == BOS).unsqueeze(-1), summary, self.embed(tokens))

    def _advance(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Tensor]:
        """from_word (N, 4H), state, memory of N -> new state, attention over time (N, T): eq. 13 to 16."""
        hidden, cell = state
        extras = memory.extras
        scores = self.over_time(self.over_time.query(hidden) + extras["time_query"], extras["time_keys"])
        weights = self.softmax(scores, memory.mask)
        contexts = [weighted_sum(weights, memory.tokens)]  # eq. 16
        if self.over_space is not None:
            scores = self.over_space(self.over_space.query(hidden) + extras["space_query"], extras["space_keys"])
            contexts.append(weighted_sum(self.softmax(scores, extras["spatial_mask"]), extras["spatial"]))
        gates = from_word + self.gates_from_past(torch.cat([*contexts, hidden], dim=-1))
        if self.gates_from_audio is not None:
            gates = gates + extras["audio_gates"]
        return lstm_step(gates, cell), weights


@dataclass(frozen=True)
class StepLosses:
    """The losses of both steps for N captions: first and second (N,), -log p(caption) summed over its tokens (eq. 17, 18).

    Of each caption's video: key (N,), the key frame of the second step; mask (N, K), its valid frames; focus (N, K), the
    scores by which the key frame was chosen, None if it was given."""

    first: Tensor
    second: Tensor
    key: Tensor
    mask: Tensor
    focus: Tensor | None


class VreCaptioner(Captioner):
    """Captions after its last step: decoding, `forward` and `word_logits` use that one alone."""

    @property
    def active_steps(self) -> int:
        """The steps in use. Set it to 1 for the epochs that train the first step only, then back to 2."""
        return cast(RefocusEncoder, self.encoder).steps

    @active_steps.setter
    def active_steps(self, steps: int) -> None:
        encoder = cast(RefocusEncoder, self.encoder)
        if not 1 <= steps <= encoder.most_steps:
            raise ValueError(f"this captioner was built for {encoder.most_steps} steps and cannot do {steps}")
        encoder.steps = steps

    def step_losses(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> StepLosses:
        """Both steps over the N captions of a batch, in one pass of the decoder. With `truth` below 1 the inputs of
        each step are a mixture of the true words and its own."""
        return self._once("steps", batch, truth, own, lambda: self._both_steps(batch, truth, own))

    def _both_steps(self, batch: Batch, truth: float, own: Own) -> StepLosses:
        if self.active_steps != 2:
            active = f"{self.active_steps} are active; set active_steps to 2"
            raise ValueError(f"losses of two steps are wanted, but {active}")
        decoder = cast(RefocusDecoder, self.decoder)
        tokens, memory = self._prepare(batch)
        N = len(tokens)
        twice = memory.select(torch.arange(N, device=tokens.device).repeat(2))
        twice = decoder.guided(twice, torch.cat([memory.extras["first"], memory.summary]))
        tokens = tokens.repeat(2, 1)
        inputs = tokens if truth >= 1 else mix_tokens(decoder, tokens, twice, truth, own)
        assert batch.valid is not None
        valid = batch.valid.repeat(2)
        logits = decoder.teacher_forced(inputs, twice, valid).float()
        each = nn.functional.cross_entropy(logits, valid.select(tokens[:, 1:]), reduction="none")
        losses = each.new_zeros(valid.mask.shape).masked_scatter(valid.mask, each).sum(1)
        return StepLosses(losses[:N], losses[N:], memory.extras["key_frame"], memory.mask, memory.extras.get("focus"))


def build_vre(options: VreOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> VreCaptioner:
    o, sizes = options, wanted_sizes(options.features, feature_sizes)
    temporal, spatial, audio = sizes[o.temporal], sizes.get(o.spatial or ""), sizes.get(o.audio or "")
    names = (o.temporal, o.spatial, o.audio, o.key_frames)
    encoder = RefocusEncoder(names, temporal, audio or 0, o.hidden, o.steps)
    return VreCaptioner(encoder, RefocusDecoder(vocabulary_size, temporal, spatial, audio, o.hidden, o.dropout))
