"""Video to words over features: pooling, gradients, learning, and mAP worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from models.video_to_words import VideoToWords, VideoToWordsOptions, WordBatch, WordLoss, mean_average_precision

SIZES = {"frames": 6, "regions": 3}


def net(pooling: str = "mean", **changes: Any) -> VideoToWords:
    torch.manual_seed(0)
    values = {"features": ("frames", "regions"), "words": 5, "hidden": 16, "dropout": 0.0, "pooling": pooling} | changes
    return VideoToWords(VideoToWordsOptions(**values), SIZES).eval()


def videos(count: int = 4) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    features = {
        "frames": torch.randn(count, 5, 6, generator=random),
        "regions": torch.randn(count, 3, 2, 3, generator=random),
    }
    masks = {name: torch.ones(x.shape[:2], dtype=torch.bool) for name, x in features.items()}
    masks["frames"][0, 2:] = False
    return features, masks


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_rows_that_are_not_valid_play_no_part(pooling: str) -> None:
    features, masks = videos()
    before = net(pooling)(features, masks)
    features["frames"][0, 2:] = torch.nan
    assert torch.equal(net(pooling)(features, masks), before)
    alone = {name: x[:1] for name, x in features.items()}, {name: x[:1] for name, x in masks.items()}
    assert torch.allclose(net(pooling)(*alone), before[:1], atol=1e-6)


def test_the_mean_of_all_rows_and_cells_goes_through_two_hidden_layers() -> None:
    features, masks = videos()
    model = net()
    pooled = torch.cat([features["frames"][3].mean(0), features["regions"][3].mean((0, 1))])
    first, _, _, second, _, _, last = model.dense
    expected = last(torch.relu(second(torch.relu(first(pooled)))))
    assert torch.allclose(model(features, masks)[3], expected, atol=1e-6)


def test_attention_weighs_rows_by_what_was_learnt() -> None:
    features, masks = videos()
    model = net("attention")
    assert isinstance(model.relevance["frames"], nn.Linear)
    nn.init.zeros_(model.relevance["frames"].weight)
    nn.init.zeros_(model.relevance["regions"].weight)
    plain = net("mean")
    plain.dense.load_state_dict(model.dense.state_dict())
    assert torch.allclose(model(features, masks), plain(features, masks), atol=1e-5), "equal weights are a mean"
    nn.init.ones_(model.relevance["frames"].weight)
    assert not torch.allclose(model(features, masks), plain(features, masks), atol=1e-3)


def test_a_feature_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="net for words reads features motion"):
        VideoToWords(VideoToWordsOptions(features=("motion",)), SIZES)


def test_it_learns_which_words_belong_to_which_video() -> None:
    features, masks = videos(16)
    targets = (torch.rand(16, 5, generator=torch.Generator().manual_seed(2)) < 0.4).float()
    batch, model = WordBatch(tuple("abcdefghijklmnop"), features, masks, targets), net(hidden=32).train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        WordLoss()(model, batch).backward()
        optimiser.step()
    assert mean_average_precision(model(features, masks), targets > 0) > 0.99


def test_mean_average_precision_by_hand() -> None:
    # word 0: found at ranks 1 and 3; word 1: at rank 2; word 2: nobody has it
    scores = torch.tensor([[0.9, 0.8, 0.1], [0.5, 0.9, 0.2], [0.4, 0.1, 0.3]])
    truth = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]]).bool()
    assert mean_average_precision(scores, truth) == pytest.approx(((1 / 1 + 2 / 3) / 2 + 1 / 2) / 2)
    assert mean_average_precision(scores, torch.zeros(3, 3, dtype=torch.bool)) == 0.0
