"""S2VT: two stacked LSTMs that first read the frames of a video and then say the words of its caption."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from models.layers.lstm_decoder import ForcedStates, open_forget_gate
from models.layers.output_layer import WordLayer
from models.types import PAD, Memory, State


class S2vtDecoder(nn.Module):
    """The first LSTM reads frames, then nothing; the second reads [last word, first LSTM] and predicts the next word.

    While frames are read there are no words (zeros), while words are said there are no frames (zeros). Both LSTMs keep
    their weights over the two stages. The first stage depends on the video alone: `prepare` does it, once a video."""

    def __init__(self, vocabulary_size: int, memory: int, embedding: int, hidden: int, dropout: float):
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, embedding, padding_idx=PAD)
        self.first = nn.LSTM(memory, hidden, batch_first=True)
        self.second = nn.LSTM(embedding + hidden, hidden, batch_first=True)
        self.predict = WordLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        open_forget_gate(self.first)
        open_forget_gate(self.second)
        with torch.no_grad():
            self.embed.weight.mul_(0.1)  # unit-variance embeddings would drown the first LSTM at first

    def prepare(self, memory: Memory) -> Memory:
        """The encoding stage: what both LSTMs know after the last real frame."""
        frames = _packed(memory)
        seen, (hidden_1, cell_1) = self.first(frames)
        no_word = seen.data.new_zeros(len(seen.data), self.embed.embedding_dim)
        _, (hidden_2, cell_2) = self.second(seen._replace(data=torch.cat([no_word, seen.data], dim=-1)))
        names = ("hidden_1", "cell_1", "hidden_2", "cell_2")
        known = dict(zip(names, (x.squeeze(0) for x in (hidden_1, cell_1, hidden_2, cell_2)), strict=True))
        return replace(memory, extras={**memory.extras, **known})

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden and cell of the first LSTM, hidden and cell of the second, (N, H) each."""
        return tuple(memory.extras[name] for name in ("hidden_1", "cell_1", "hidden_2", "cell_2"))

    def step(self, token: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, None]:
        """token (N,), state, memory of N -> logits (N, V), new state, no attention."""
        hidden, state = self._say(token.unsqueeze(1), state)
        return self.predict(self.dropout(hidden.squeeze(1))), state, None

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V)."""
        return self.forced_states(tokens, memory, real)[0]

    def forced_states(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> tuple[Tensor, ForcedStates]:
        """`forced`, and the states of the second LSTM."""
        hidden, _ = self._say(tokens[:, :-1], self.start(memory))
        return self.predict(self.dropout(hidden if real is None else hidden[real])), ForcedStates(hidden)

    def _say(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoding stage: tokens (N, S) -> hidden of the second LSTM (N, S, H) and the state after the last."""
        N, S = tokens.shape
        no_frames = state[0].new_zeros(N, S, self.first.input_size)
        below, first = self.first(no_frames, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        words = self.dropout(self.embed(tokens))
        hidden, second = self.second(torch.cat([words, below], -1), (state[2].unsqueeze(0), state[3].unsqueeze(0)))
        return hidden, tuple(x.squeeze(0) for x in (*first, *second))


def _packed(memory: Memory) -> PackedSequence:
    """The real rows of each video, one after the other; a video without any counts as one row of zeros."""
    order = torch.sort((~memory.mask).to(torch.uint8), dim=1, stable=True).indices  # real rows first, in their order
    rows = memory.tokens.gather(1, order.unsqueeze(-1).expand_as(memory.tokens))
    lengths = memory.mask.sum(1).clamp(min=1).cpu()
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
