"""S2VT (sequence to sequence, video to text): two stacked LSTMs read the frames, then generate the caption. A base of RecNet."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from models.captioner import Captioner, wanted_sizes
from models.captioners.lstm import RecurrentOptions
from models.layers.recurrent import LSTM, open_forget_gate
from models.layers.temporal_encoder import TemporalEncoder
from models.layers.words import OutputLayer, word_embedding
from models.types import Memory, State, TeacherForcedStates, ValidTokens

_STATE = ("hidden_1", "cell_1", "hidden_2", "cell_2")


class S2vtOptions(RecurrentOptions):
    """S2VT: two stacked LSTMs that read the rows of a video one by one and then generate its caption."""

    kind: Literal["s2vt"] = "s2vt"
    """Which captioner."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the projected features, words and outputs that is dropped in training."""


class S2vtDecoder(nn.Module):
    """The first LSTM reads frames; the second reads [last word, state of the first] and predicts the next word.

    In the encoding stage the words are zeros, in the decoding stage the frames are zeros; both stages share the weights.
    The encoding stage depends on the video alone: `prepare` runs it, once per video."""

    def __init__(self, vocabulary_size: int, memory: int, embedding: int, hidden: int, dropout: float):
        super().__init__()
        self.embed = word_embedding(vocabulary_size, embedding)
        self.first = LSTM(memory, hidden, batch_first=True)
        self.second = LSTM(embedding + hidden, hidden, batch_first=True)
        self.predict = OutputLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        open_forget_gate(self.first.get_parameter("bias_ih_l0"))
        open_forget_gate(self.second.get_parameter("bias_ih_l0"))

    def prepare(self, memory: Memory) -> Memory:
        """The encoding stage: the states of both LSTMs after the last valid frame."""
        below, first = self.first(_packed(memory))
        no_word = below.data.new_zeros(len(below.data), self.embed.embedding_dim)
        _, second = self.second(below._replace(data=torch.cat([no_word, below.data], dim=-1)))
        return memory.with_extras(**dict(zip(_STATE, (x.squeeze(0) for x in (*first, *second)), strict=True)))

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden and cell of the first LSTM, hidden and cell of the second, (N, H) each."""
        return tuple(memory.extras[name] for name in _STATE)

    def step(self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None) -> tuple[Tensor, State, None]:
        """token (N,), state, memory of N -> logits (N, V), new state, no attention."""
        hidden, state = self._decode(token.unsqueeze(1), state)
        return self.predict(self.dropout(hidden.squeeze(1)), wanted), state, None

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        return self.teacher_forced_states(tokens, memory, valid)[0]

    def teacher_forced_states(
        self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None
    ) -> tuple[Tensor, TeacherForcedStates]:
        """The states are those of the second LSTM."""
        hidden, _ = self._decode(tokens[:, :-1], self.start(memory))
        logits = self.predict(self.dropout(hidden if valid is None else valid.select(hidden)))
        return logits, TeacherForcedStates(hidden)

    def _decode(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The decoding stage: tokens (N, S) -> hidden of the second LSTM (N, S, H) and the state after the last."""
        hidden_1, cell_1, hidden_2, cell_2 = (x.unsqueeze(0) for x in state)
        no_frames = tokens.new_zeros(*tokens.shape, self.first.input_size, dtype=hidden_1.dtype)
        below, first = self.first(no_frames, (hidden_1, cell_1))
        words = self.dropout(self.embed(tokens))
        hidden, second = self.second(torch.cat([words, below], -1), (hidden_2, cell_2))
        return hidden, tuple(x.squeeze(0) for x in (*first, *second))


def _packed(memory: Memory) -> PackedSequence:
    """The valid rows of each video, one after the other; a video without any counts as one row of zeros."""
    order = torch.sort((~memory.mask).to(torch.uint8), dim=1, stable=True).indices  # valid rows first, in their order
    rows = memory.tokens.gather(1, order.unsqueeze(-1).expand_as(memory.tokens))
    lengths = memory.mask.sum(1).clamp(min=1).cpu()
    return pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)


def build_s2vt(o: S2vtOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    encoder = TemporalEncoder(wanted_sizes(o.features, feature_sizes), o.hidden, o.join, o.dropout)
    return Captioner(encoder, S2vtDecoder(vocabulary_size, o.hidden, o.embedding, o.hidden, o.dropout))
