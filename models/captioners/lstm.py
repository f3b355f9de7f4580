"""SA-LSTM and MP-LSTM: an LSTM that reads the rows of a video with attention, or their mean. The bases of RecNet."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from models.captioner import Captioner, wanted_sizes
from models.layers.attention import AdditiveAttention, MeanContext, Read, UnrolledAttention
from models.layers.recurrent import Unrolling, lstm_step, one_weight_gradient, open_forget_gate
from models.layers.temporal_encoder import Join, TemporalEncoder
from models.layers.words import OutputLayer, word_embedding
from models.options import Options
from models.types import Memory, State, TeacherForcedStates, ValidTokens


class RecurrentOptions(Options):
    """What the bases of RecNet have in common."""

    kind: str
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the features it reads."""
    join: Join = "depth"
    """How several features meet: "depth" (sampled at the same instants, row beside row) or "time" (row after row)."""
    embedding: int = Field(300, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of each LSTM and of a projected feature row."""


class SaLstmOptions(RecurrentOptions):
    """SA-LSTM: an LSTM with soft attention over time, the base of RecNet."""

    kind: Literal["sa_lstm"] = "sa_lstm"
    """Which captioner."""
    attention: int = Field(256, ge=1)
    """Size of the space in which rows and state are compared."""
    attend_to: Literal["projected", "raw"] = "projected"
    """What is attended to: rows "projected" to `hidden` numbers each, or the "raw" rows themselves (RecNet eq. 3)."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the features, words and outputs that is dropped in training."""
    word_dropout: float | None = Field(None, ge=0, lt=1)
    """Share of the words' vectors that is dropped, if it is another than `dropout`."""


class MpLstmOptions(RecurrentOptions):
    """MP-LSTM: an LSTM that reads the mean of the rows at every step, without attention."""

    kind: Literal["mp_lstm"] = "mp_lstm"
    """Which captioner."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the projected features, words and outputs that is dropped in training."""
    word_dropout: float | None = Field(None, ge=0, lt=1)
    """Share of the words' vectors that is dropped, if it is another than `dropout`."""


class LstmDecoder(nn.Module):
    """One LSTM layer fed with [last word, context]; the next word is predicted from [hidden, context, last word].

    The context is read with the hidden state of the step before (RecNet eq. 4). What depends on the words alone is
    computed for a whole caption at once; only the recurrence runs step by step."""

    def __init__(
        self,
        reader: UnrolledAttention,
        words: int,
        memory: int,
        embedding: int,
        hidden: int,
        dropout: float,
        word_dropout: float | None = None,
    ):
        super().__init__()
        self.reader = reader
        self.embed = word_embedding(words, embedding)
        self.gates_from_word = nn.Linear(embedding, 4 * hidden)
        self.gates_from_past = nn.Linear(memory + hidden, 4 * hidden, bias=False)  # of [context, hidden]
        self.start_hidden = nn.Linear(memory, hidden)
        self.start_cell = nn.Linear(memory, hidden)
        self.mix = nn.Linear(hidden + memory + embedding, hidden)
        self.predict = OutputLayer(hidden, words)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = nn.Dropout(dropout if word_dropout is None else word_dropout)
        open_forget_gate(self.gates_from_word.bias)

    def prepare(self, memory: Memory) -> Memory:
        return self.reader.prepare(memory)

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H) and cell (N, H)."""
        return torch.tanh(self.start_hidden(memory.summary)), torch.tanh(self.start_cell(memory.summary))

    def step(
        self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> logits (N, V), new state, attention (N, T) or None."""
        if self.training or not token.is_cpu:  # dropout differs between rows; a GPU would wait for the count of tokens
            word = self.word_dropout(self.embed(token))
            from_word = self.gates_from_word(word)
        else:  # the hypotheses of a batch share most of their last words
            distinct, which = token.unique(return_inverse=True)
            word = self.embed(distinct)
            word, from_word = word[which], self.gates_from_word(word)[which]
        state, context, weights = self._advance(self.reader, self.gates_from_past, from_word, state, memory)
        return self._logits(state[0], context, word, wanted), state, weights

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        return self._unroll(tokens, memory, valid)[0]

    def teacher_forced_states(
        self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None
    ) -> tuple[Tensor, TeacherForcedStates]:
        logits, steps, hidden, attention = self._unroll(tokens, memory, valid)
        attention = None if attention is None else steps.unpack(attention)
        return logits, TeacherForcedStates(steps.unpack(hidden), attention)

    def _unroll(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None) -> tuple[Tensor, Unrolling, Tensor, Any]:
        """The logits; packed hidden states (P, H) and attention (P, T), or None, of all steps."""
        inputs = tokens[:, :-1]
        steps = Unrolling(valid or ValidTokens.all_of(inputs))
        words = steps.pack(self.word_dropout(self.embed(inputs)))
        layers = self.reader.unrolled(), one_weight_gradient(self.gates_from_past)
        advance = partial(self._advance, *layers)
        states, contexts, attention = zip(*steps.run(advance, self.gates_from_word(words), memory, self.start), strict=True)
        hidden = torch.cat([hidden for hidden, _ in states])
        logits = self._logits(*(steps.valid(rows) for rows in (hidden, torch.cat(contexts), words)))
        if valid is None:
            logits = logits.unflatten(0, inputs.shape)
        return logits, steps, hidden, None if attention[0] is None else torch.cat(attention)

    def _advance(
        self, read: Read, gates_from_past: Callable[[Tensor], Tensor], from_word: Tensor, state: State, memory: Memory
    ) -> tuple[State, Tensor, Tensor | None]:
        """from_word (N, 4H), state, memory of N -> new state, context (N, M), attention (N, T) or None."""
        hidden, cell = state
        context, weights = read(hidden, memory)
        gates = from_word + gates_from_past(torch.cat([context, hidden], dim=-1))
        return lstm_step(gates, cell), context, weights

    def _logits(self, hidden: Tensor, context: Tensor, word: Tensor, wanted: Tensor | None = None) -> Tensor:
        """hidden (..., H), context (..., M), word (..., E) -> logits (..., V), or of the wanted rows."""
        mixed = torch.tanh(self.mix(torch.cat([self.dropout(hidden), context, word], dim=-1)))
        return self.predict(self.dropout(mixed), wanted)


def build_lstm(o: SaLstmOptions | MpLstmOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    raw = isinstance(o, SaLstmOptions) and o.attend_to == "raw"
    encoder = TemporalEncoder(wanted_sizes(o.features, feature_sizes), None if raw else o.hidden, o.join, o.dropout)
    size = encoder.size
    reader = AdditiveAttention(size, o.hidden, o.attention) if isinstance(o, SaLstmOptions) else MeanContext()
    decoder = LstmDecoder(reader, vocabulary_size, size, o.embedding, o.hidden, o.dropout, o.word_dropout)
    return Captioner(encoder, decoder)
