"""The GRU decoder of G2L: layers of GRUs fed with the last word and what the attention reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers.attention import Reader
from models.layers.output_layer import WordLayer
from models.types import PAD, Memory, State


class GruDecoder(nn.Module):
    """h_t = GRU(x_t, e_t, h_t-1), words from h_t alone (G2L eq. 10 to 12); x_t is read with the top layer's h_t-1.

    The paper does not say how the state begins: here it is a linear map of the memory's summary, a part for each layer.
    Whatever depends on the words alone is computed for a whole caption at once; only the recurrence runs step by step."""

    def __init__(
        self,
        reader: Reader,
        vocabulary_size: int,
        context: int,
        summary: int,
        embedding: int,
        hidden: int,
        layers: int,
        dropout: float,
    ):
        super().__init__()
        self.reader = reader
        self.layers = layers
        self.embed = nn.Embedding(vocabulary_size, embedding, padding_idx=PAD)
        self.gates_from_word = nn.Linear(embedding, 3 * hidden)
        self.gates_from_context = nn.Linear(context, 3 * hidden, bias=False)
        self.gates_from_below = nn.ModuleList(nn.Linear(hidden, 3 * hidden) for _ in range(layers - 1))
        self.gates_from_past = nn.ModuleList(nn.Linear(hidden, 3 * hidden) for _ in range(layers))
        self.start_hidden = nn.Linear(summary, layers * hidden)
        self.predict = WordLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.embed.weight.mul_(0.1)  # unit-variance embeddings would drown the context at first

    def prepare(self, memory: Memory) -> Memory:
        return self.reader.prepare(memory)

    def start(self, memory: Memory) -> State:
        """Memory of N -> a hidden state (N, H) for each layer, the top one last."""
        return torch.tanh(self.start_hidden(memory.summary)).chunk(self.layers, dim=-1)

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T)."""
        state, weights = self._advance(self.gates_from_word(self.dropout(self.embed(token))), state, memory)
        return self._speak(state[-1]), state, weights

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V)."""
        words = self.dropout(self.embed(tokens[:, :-1]))
        state = self.start(memory)
        hiddens = []
        for from_word in self.gates_from_word(words).unbind(1):
            state, _ = self._advance(from_word, state, memory)
            hiddens.append(state[-1])
        seen = torch.stack(hiddens, dim=1)
        return self._speak(seen if real is None else seen[real])

    def _advance(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Tensor | None]:
        context, weights = self.reader(state[-1], memory)
        entering = from_word + self.gates_from_context(context)
        moved: list[Tensor] = []
        for layer, (past, gates) in enumerate(zip(state, self.gates_from_past, strict=True)):
            if layer:
                entering = self.gates_from_below[layer - 1](self.dropout(moved[-1]))
            moved.append(_gru(entering, gates(past), past))
        return tuple(moved), weights

    def _speak(self, hidden: Tensor) -> Tensor:
        """hidden (..., H) -> logits (..., V), eq. 12."""
        return self.predict(self.dropout(hidden))


def _gru(entering: Tensor, remembered: Tensor, past: Tensor) -> Tensor:
    """The GRU's own equations: gates (N, 3H) from the input and from the past, in torch's order (reset, update, new)."""
    reset, update, new = entering.chunk(3, dim=-1)
    past_reset, past_update, past_new = remembered.chunk(3, dim=-1)
    new = torch.tanh(new + torch.sigmoid(reset + past_reset) * past_new)
    keep = torch.sigmoid(update + past_update)
    return new + keep * (past - new)
