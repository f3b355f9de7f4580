"""LSTM decoders: one reads the memory at each step beside the last word; one is fed a single vector and then words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from models.layers.attention import Reader
from models.layers.output_layer import WordLayer
from models.layers.unrolling import GradientAtOnce, Unrolling
from models.types import BOS, PAD, Decoder, Memory, State


@dataclass(frozen=True)
class ForcedStates:
    """What a forced pass leaves behind: hidden (N, L-1, H), the state that says each of tokens 1 .. L-1, and the attention
    (N, L-1, T) of these steps, or none. Both may be zero behind the end of a caption."""

    hidden: Tensor
    attention: Tensor | None = None


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
        self.predict = WordLayer(hidden, vocabulary_size)
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
        if self.training or token.is_cuda:  # each row has a dropout of its own; a GPU would wait for the count of words
            word = self.dropout(self.embed(token))
            from_word = self.gates_from_word(word)
        else:  # the hypotheses of a batch share most of their last words
            distinct, which = token.unique(return_inverse=True)
            word = self.embed(distinct)
            word, from_word = word[which], self.gates_from_word(word)[which]
        state, context, weights = self._advance(from_word, state, memory)
        return self._speak(state[0], context, word), state, weights

    def forced(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> Tensor:
        """tokens (N, L) with BOS first, memory of N -> logits (N, L-1, V) of tokens 1 .. L-1; with `real` (N, L-1) only
        those it marks, (R, V): the output layer is most of the work, and most of a padded batch is padding."""
        return self._unroll(tokens, memory, real)[0]

    def forced_states(self, tokens: Tensor, memory: Memory, real: Tensor | None = None) -> tuple[Tensor, ForcedStates]:
        """`forced`, and the states that it went through."""
        logits, steps, hidden, attention = self._unroll(tokens, memory, real)
        return logits, ForcedStates(steps.spread(hidden), steps.spread(attention) if attention is not None else None)

    def _unroll(
        self, tokens: Tensor, memory: Memory, real: Tensor | None
    ) -> tuple[Tensor, Unrolling, Tensor, Tensor | None]:
        """The logits; hidden (P, H) and attention (P, T) of the steps that were taken, as they were unrolled."""
        said = tokens[:, :-1]
        steps = Unrolling(torch.ones_like(said, dtype=torch.bool) if real is None else real)
        words = steps.packed(self.dropout(self.embed(said)))
        hiddens, contexts, attention = [], [], []
        pasts: list[Tensor] = []
        from_words = GradientAtOnce.apply(self.gates_from_word(words), self.gates_from_past.weight, pasts)

        def advance(now: Tensor, state: State, memory: Memory) -> tuple[State, Tensor, Tensor | None]:
            return self._advance(now, state, memory, pasts)

        for state, context, weights in steps.run(advance, from_words, memory, self.start):
            hiddens.append(state[0])
            contexts.append(context)
            if weights is not None:
                attention.append(weights)
        hidden = torch.cat(hiddens)
        logits = self._speak(*(steps.real(rows) for rows in (hidden, torch.cat(contexts), words)))
        if real is None:
            logits = logits.unflatten(0, said.shape)
        return logits, steps, hidden, torch.cat(attention) if attention else None

    def _advance(
        self, from_word: Tensor, state: State, memory: Memory, pasts: list[Tensor] | None = None
    ) -> tuple[State, Tensor, Tensor | None]:
        """The LSTM's own equations; gates in torch's order (input, forget, cell, output). With `pasts` the weight's gradient
        is left to `GradientAtOnce`."""
        hidden, cell = state
        context, weights = self.reader(hidden, memory)
        past, weight = torch.cat([context, hidden], dim=-1), self.gates_from_past.weight
        if pasts is not None:
            pasts.append(past.detach())
            weight = weight.detach()
        gates = from_word + nn.functional.linear(past, weight)
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
        self.predict = WordLayer(hidden, vocabulary_size)
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
