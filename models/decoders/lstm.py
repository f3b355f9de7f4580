"""The LSTM decoder: at each step it reads the memory, takes the last word and says how likely every next word is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.encoders.attention import Reader
from models.types import PAD, Memory, State


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
        words = self.dropout(self.embed(tokens[:, :-1]))
        state = self.start(memory)
        hiddens, contexts = [], []
        for from_word in self.gates_from_word(words).unbind(1):
            state, context, _ = self._advance(from_word, state, memory)
            hiddens.append(state[0])
            contexts.append(context)
        seen = (torch.stack(hiddens, dim=1), torch.stack(contexts, dim=1), words)
        return self._speak(*(seen if real is None else (rows[real] for rows in seen)))

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
