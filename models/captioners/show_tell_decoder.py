"""The decoder of Show-Tell: an LSTM whose first input is the video itself, and then come the words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers.output_layer import WordLayer
from models.types import PAD, Memory, State


class ShowTellDecoder(nn.Module):
    """The summary of a memory, of a word's size, is shown once before BOS; from then on the LSTM hears words alone, and
    says the next from its hidden state."""

    def __init__(self, vocabulary_size: int, embedding: int, hidden: int, dropout: float):
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, embedding, padding_idx=PAD)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.predict = WordLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.lstm.get_parameter("bias_ih_l0")[hidden : 2 * hidden] = 1.0  # the forget gate starts open
            self.embed.weight.mul_(0.1)  # unit-variance embeddings would drown the video at first

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H) and cell (N, H) after the LSTM has seen the summaries."""
        _, (hidden, cell) = self.lstm(memory.summary.unsqueeze(1))
        return hidden.squeeze(0), cell.squeeze(0)

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, None]:
        """token (N,), state, memory of N -> logits (N, V), new state, no attention."""
        word = self.dropout(self.embed(token)).unsqueeze(1)
        _, (hidden, cell) = self.lstm(word, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return self.predict(self.dropout(hidden.squeeze(0))), (hidden.squeeze(0), cell.squeeze(0)), None

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V)."""
        words = self.dropout(self.embed(tokens[:, :-1]))
        hidden, _ = self.lstm(torch.cat([memory.summary.unsqueeze(1), words], dim=1))
        hidden = hidden[:, 1:]  # what it would say to the video alone is not asked for
        return self.predict(self.dropout(hidden if real is None else hidden[real]))
