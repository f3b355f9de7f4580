"""The Top-Down decoder: one LSTM decides where to look, a second one says what is there."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from models.layers.attention import AdditiveAttention
from models.layers.output_layer import WordLayer
from models.layers.unrolling import Unrolling
from models.types import PAD, Memory, State


class TopDownDecoder(nn.Module):
    """At each step:

        h1 = attention LSTM([h2 of the step before, mean of the rows, last word])
        context = attention over the rows, asked with h1
        h2 = language LSTM([context, h1])

    and the next word is said from h2. What depends on the words or on the video alone is computed once."""

    def __init__(self, vocabulary_size: int, memory: int, embedding: int, hidden: int, attention: int, dropout: float):
        super().__init__()
        self.reader = AdditiveAttention(memory, hidden, attention)
        self.embed = nn.Embedding(vocabulary_size, embedding, padding_idx=PAD)
        self.look_from_word = nn.Linear(embedding, 4 * hidden)
        self.look_from_mean = nn.Linear(memory, 4 * hidden, bias=False)
        self.look_from_past = nn.Linear(2 * hidden, 4 * hidden, bias=False)  # of [h2, h1]
        self.tell = nn.Linear(memory + 2 * hidden, 4 * hidden)  # of [context, h1, h2]
        self.predict = WordLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        self.hidden = hidden
        with torch.no_grad():
            for gates in (self.look_from_word, self.tell):
                gates.bias[hidden : 2 * hidden] = 1.0  # the forget gate starts open
            self.embed.weight.mul_(0.1)  # unit-variance embeddings would drown the rows at first

    def prepare(self, memory: Memory) -> Memory:
        memory = self.reader.prepare(memory)
        return replace(memory, extras={**memory.extras, "look": self.look_from_mean(memory.summary)})

    def start(self, memory: Memory) -> State:
        """Memory of N -> h1, c1, h2, c2, each (N, H), zero."""
        zero = memory.summary.new_zeros(len(memory.summary), self.hidden)
        return zero, zero, zero, zero

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, Tensor]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T)."""
        from_word = self.look_from_word(self.dropout(self.embed(token)))
        state, weights = self._advance(from_word, state, memory)
        return self.predict(self.dropout(state[2])), state, weights

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V)."""
        said = tokens[:, :-1]
        steps = Unrolling(torch.ones_like(said, dtype=torch.bool) if real is None else real)
        words = steps.packed(self.dropout(self.embed(said)))
        taken = steps.run(self._advance, self.look_from_word(words), memory, self.start)
        logits = self.predict(self.dropout(steps.real(torch.cat([state[2] for state, _ in taken]))))
        return logits.unflatten(0, said.shape) if real is None else logits

    def _advance(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Tensor]:
        h1, c1, h2, c2 = state
        gates = from_word + memory.extras["look"] + self.look_from_past(torch.cat([h2, h1], dim=-1))
        h1, c1 = _lstm(gates, c1)
        context, weights = self.reader(h1, memory)
        h2, c2 = _lstm(self.tell(torch.cat([context, h1, h2], dim=-1)), c2)
        return (h1, c1, h2, c2), weights


def _lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """gates (N, 4H) in torch's order (input, forget, cell, output), cell (N, H) -> hidden and cell (N, H)."""
    enter, keep, new, leave = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cell), cell
