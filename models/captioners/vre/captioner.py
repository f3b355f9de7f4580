"""VRE: a video is encoded twice, around its middle frame and around its key frame, and captioned after each step.

The rows of its Table 1: `steps: 0` (V^f + v^s); `steps: 1` without spatial and audio (KBiGRU(V^f)); `steps: 1` with them;
`steps: 2` (VRE). Its training: a few epochs with `captioner.active_steps = 1`, then both steps and the refocus loss
(models/captioners/vre/key_frame_loss.py), then a captioner of its own whose `key_frames` are those that the best model chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from models.captioner import Captioner, wanted_sizes
from models.captioners.vre.encoder import ProductScores, RefocusChoice, RefocusEncoder
from models.decoding.scheduled_sampling import Own, mix_tokens
from models.layers.attention import AttentionSoftmax, weighted_sum
from models.layers.recurrent import Unrolling, lstm_step, open_forget_gate
from models.layers.words import OutputLayer, word_embedding
from models.options import Options
from models.types import BOS, PAD, Batch, Memory, State, ValidTokens


class VreOptions(Options):
    """VRE: a refocusing encoder, attention over time and over space, and an LSTM decoder."""

    kind: Literal["vre"] = "vre"
    """Which captioner."""
    temporal: str
    """Name of the features over time, one row per frame."""
    temporal_attention: bool = True
    """Whether the decoder attends to the features over time; without, only the video's representation carries them."""
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
    batch_norm: bool = False
    """BatchNorm before the encoder's tanhs: every number of a video's representation keeps its spread over videos."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the LSTM's outputs that is dropped in training."""

    @model_validator(mode="after")
    def _the_frames_are_seen(self) -> VreOptions:
        if self.key_frames is not None and self.steps != 2:
            raise ValueError(f"key frames matter in the second step, but there are {self.steps}: set 'steps' to 2")
        if self.steps == 0 and not self.temporal_attention:
            raise ValueError("without an encoder, only attention sees the frames: set 'temporal_attention' or 'steps'")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features it reads."""
        return tuple(x for x in (self.temporal, self.spatial, self.audio, self.key_frames) if x is not None)

    @property
    def optional_features(self) -> tuple[str, ...]:
        """Those of them that a video may lack."""
        return () if self.audio is None else (self.audio,)


class SharedDropout(nn.Dropout):
    """nn.Dropout for rows that are `copies` times the same captions, one after the other: all copies get the same mask, so
    that their losses differ by what they were given and not by chance."""

    copies = 1

    def forward(self, input: Tensor) -> Tensor:
        """input (copies * N, H) -> the same shape."""
        if self.copies == 1 or not self.training:
            return super().forward(input)
        kept = super().forward(torch.ones_like(input[: len(input) // self.copies]))
        return input * kept.repeat(self.copies, 1)


class RefocusDecoder(nn.Module):
    """Algorithm 2: an LSTM fed with [v_T, v_S, v_a, last word]; the next word is predicted from its hidden state.

    The video's representation o (the memory's summary) is the first cell state, replaces BOS, and is part of the query of
    both attentions, with the hidden state (eq. 12 to 16). What does not depend on the state is computed in advance. Without
    temporal features (None) there is no attention over time."""

    def __init__(self, words: int, temporal: int | None, spatial: int | None, audio: int | None, hidden: int, dropout: float):
        super().__init__()
        self.over_time = None if temporal is None else ProductScores(hidden, temporal, hidden)
        self.over_space = None if spatial is None else ProductScores(hidden, spatial, hidden)
        # W_h [o, h] is a part for h, in the scores, and a part for o that is the same at every step
        self.query_from_video = nn.Linear(hidden, 2 * hidden, bias=False)
        self.embed = word_embedding(words, hidden)
        self.gates_from_word = nn.Linear(hidden, 4 * hidden)
        self.gates_from_audio = None if audio is None else nn.Linear(audio, 4 * hidden, bias=False)
        self.gates_from_past = nn.Linear((temporal or 0) + (spatial or 0) + hidden, 4 * hidden, bias=False)
        self.predict = OutputLayer(hidden, words)
        self.dropout = SharedDropout(dropout)
        self.weigh_time, self.weigh_space = AttentionSoftmax("frames"), AttentionSoftmax("cells")
        open_forget_gate(self.gates_from_word.bias)

    def prepare(self, memory: Memory) -> Memory:
        extras = {}
        if self.over_time is not None:
            extras["time_keys"] = self.over_time.key(memory.tokens)
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

    def _advance(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Tensor | None]:
        """from_word (N, 4H), state, memory of N -> new state, attention over time (N, T): eq. 13 to 16."""
        hidden, cell = state
        extras, contexts, weights = memory.extras, [], None
        if self.over_time is not None:
            scores = self.over_time(self.over_time.query(hidden) + extras["time_query"], extras["time_keys"])
            weights = self.weigh_time(scores, memory.mask)
            contexts.append(weighted_sum(weights, memory.tokens))  # eq. 16
        if self.over_space is not None:
            scores = self.over_space(self.over_space.query(hidden) + extras["space_query"], extras["space_keys"])
            contexts.append(weighted_sum(self.weigh_space(scores, extras["spatial_mask"]), extras["spatial"]))
        gates = from_word + self.gates_from_past(torch.cat([*contexts, hidden], dim=-1))
        if self.gates_from_audio is not None:
            gates = gates + extras["audio_gates"]
        return lstm_step(gates, cell), weights


@dataclass(frozen=True)
class StepLosses:
    """The losses of both steps for N captions: first (N,) and second (N, n), -log p(caption) summed over its tokens (eq. 17, 18),
    the second for each of n frames that were tried as key frame; one, unless candidates are compared.

    Of each caption's video: key (N, n), these frames; mask (N, K), its valid frames; focus (N, K), the scores by which the key
    frame was chosen, None if it was given."""

    first: Tensor
    second: Tensor
    key: Tensor
    mask: Tensor
    focus: Tensor | None


class VreCaptioner(Captioner):
    """Captions after its last step: decoding, `forward` and `word_logits` use that one alone."""

    spread: Tensor | None = None
    """in training: the standard deviation of o over the videos of the last batch, averaged over its numbers"""

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

    @property
    def has_encoder(self) -> bool:
        """Whether there is a representation o; not so with `steps: 0`."""
        return cast(RefocusEncoder, self.encoder).most_steps > 0

    @property
    def refocus_choice(self) -> RefocusChoice:
        """How key frames are chosen in training; in eval mode it is always the likeliest."""
        return cast(RefocusEncoder, self.encoder).choice

    @refocus_choice.setter
    def refocus_choice(self, choice: RefocusChoice) -> None:
        cast(RefocusEncoder, self.encoder).choice = choice

    def encode(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        memory = super().encode(features, masks)
        if self.training:
            self.spread = memory.summary.detach().float().std(0, correction=0).mean()
        return memory

    def step_losses(self, batch: Batch, truth: float = 1.0, own: Own = "argmax") -> StepLosses:
        """Both steps over the N captions of a batch, in one pass of the decoder. With `truth` below 1 the inputs of
        each step are a mixture of the true words and its own, at the same places; dropout hits the same numbers."""
        return self._once("steps", batch, truth, own, lambda: self._both_steps(batch, truth, own))

    def _both_steps(self, batch: Batch, truth: float, own: Own) -> StepLosses:
        if self.active_steps != 2:
            active = f"{self.active_steps} are active; set active_steps to 2"
            raise ValueError(f"losses of two steps are wanted, but {active}")
        tokens, memory = self._prepare(batch)
        refocused = memory.extras.get("refocused", memory.summary.unsqueeze(1)).unbind(1)
        keys = memory.extras.get("candidates", memory.extras["key_frame"].unsqueeze(1))
        losses = self.losses_given(tokens, memory, (memory.extras["first"], *refocused), truth, own, batch.valid)
        return StepLosses(losses[:, 0], losses[:, 1:], keys, memory.mask, memory.extras.get("focus"))

    def losses_given(
        self,
        tokens: Tensor,
        memory: Memory,
        summaries: Sequence[Tensor],
        truth: float = 1.0,
        own: Own = "argmax",
        valid: ValidTokens | None = None,
    ) -> Tensor:
        """-log p(caption) (N, n) of N captions, given each of n representations o (N, H) of their videos."""
        decoder, n, N = cast(RefocusDecoder, self.decoder), len(summaries), len(tokens)
        repeated = decoder.guided(memory.select(torch.arange(N, device=tokens.device).repeat(n)), torch.cat(list(summaries)))
        stays = torch.rand(tokens.shape, device=tokens.device).repeat(n, 1) < truth if truth < 1 else None
        valid = (valid or ValidTokens(tokens.cpu()[:, 1:] != PAD, tokens.device)).repeat(n)
        tokens = tokens.repeat(n, 1)
        decoder.dropout.copies = n
        try:
            inputs = tokens if stays is None else mix_tokens(decoder, tokens, repeated, truth, own, stays)
            logits = decoder.teacher_forced(inputs, repeated, valid).float()
        finally:
            decoder.dropout.copies = 1
        each = nn.functional.cross_entropy(logits, valid.select(tokens[:, 1:]), reduction="none")
        return each.new_zeros(valid.mask.shape).masked_scatter(valid.mask, each).sum(1).view(n, N).t()


def build_vre(options: VreOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> VreCaptioner:
    o, sizes = options, wanted_sizes(options.features, feature_sizes)
    temporal, spatial, audio = sizes[o.temporal], sizes.get(o.spatial or ""), sizes.get(o.audio or "")
    names = (o.temporal, o.spatial, o.audio, o.key_frames)
    encoder = RefocusEncoder(names, temporal, audio or 0, o.hidden, o.steps, o.batch_norm)
    attended = temporal if o.temporal_attention else None
    return VreCaptioner(encoder, RefocusDecoder(vocabulary_size, attended, spatial, audio, o.hidden, o.dropout))
