"""GL-RG: the probabilities of a video's words (W), actions (A) and objects (C), fused to one vector, and an LSTM decoder."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from models.captioner import Captioner, wanted_sizes
from models.layers.recurrent import LSTM, lstm_where_valid, open_forget_gate
from models.layers.temporal_encoder import check_present, masked_mean, zero_invalid
from models.layers.words import OutputLayer, word_embedding
from models.options import Options
from models.types import BOS, Memory, State, ValidTokens

Fusion = Literal["projections", "single"]
Feed = Literal["first", "every"]


class GlRgOptions(Options):
    """GL-RG: global and local granularity. Its Table 2 names fewer features."""

    kind: Literal["glrg"] = "glrg"
    """Which captioner."""
    features: tuple[str, ...] = Field(min_length=1)
    """Names of the probability vectors it reads: words, actions, objects, or some of them."""
    fusion: Fusion = "projections"
    """How they meet: "projections" (one each, eq. 4) or "single" (one for all and a ReLU, as the authors' code has it)."""
    projection: int = Field(512, ge=1)
    """Size of a projection."""
    feed: Feed = "first"
    """When the LSTM sees the fused vector: as its "first" input (eq. 6), or beside "every" word (the authors' code)."""
    embedding: int = Field(512, ge=1)
    """Size of a word's vector."""
    hidden: int = Field(512, ge=1)
    """Size of the LSTM."""
    dropout: float = Field(0.5, ge=0, lt=1)
    """Share of the fused vector, words and outputs that is dropped in training."""
    word_dropout: float | None = Field(None, ge=0, lt=1)
    """Share of the words' vectors that is dropped, if it is another than `dropout`; 0 in the authors' code."""


class GlobalLocalEncoder(nn.Module):
    """Probability vectors (B, T_i, D_i), each averaged over its valid positions -> a Memory of one row (B, 1, F).

    `fusion` "projections" (eq. 4): a linear projection of each, concatenated, F = features x size; what a video lacks is
    zeros. "single": one linear projection of all of them and a ReLU, F = size."""

    def __init__(self, sizes: Mapping[str, int], size: int, fusion: Fusion, dropout: float):
        super().__init__()
        self.names = tuple(sizes)
        self.fusion = fusion
        widths = list(sizes.values()) if fusion == "projections" else [sum(sizes.values())]
        self.project = nn.ModuleList(nn.Linear(width, size) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.fused = size * len(widths)

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        check_present(self.names, features, masks)
        present = torch.stack([masks[name].any(1) for name in self.names], dim=1)
        means = [masked_mean(zero_invalid(features[name], masks[name]), masks[name]) for name in self.names]
        if self.fusion == "projections":
            projected = [project(mean) for project, mean in zip(self.project, means, strict=True)]
            fused = torch.cat([x * present[:, i : i + 1] for i, x in enumerate(projected)], dim=1)
        else:
            fused = torch.relu(self.project[0](torch.cat(means, dim=1)))
        fused = self.dropout(fused)
        return Memory(fused.unsqueeze(1), present.any(1, keepdim=True), fused)


class FedLstmDecoder(nn.Module):
    """One LSTM layer without attention, fed with the memory's summary (eq. 5 to 7); its hidden state predicts the words.

    `feed` "first": the summary is the first input, in place of BOS (eq. 6). "every": it is beside every word, BOS included."""

    def __init__(
        self,
        vocabulary_size: int,
        memory: int,
        embedding: int,
        hidden: int,
        dropout: float,
        feed: Feed,
        word_dropout: float | None = None,
    ):
        super().__init__()
        self.feed = feed
        self.embed = word_embedding(vocabulary_size, embedding)
        self.first = nn.Linear(memory, embedding) if feed == "first" else None
        self.lstm = LSTM(embedding if feed == "first" else embedding + memory, hidden, batch_first=True)
        self.predict = OutputLayer(hidden, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = nn.Dropout(dropout if word_dropout is None else word_dropout)
        open_forget_gate(self.lstm.get_parameter("bias_ih_l0"))

    def prepare(self, memory: Memory) -> Memory:
        return memory if self.first is None else memory.with_extras(first=self.first(memory.summary))

    def start(self, memory: Memory) -> State:
        """Memory of N -> hidden (N, H) and cell (N, H), zero."""
        zero = memory.summary.new_zeros(len(memory.summary), self.lstm.hidden_size)
        return zero, zero

    def step(self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None) -> tuple[Tensor, State, None]:
        """token (N,), state, memory of N -> logits (N, V), new state, no attention."""
        inputs = self._inputs(token.unsqueeze(1), memory)
        _, (hidden, cell) = self.lstm(inputs, (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        hidden, cell = hidden.squeeze(0), cell.squeeze(0)
        return self.predict(self.dropout(hidden), wanted), (hidden, cell), None

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        inputs = self._inputs(tokens[:, :-1], memory)
        hidden = self.lstm(inputs)[0] if valid is None else lstm_where_valid(self.lstm, inputs, valid)
        return self.predict(self.dropout(hidden))

    def _inputs(self, tokens: Tensor, memory: Memory) -> Tensor:
        """tokens (N, S), memory of N -> what the LSTM reads (N, S, X)."""
        inputs = self.word_dropout(self.embed(tokens))
        if self.first is not None:
            return torch.where((tokens == BOS).unsqueeze(-1), memory.extras["first"].unsqueeze(1), inputs)
        return torch.cat([inputs, memory.summary.unsqueeze(1).expand(-1, tokens.shape[1], -1)], dim=-1)


def build_glrg(o: GlRgOptions, feature_sizes: dict[str, int], vocabulary_size: int) -> Captioner:
    encoder = GlobalLocalEncoder(wanted_sizes(o.features, feature_sizes), o.projection, o.fusion, o.dropout)
    decoder = FedLstmDecoder(vocabulary_size, encoder.fused, o.embedding, o.hidden, o.dropout, o.feed, o.word_dropout)
    return Captioner(encoder, decoder)
