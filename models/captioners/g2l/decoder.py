"""The decoder of G2L: stacked GRUs fed with the last word and the context of the attention."""

import torch
from torch import Tensor, nn

from models.layers.attention import Attention
from models.layers.recurrent import gru_step
from models.layers.words import OutputLayer, word_embedding
from models.types import Memory, State, ValidTokens


class GruDecoder(nn.Module):
    """h_t = GRU(x_t, e_t, h_t-1), words from h_t alone (G2L eq. 10 to 12); x_t is read with the top layer's h_t-1.

    The paper does not give the initial state: here it is a linear map of the memory's summary, one for each layer. What
    depends on the words alone is computed for a whole caption at once; only the recurrence runs step by step."""

    def __init__(self, reader: Attention, vocabulary_size: int, sizes: tuple[int, int, int, int], layers: int, dropout: float):
        """sizes: of the context, the summary, a word's vector and a layer."""
        context, summary, embedding, hidden = sizes
        super().__init__()
        self.reader, self.layers = reader, layers
        self.embed = word_embedding(vocabulary_size, embedding)
        self.gates_from_word = nn.Linear(embedding, 3 * hidden)
        self.gates_from_context = nn.Linear(context, 3 * hidden, bias=False)
        self.gates_from_below = nn.ModuleList(nn.Linear(hidden, 3 * hidden) for _ in range(layers - 1))
        self.gates_from_past = nn.ModuleList(nn.Linear(hidden, 3 * hidden) for _ in range(layers))
        self.start_hidden = nn.Linear(summary, layers * hidden)
        self.predict = OutputLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def prepare(self, memory: Memory) -> Memory:
        return self.reader.prepare(memory)

    def start(self, memory: Memory) -> State:
        """Memory of N -> a hidden state (N, H) for each layer, the top one last."""
        return torch.tanh(self.start_hidden(memory.summary)).chunk(self.layers, dim=-1)

    def step(
        self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T)."""
        state, weights = self._advance(self.gates_from_word(self.dropout(self.embed(token))), state, memory)
        return self.predict(self.dropout(state[-1]), wanted), state, weights  # eq. 12

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        words = self.dropout(self.embed(tokens[:, :-1]))
        state = self.start(memory)
        top = []
        for from_word in self.gates_from_word(words).unbind(1):
            state, _ = self._advance(from_word, state, memory)
            top.append(state[-1])
        hidden = torch.stack(top, dim=1)
        return self.predict(self.dropout(hidden if valid is None else valid.select(hidden)))  # eq. 12

    def _advance(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Tensor | None]:
        """from_word (N, 3H), state, memory of N -> new state, attention (N, T): eq. 10 and 11."""
        context, weights = self.reader(state[-1], memory)
        from_input = from_word + self.gates_from_context(context)
        new: list[Tensor] = []
        for layer, (hidden, gates_from_past) in enumerate(zip(state, self.gates_from_past, strict=True)):
            if layer:
                from_input = self.gates_from_below[layer - 1](self.dropout(new[-1]))
            new.append(gru_step(from_input, gates_from_past(hidden), hidden))
        return tuple(new), weights
