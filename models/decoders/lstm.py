"""LSTM decoders: one reads the memory at each step beside the last word; one is fed a single vector and then words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from models.encoders.attention import Reader
from models.types import BOS, PAD, Decoder, Memory, State


@dataclass(frozen=True)
class ForcedStates:
    """What a forced pass leaves behind: hidden (N, L-1, H), the state that says each of tokens 1 .. L-1, and the attention
    (N, T) of each of these steps, or none."""

    hidden: Tensor
    weights: tuple[Tensor, ...] = ()

    def attention(self) -> Tensor:
        """(N, L-1, T)."""
        return torch.stack(self.weights, dim=1)


@runtime_checkable
class DecoderWithStates(Decoder, Protocol):
    """A decoder whose forced pass can be followed by a reconstructor."""

    def forced_states(
        self, tokens: Tensor, memory: Memory, real: Tensor | None = None
    ) -> tuple[Tensor, ForcedStates]: ...


class LstmDecoder(nn.Module):
    """One LSTM layer fed with [last word, context]; words are predicted from [hidden, context, last word].

    The context is read with the hidden state of the step before (RecNet eq. 4). Whatever depends on the words alone is
    computed for a whole caption at once; only the recurrence runs step by step."""

    def __init__(self, reader: Reader, vocabulary_size: int, memory: int, embedding: int, hidden: int, dropout: float):
        super().__init__()
        self.reader = reader
        self.embed = nn.Embedding(vocabulary_size, embedding, padding_idx=PAD)
        self.gates_from_word = nn.Linear(embedding, 4 * hidden)
        self.gates_from_past = nn.Linear(memory + hidden, 4 * hidden, bias=False)
        self.start_hidden = nn.Linear(memory, hidden)
        self.start_cell = nn.Linear(memory, hidden)
        self.mix = nn.Linear(hidden + memory + embedding, hidden)
        self.predict = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.gates_from_word.bias[hidden : 2 * hidden] = 1.0  # the forget gate starts open
            self.embed.weight.mul_(0.1)  # unit-variance embeddings would drown the context at first

    def prepare(self, memory: Memory) -> Memory:
        return self.reader.prepare(memory)

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H) and cell (N, H)."""
        return torch.tanh(self.start_hidden(memory.summary)), torch.tanh(self.start_cell(memory.summary))

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T) or None."""
        word = self.dropout(self.embed(token))
        state, context, weights = self._advance(self.gates_from_word(word), state, memory)
        return self._speak(state[0], context, word), state, weights

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V): the output layer is most of the work, and most of a padded batch is padding."""
        return self.forced_states(tokens, memory, real)[0]

    def forced_states(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> tuple[Tensor, ForcedStates]:
        """`forced`, and the states that it went through."""
        words = self.dropout(self.embed(tokens[:, :-1]))
        state = self.start(memory)
        hiddens, contexts, attention = [], [], []
        for from_word in self.gates_from_word(words).unbind(1):
            state, context, weights = self._advance(from_word, state, memory)
            hiddens.append(state[0])
            contexts.append(context)
            if weights is not None:
                attention.append(weights)
        hidden = torch.stack(hiddens, dim=1)
        seen = (hidden, torch.stack(contexts, dim=1), words)
        logits = self._speak(*(seen if real is None else (rows[real] for rows in seen)))
        return logits, ForcedStates(hidden, tuple(attention))

    def _advance(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Tensor, Tensor | None]:
        """The LSTM's own equations; gates in torch's order (input, forget, cell, output)."""
        hidden, cell = state
        context, weights = self.reader(hidden, memory)
        gates = from_word + self.gates_from_past(torch.cat([context, hidden], dim=-1))
        enter, keep, new, leave = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(leave) * torch.tanh(cell)
        return (hidden, cell), context, weights

    def _speak(self, hidden: Tensor, context: Tensor, word: Tensor) -> Tensor:
        """hidden (..., H), context (..., M), word (..., E) -> logits (..., V)."""
        mixed = torch.tanh(self.mix(torch.cat([self.dropout(hidden), context, word], dim=-1)))
        return self.predict(self.dropout(mixed))


Feed = Literal["first", "every"]


class FedLstmDecoder(nn.Module):
    """One LSTM layer without attention, fed with the summary of a memory (GL-RG eq. 5 to 7); words are predicted from the
    hidden state alone.

    `feed` "first": the summary is the first input, where others have BOS (eq. 6). "every": it stands beside every word,
    BOS included."""

    def __init__(self, vocabulary_size: int, memory: int, embedding: int, hidden: int, dropout: float, feed: Feed):
        super().__init__()
        self.feed = feed
        self.embed = nn.Embedding(vocabulary_size, embedding, padding_idx=PAD)
        self.first = nn.Linear(memory, embedding) if feed == "first" else None
        self.lstm = nn.LSTM(embedding if feed == "first" else embedding + memory, hidden, batch_first=True)
        self.predict = nn.Linear(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        open_forget_gate(self.lstm)
        with torch.no_grad():
            self.embed.weight.mul_(0.1)  # unit-variance embeddings would drown the summary at first

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H) and cell (N, H), zero."""
        zero = memory.summary.new_zeros(len(memory.summary), self.lstm.hidden_size)
        return zero, zero

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, None]:
        """token (N,), state, memory of N -> logits (N, V), new state, no attention."""
        hidden, state = self._run(token.unsqueeze(1), state, memory)
        return self.predict(self.dropout(hidden.squeeze(1))), state, None

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V)."""
        hidden, _ = self._run(tokens[:, :-1], self.start(memory), memory)
        return self.predict(self.dropout(hidden if real is None else hidden[real]))

    def _run(self, tokens: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """tokens (N, S) -> hidden (N, S, H) and the state after the last."""
        inputs, summary = self.dropout(self.embed(tokens)), memory.summary.unsqueeze(1)
        if self.first is not None:
            inputs = torch.where((tokens == BOS).unsqueeze(-1), self.first(summary), inputs)
        else:
            inputs = torch.cat([inputs, summary.expand(-1, tokens.shape[1], -1)], dim=-1)
        hidden, (last, cell) = self.lstm(inputs, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return hidden, (last.squeeze(0), cell.squeeze(0))


def open_forget_gate(lstm: nn.LSTM) -> None:
    """Let a fresh LSTM remember: the forget gate of its first layer starts open."""
    with torch.no_grad():
        lstm.get_parameter("bias_ih_l0")[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0
