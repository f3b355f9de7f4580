"""The word embedding of every decoder."""

from __future__ import annotations

import torch
from torch import nn

from models.types import PAD


def word_embedding(vocabulary_size: int, size: int) -> nn.Embedding:
    """nn.Embedding, scaled to a tenth: embeddings of unit variance would drown the video's features at first."""
    embedding = nn.Embedding(vocabulary_size, size, padding_idx=PAD)
    with torch.no_grad():
        embedding.weight.mul_(0.1)
    return embedding
