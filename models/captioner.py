"""A captioner: an encoder and a decoder, and the teacher-forced pass over a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.types import PAD, Batch, Decoder, Encoder, Memory


class Captioner(nn.Module):
    """Encodes videos and says how likely captions of them are. Searches drive `decoder` step by step."""

    encoder: Encoder
    decoder: Decoder

    def __init__(self, encoder: Encoder, decoder: Decoder):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def encode(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        """features name -> (B, T, D), masks name -> (B, T) -> Memory of B, ready for the decoder."""
        return self.decoder.prepare(self.encoder(features, masks))

    def forward(self, batch: Batch) -> Tensor:
        """B videos with N captions of L tokens -> log-probabilities (N, L-1, V) of tokens 1 .. L-1 given those before.

        A video is encoded once, however many captions it has."""
        return torch.log_softmax(self.decoder.forced(*self._prepared(batch)).float(), dim=-1)

    def word_logits(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The same pass at the R real tokens only, EOS included: logits (R, V) and the tokens (R,)."""
        tokens, memory = self._prepared(batch)
        real = tokens[:, 1:] != PAD
        return self.decoder.forced(tokens, memory, real).float(), tokens[:, 1:][real]

    def _prepared(self, batch: Batch) -> tuple[Tensor, Memory]:
        """The captions' tokens (N, L) and the memory of each caption's video."""
        if batch.tokens is None or batch.owner is None:
            raise ValueError(
                f"the batch of {', '.join(batch.video_ids[:3])}... has no captions to force: it was made for features only"
            )
        return batch.tokens, self.encode(batch.features, batch.masks).select(batch.owner)
