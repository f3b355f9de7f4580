"""Toy videos and captions, and small captioners with weights large enough to have opinions."""

from __future__ import annotations

from typing import Any

import torch

from models.captioner import Captioner
from models.captioners.lstm import MpLstmOptions, SaLstmOptions
from models.types import BOS, EOS, PAD, Batch
from models.zoo import build_captioner

VOCABULARY = 11
SIZES = {"rgb": 6, "motion": 4}


def toy_captioner(kind: str = "sa_lstm", seed: int = 0, vocabulary: int = VOCABULARY, **changes: Any) -> Captioner:
    """A seeded captioner in eval mode; its weights are scaled up, so that captions of different videos differ."""
    values: dict[str, Any] = {"features": ("rgb", "motion"), "embedding": 5, "hidden": 8, "dropout": 0.0} | changes
    options = SaLstmOptions(attention=7, **values) if kind == "sa_lstm" else MpLstmOptions(**values)
    torch.manual_seed(seed)
    captioner = build_captioner(options, SIZES, vocabulary)
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.mul_(2.5)
    return captioner.eval()


def toy_features(videos: int, rows: int = 5, seed: int = 0) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Random features of videos with 1 to `rows` real rows each."""
    random = torch.Generator().manual_seed(seed)
    features = {name: torch.randn(videos, rows, size, generator=random) for name, size in SIZES.items()}
    lengths = torch.randint(1, rows + 1, (videos, 1), generator=random)
    mask = torch.arange(rows) < lengths
    return features, {name: mask.clone() for name in SIZES}


def toy_batch(videos: int = 4, captions: int = 2, rows: int = 5, words: int = 5, seed: int = 0) -> Batch:
    """`captions` random captions of 1 to `words` words a video."""
    features, masks = toy_features(videos, rows, seed)
    random = torch.Generator().manual_seed(seed + 1)
    N = videos * captions
    tokens = torch.full((N, words + 2), PAD)
    tokens[:, 0] = BOS
    for row in range(N):
        length = int(torch.randint(1, words + 1, (), generator=random))
        tokens[row, 1 : length + 1] = torch.randint(4, VOCABULARY, (length,), generator=random)
        tokens[row, length + 1] = EOS
    video_index = torch.arange(videos).repeat_interleave(captions)
    ids = tuple(f"v{i}" for i in range(videos))
    return Batch(ids, features, masks, tokens, video_index, tuple(f"{ids[i]}#{n}" for n, i in enumerate(video_index.tolist())))
