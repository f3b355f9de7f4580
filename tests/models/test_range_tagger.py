"""GL-RG's literal encoders: which frames each sees, what is trained and saved, and that it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from models.backbones.zoo import open_backbone
from models.range_tagger import FAR, NEAR, AnyTaggerOptions, LongRangeOptions, RangeTagger, ShortRangeOptions
from models.tagger import TagBatch, TaggerOptions, TagLoss

SMALL: dict[str, Any] = {"words": 4, "size": 32, "net": "timm:test_resnet", "weights": "random", "hidden": 16, "dropout": 0.0}


def tagger(kind: str) -> RangeTagger:
    torch.manual_seed(0)
    image = open_backbone("timm:test_resnet", None, 0)
    if kind == "long_range":
        return RangeTagger(LongRangeOptions(**SMALL, channels=8, blocks=1), [image])
    return RangeTagger(ShortRangeOptions(**SMALL, motion="r3d_18"), [image, open_backbone("r3d_18", None, 0)])


def clips(videos: int = 2, keyframes: int = 2) -> torch.Tensor:
    shape = (videos, keyframes, 5, 32, 32, 3)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(3), dtype=torch.uint8)


@pytest.mark.parametrize(("kind", "seen"), [("long_range", FAR), ("short_range", NEAR)])
def test_an_encoder_sees_its_range_of_frames_and_no_others(kind: str, seen: tuple[int, ...]) -> None:
    model, given = tagger(kind).eval(), clips()
    before = model(given)
    assert before.shape == (2, 4)
    for frame in range(5):
        changed = given.clone()
        changed[:, :, frame] = 255 - changed[:, :, frame]
        assert torch.allclose(model(changed), before, atol=1e-6) != (frame in seen)


@pytest.mark.parametrize("kind", ["long_range", "short_range"])
def test_pretrained_nets_are_neither_trained_nor_saved(kind: str) -> None:
    model = tagger(kind)
    trained = sum(p.numel() for p in model.parameters())
    assert trained < 60_000 and all(p.requires_grad for p in model.parameters())
    assert not any("backbone" in name for name in model.state_dict())
    TagLoss()(model, TagBatch(("a", "b"), clips(), torch.ones(2, 4))).backward()  # type: ignore[arg-type]
    assert all(p.grad is not None for p in model.parameters())
    assert all(p.grad is None for net in model._backbones for p in net.net.parameters())


def test_the_probabilities_of_keyframes_are_each_ones_own() -> None:
    model, given = tagger("long_range").eval(), clips(1, 3)
    rows = model.features(given[0])
    alone = model.features(given[0, 1:2])
    assert torch.allclose(rows[1:2], alone, atol=1e-5)
    assert model.words_of_keyframes(rows).shape == (3, 4)


def test_it_learns_two_clips() -> None:
    model, batch = tagger("long_range").train(), TagBatch(("a", "b"), clips(2, 1), torch.eye(2).repeat(1, 2))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = TagLoss()(model, batch)  # type: ignore[arg-type]
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_frames_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="sample 'keyframes'"):
        tagger("long_range")(clips()[:, :, :3])


def test_a_tagger_without_a_kind_is_the_small_one() -> None:
    parse = TypeAdapter(AnyTaggerOptions).validate_python
    assert isinstance(parse({"words": 12}), TaggerOptions)
    assert isinstance(parse({"kind": "long_range"}), LongRangeOptions) and parse({"kind": "short_range"}).nets == (
        "resnet101",
        "r3d_18",
    )
