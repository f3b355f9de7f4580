"""GLD's captioners: Show-Tell (ST) reads a video as one vector, Top-Down (TDA) attends to its rows, which may be frames (B, T, D)
or the cells of a grid in each frame (B, T, S, D). An image is a video of one frame."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from models.captioner import Captioner, wanted_sizes
from models.layers.attention import AdditiveAttention, Read
from models.layers.recurrent import LSTM, Unrolling, lstm_step, one_weight_gradient, open_forget_gate
from models.layers.temporal_encoder import Join, TemporalEncoder, as_rows, pooled
from models.layers.words import OutputLayer, word_embedding
from models.options import Options
from models.types import Memory, State, ValidTokens

Layer = Callable[[Tensor], Tensor]


class ShowTellOptions(Options):
    """Show-Tell: the video's vector is the first input of an LSTM, then come the words."""

    kind: Literal["show_tell"] = "show_tell"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads, each as its mean over time and space."""
    embedding: int = Field(512, ge=1)
    """Size of a word's vector, and of the video's."""
    hidden: int = Field(512, ge=1)
    """Size of the LSTM."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the video's vector, words and outputs that is dropped in training."""


class TopDownOptions(Options):
    """Top-Down: one LSTM that attends to the cells of a grid (or to frames), one that predicts the words."""

    kind: Literal["top_down"] = "top_down"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads: grids or rows over time."""
    join: Join = "time"
    """How several features meet: "time" (row after row) or "depth" (sampled at the same positions, row beside row)."""
    embedding: int = Field(512, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of both LSTMs and of a projected feature row."""
    attention: int = Field(512, ge=1)
    """Size of the space in which rows and state are compared."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the projected features, words and outputs that is dropped in training."""


class PooledEncoder(nn.Module):
    """Features (B, T, D_i) or (B, T, S, D_i) -> Memory of one row (B, 1, H), which is its summary too.

    Each feature is averaged by itself; one that a video lacks counts as zeros."""

    def __init__(self, sizes: Mapping[str, int], hidden: int, dropout: float):
        super().__init__()
        self.names = tuple(sizes)
        self.project = nn.Linear(sum(sizes.values()), hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        vector, present = pooled(features, masks, self.names)
        summary = self.dropout(self.project(vector)) * present.unsqueeze(1)
        return Memory(summary.unsqueeze(1), present.unsqueeze(1), summary)


class GridEncoder(nn.Module):
    """Features (B, T, D_i) or (B, T, S, D_i) -> Memory of tokens (B, T*S, H): every cell of every frame."""

    def __init__(self, sizes: Mapping[str, int], hidden: int, join: Join, dropout: float):
        super().__init__()
        self.names = tuple(sizes)
        self.rows = TemporalEncoder(sizes, hidden, join, dropout)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        flat = {name: as_rows(features[name], masks[name]) for name in self.names if name in features and name in masks}
        return self.rows({name: x for name, (x, _) in flat.items()}, {name: mask for name, (_, mask) in flat.items()})


class ShowTellDecoder(nn.Module):
    """An LSTM whose first input is the memory's summary, then BOS and the words; its hidden state predicts the next word."""

    def __init__(self, vocabulary_size: int, embedding: int, hidden: int, dropout: float):
        super().__init__()
        self.embed = word_embedding(vocabulary_size, embedding)
        self.lstm = LSTM(embedding, hidden, batch_first=True)
        self.predict = OutputLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        open_forget_gate(self.lstm.get_parameter("bias_ih_l0"))

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H) and cell (N, H) after the LSTM has read the summaries."""
        _, (hidden, cell) = self.lstm(memory.summary.unsqueeze(1))
        return hidden.squeeze(0), cell.squeeze(0)

    def step(self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None) -> tuple[Tensor, State, None]:
        """token (N,), state, memory of N -> logits (N, V), new state, no attention."""
        word = self.dropout(self.embed(token)).unsqueeze(1)
        _, (hidden, cell) = self.lstm(word, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return self.predict(self.dropout(hidden.squeeze(0)), wanted), (hidden.squeeze(0), cell.squeeze(0)), None

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        words = self.dropout(self.embed(tokens[:, :-1]))
        hidden, _ = self.lstm(torch.cat([memory.summary.unsqueeze(1), words], dim=1))
        hidden = hidden[:, 1:]  # nothing is predicted from the video alone
        return self.predict(self.dropout(hidden if valid is None else valid.select(hidden)))


class TopDownDecoder(nn.Module):
    """At each step:

        h1 = attention LSTM([h2 of the step before, mean of the rows, last word])
        context = attention over the rows, with h1 as the query
        h2 = language LSTM([context, h1])

    and the next word is predicted from h2. What depends on the words or on the video alone is computed once."""

    def __init__(self, vocabulary_size: int, memory: int, embedding: int, hidden: int, attention: int, dropout: float):
        super().__init__()
        self.reader = AdditiveAttention(memory, hidden, attention)
        self.embed = word_embedding(vocabulary_size, embedding)
        self.look_from_word = nn.Linear(embedding, 4 * hidden)
        self.look_from_mean = nn.Linear(memory, 4 * hidden, bias=False)
        self.look_from_past = nn.Linear(2 * hidden, 4 * hidden, bias=False)  # of [h2, h1]
        self.tell = nn.Linear(memory + 2 * hidden, 4 * hidden)  # of [context, h1, h2]
        self.predict = OutputLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        self.hidden = hidden
        open_forget_gate(self.look_from_word.bias)
        open_forget_gate(self.tell.bias)

    def prepare(self, memory: Memory) -> Memory:
        return self.reader.prepare(memory).with_extras(from_mean=self.look_from_mean(memory.summary))

    def start(self, memory: Memory) -> State:
        """Memory of N -> h1, c1, h2, c2, each (N, H), zero."""
        zero = memory.summary.new_zeros(len(memory.summary), self.hidden)
        return zero, zero, zero, zero

    def step(
        self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T)."""
        from_word = self.look_from_word(self.dropout(self.embed(token)))
        state, weights = self._advance(self.reader, self.look_from_past, self.tell, from_word, state, memory)
        return self.predict(self.dropout(state[2]), wanted), state, weights

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        inputs = tokens[:, :-1]
        steps = Unrolling(valid or ValidTokens.all_of(inputs))
        words = steps.pack(self.dropout(self.embed(inputs)))
        layers = self.reader.unrolled(), one_weight_gradient(self.look_from_past), one_weight_gradient(self.tell)
        outputs = steps.run(partial(self._advance, *layers), self.look_from_word(words), memory, self.start)
        logits = self.predict(self.dropout(steps.valid(torch.cat([state[2] for state, _ in outputs]))))
        return logits.unflatten(0, inputs.shape) if valid is None else logits

    def _advance(
        self, read: Read, look_from_past: Layer, tell: Layer, from_word: Tensor, state: State, memory: Memory
    ) -> tuple[State, Tensor | None]:
        """The step itself, with layers that are this module's own or compute their gradients once for all steps."""
        h1, c1, h2, c2 = state
        gates = from_word + memory.extras["from_mean"] + look_from_past(torch.cat([h2, h1], dim=-1))
        h1, c1 = lstm_step(gates, c1)
        context, weights = read(h1, memory)
        h2, c2 = lstm_step(tell(torch.cat([context, h1, h2], dim=-1)), c2)
        return (h1, c1, h2, c2), weights


def build_show_tell(options: ShowTellOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    encoder = PooledEncoder(wanted_sizes(options.features, feature_sizes), options.embedding, options.dropout)
    return Captioner(encoder, ShowTellDecoder(vocabulary_size, options.embedding, options.hidden, options.dropout))


def build_top_down(o: TopDownOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    encoder = GridEncoder(wanted_sizes(o.features, feature_sizes), o.hidden, o.join, o.dropout)
    decoder = TopDownDecoder(vocabulary_size, o.hidden, o.embedding, o.hidden, o.attention, o.dropout)
    return Captioner(encoder, decoder)
