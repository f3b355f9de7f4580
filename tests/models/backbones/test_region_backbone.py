"""Regions: torchvision's own features of its own proposals, in a fixed order, padded where a frame has few."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.backbones import region
from models.backbones.backbone import Preprocessing
from models.backbones.region import RegionBackbone, load

NAME = "fasterrcnn_resnet50_fpn_v2"


@pytest.fixture(scope="module")
def backbone() -> Iterator[Any]:
    """With few proposals, so that a frame takes less than half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region, "PROPOSALS", 60)
        yield load(NAME, None, seed=0)


def frames(count: int, height: int = 64, width: int = 96) -> Tensor:
    """(count, 1, height, width, 3) uint8: coloured clouds."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(height)) * 255
    return nn.functional.interpolate(coarse, (height, width), mode="bilinear").byte().permute(0, 2, 3, 1)[:, None]


def test_seeded_outputs_are_the_stored_ones(backbone: RegionBackbone) -> None:
    found = backbone(frames(1))
    assert {name: tuple(value.shape[1:]) for name, value in found.items()} == dict(backbone.outputs)
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in found.values())
    assert found["boxes"][0, 0].tolist() == pytest.approx(GOLDEN_BOX, rel=1e-3, abs=1e-5)
    assert float(found["regions"][0, 0].mean()) == pytest.approx(GOLDEN_MEAN, rel=1e-3)


def test_features_scores_and_boxes_are_torchvisions_own(backbone: RegionBackbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own way from pixels to proposals and features, watched from outside; the frame's sides are no whole cells."""
    net: Any = backbone.net
    seen: dict[str, Tensor] = {}
    items = frames(1, 72, 100)
    found = backbone(items)
    monkeypatch.setattr(net.transform, "min_size", (72,))
    watched = [
        net.roi_heads.box_roi_pool.register_forward_pre_hook(lambda _, given: seen.update(boxes=given[1][0])),
        net.roi_heads.box_head.register_forward_hook(lambda _, given, result: seen.update(features=result)),
        net.roi_heads.box_predictor.register_forward_hook(lambda _, given, result: seen.update(logits=result[0])),
    ]
    with torch.inference_mode():
        net([items[0, 0].permute(2, 0, 1) / 255])
    for hook in watched:
        hook.remove()
    boxes = seen["boxes"] / torch.tensor([100, 72, 100, 72])
    probabilities = seen["logits"].softmax(1)
    for feature, row in zip(found["regions"][0], found["boxes"][0], strict=True):
        distance, place = (boxes - row[:4]).abs().max(1).values.min(0)
        assert distance < 1e-5
        assert torch.allclose(feature, seen["features"][place], rtol=1e-3, atol=1e-3)
        assert float(row[4]) == pytest.approx(float(probabilities[place, int(row[5])]), rel=1e-3)
        assert int(row[5]) == 1 + int(probabilities[place, 1:].argmax())
    assert float(found["boxes"][0, 0, 4]) == pytest.approx(float(probabilities[:, 1:].max()), rel=1e-3)
    assert float(found["boxes"][..., :4].min()) >= 0 and float(found["boxes"][..., :4].max()) <= 1


def test_the_best_come_first_and_none_covers_another_of_its_class(backbone: RegionBackbone) -> None:
    rows = backbone(frames(1, 96, 128))["boxes"][0]
    assert bool((rows[:-1, 4] >= rows[1:, 4]).all())
    corner, far = (torch.maximum(rows[:, None, :2], rows[None, :, :2]), torch.minimum(rows[:, None, 2:4], rows[None, :, 2:4]))
    shared = (far - corner).clamp(min=0).prod(2)
    area = (rows[:, 2:4] - rows[:, :2]).prod(1)
    overlap = shared / (area[:, None] + area - shared)
    same = (rows[:, None, 5] == rows[:, 5]) & ~torch.eye(16, dtype=torch.bool)
    assert same.any() and float(overlap[same].max()) <= 0.5 + 1e-4


def test_a_frame_does_not_depend_on_its_neighbours_or_its_place(backbone: RegionBackbone) -> None:
    items = frames(2)
    found, turned = backbone(items), backbone(items.flip(0))
    beside_black = backbone(torch.stack([torch.zeros_like(items[0]), items[1]]))
    for name in backbone.outputs:
        assert torch.equal(found[name], turned[name].flip(0))
        assert torch.equal(found[name][1], beside_black[name][1])
        assert not torch.equal(found[name][0], beside_black[name][0])


def test_the_order_of_pixels_in_memory_does_not_matter(backbone: RegionBackbone) -> None:
    items = frames(1)
    found, other = backbone(items), backbone(items.contiguous())
    assert not items.is_contiguous()
    assert all(torch.equal(found[name], other[name]) for name in backbone.outputs)


@pytest.mark.parametrize("least", [0.51, 1.1])
def test_missing_regions_are_rows_of_zeros(backbone: RegionBackbone, monkeypatch: pytest.MonkeyPatch, least: float) -> None:
    net: Any = backbone.net
    proposed: list[int] = []
    watch = net.rpn.register_forward_hook(lambda _, given, result: proposed.append(len(result[0][0])))
    monkeypatch.setattr(net.rpn, "score_thresh", least)
    monkeypatch.setattr(net.rpn, "_post_nms_top_n", {"testing": 5})
    found = backbone(frames(1))
    watch.remove()
    real = found["boxes"][0, :, 5] > 0
    assert proposed == [0 if least > 1 else 5] and int(real.sum()) <= proposed[0]
    assert bool(real.any()) == (least < 1)
    assert bool((found["boxes"][0][~real] == 0).all()) and bool((found["regions"][0][~real] == 0).all())
    assert bool((found["boxes"][0][real][:, 4] > 0).all()) and bool(found["regions"][0][real].any(1).all())
    assert real.tolist() == sorted(real.tolist(), reverse=True)


def test_equal_scores_are_ordered_by_place_whatever_order_they_came_in() -> None:
    places = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)) * 50
    boxes = torch.cat([places, places + 30], 1)
    scores, labels = torch.full((40,), 0.25), torch.arange(40) % 3 + 1
    scores[:4] = 0.75

    def chosen(order: Tensor) -> list[tuple[float, ...]]:
        rank = order[region._ranked(scores[order], boxes[order])]
        best = rank[region._distinct(boxes[rank], scores[rank], labels[rank])]
        return [(-float(scores[n]), *boxes[n].tolist()) for n in best]

    expected = chosen(torch.arange(40))
    assert expected == sorted(expected) and 4 < len(expected) < 40
    for seed in range(5):
        assert chosen(torch.randperm(40, generator=torch.Generator().manual_seed(seed))) == expected


def test_names_say_the_size_of_frames(monkeypatch: pytest.MonkeyPatch, backbone: RegionBackbone) -> None:
    monkeypatch.setattr(region, "_net", lambda classes: backbone.net)
    assert load(NAME, None, 0).preprocessing == Preprocessing(short=800, longest=1333)
    assert load(f"{NAME}@320", None, 0).preprocessing == Preprocessing(short=320, longest=533)
    for wrong in (f"{NAME}@", f"{NAME}@0", f"{NAME}@32x", "maskrcnn"):
        with pytest.raises(ValueError, match=f"give {NAME}"):
            load(wrong, None, 0)


def test_weights_of_a_file_bring_their_own_classes(tmp_path: Path) -> None:
    state = region._net(5).state_dict()
    assert state["roi_heads.box_predictor.cls_score.weight"].shape == (5, 1024)
    torch.save(state, tmp_path / "five.pth")
    loaded: Any = load(NAME, tmp_path / "five.pth", 0)
    assert all(torch.equal(loaded.net.state_dict()[key], value) for key, value in state.items())


@pytest.mark.slow
def test_whole_size_frames(backbone: RegionBackbone) -> None:
    found = load(NAME, None, seed=0)(frames(1, 800, 1066))
    assert all(value.isfinite().all() for value in found.values())
    assert bool((found["boxes"][..., 5] > 0).all())


GOLDEN_BOX = [0.6650997, 0.2840482, 1.0, 0.6357874, 0.7222453, 44.0]
GOLDEN_MEAN = 3.057819
