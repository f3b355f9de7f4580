"""A captioner: an encoder and a decoder, and the teacher-forced pass over a batch."""

from __future__ import annotations

from torch import Tensor, nn

from models.types import Batch, Decoder, Encoder, Memory


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
        if batch.tokens is None or batch.owner is None:
            raise ValueError(
                f"the batch of {', '.join(batch.video_ids[:3])}... has no captions to force: it was made for features only"
            )
        return self.decoder.forced(batch.tokens, self.encode(batch.features, batch.masks).select(batch.owner))
