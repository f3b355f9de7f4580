"""The 3D ResNeXt-101: the published weights' names and shapes, stored outputs, and clips that do not disturb each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.resnext3d import load
from models.backbones.weights import WeightsUnavailable

NORM = ("weight", "bias", "running_mean", "running_var")


def published_keys() -> set[str]:
    """The names in the state dict of resnext-101-kinetics.pth (without its 'module.'), which is of 2017: no counters."""
    keys = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{part}" for part in NORM)}
    for stage, depth in enumerate((3, 4, 23, 3), start=1):
        for block in range(depth):
            for n in (1, 2, 3):
                keys.add(f"layer{stage}.{block}.conv{n}.weight")
                keys |= {f"layer{stage}.{block}.bn{n}.{part}" for part in NORM}
        keys.add(f"layer{stage}.0.downsample.0.weight")
        keys |= {f"layer{stage}.0.downsample.1.{part}" for part in NORM}
    return keys


PUBLISHED_SHAPES = {
    "conv1.weight": (64, 3, 7, 7, 7),
    "layer1.0.conv1.weight": (128, 64, 1, 1, 1),
    "layer1.0.conv2.weight": (128, 4, 3, 3, 3),
    "layer1.0.conv3.weight": (256, 128, 1, 1, 1),
    "layer1.0.downsample.0.weight": (256, 64, 1, 1, 1),
    "layer1.2.conv1.weight": (128, 256, 1, 1, 1),
    "layer2.0.conv1.weight": (256, 256, 1, 1, 1),
    "layer3.22.conv2.weight": (512, 16, 3, 3, 3),
    "layer4.0.conv2.weight": (1024, 32, 3, 3, 3),
    "layer4.0.downsample.0.weight": (2048, 1024, 1, 1, 1),
    "layer4.2.bn3.running_var": (2048,),
    "fc.weight": (400, 2048),
}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load("resnext101_3d", None, seed=0)


def clips(count: int, frames: int, side: int = 112) -> Tensor:
    """(count, frames, side, side, 3) uint8: coloured clouds that change."""
    coarse = torch.rand(count, 3, 4, 5, 6, generator=torch.Generator().manual_seed(frames)) * 255
    return torch.nn.functional.interpolate(coarse, (frames, side, side), mode="trilinear").byte().permute(0, 2, 3, 4, 1)


def test_seeded_outputs_are_the_stored_ones(backbone: Backbone) -> None:
    found = backbone(clips(1, 16))
    assert {name: tuple(value.shape[1:]) for name, value in found.items()} == dict(backbone.outputs)
    assert all(value.dtype == torch.float32 for value in found.values())
    assert found["pooled"][0, [0, 1, 2047]].tolist() == pytest.approx(GOLDEN, rel=1e-3)
    assert float(found["classes"].sum()) == pytest.approx(1)
    assert found["classes"][0, [0, 399]].tolist() == pytest.approx(GOLDEN_CLASSES, rel=1e-3)


def test_a_clip_does_not_depend_on_its_neighbours_or_its_place(backbone: Backbone) -> None:
    items = clips(3, 8, 64)
    found = backbone(items)
    other = backbone(torch.stack([items[2], 255 - items[1], items[0]]))
    for name in backbone.outputs:
        assert torch.equal(found[name][0], other[name][2]) and torch.equal(found[name][2], other[name][0])
        assert not torch.equal(found[name][1], other[name][1])


@pytest.mark.parametrize("frames", [8, 9, 32])
def test_clips_of_other_lengths_are_pooled_over_what_is_left(backbone: Backbone, frames: int) -> None:
    found = backbone(clips(1, frames, 48))
    assert found["pooled"].shape == (1, 2048) and found["pooled"].isfinite().all()


def test_the_order_of_frames_and_colours_matters(backbone: Backbone) -> None:
    items = clips(1, 8, 64)
    found = backbone(torch.cat([items, items.flip(1), items.flip(4)]))["pooled"]
    assert not torch.allclose(found[0], found[1], rtol=1e-2) and not torch.allclose(found[0], found[2], rtol=1e-2)


def test_the_mean_colour_is_subtracted_from_whole_levels(backbone: Backbone) -> None:
    items = clips(1, 8, 64)
    pixels = items.double() - torch.tensor([114.7748, 107.7354, 99.4750], dtype=torch.float64)
    with torch.inference_mode():
        expected, _ = backbone.net(pixels.float().permute(0, 4, 1, 2, 3).contiguous())
    assert torch.allclose(backbone(items)["pooled"], expected, rtol=1e-4, atol=1e-5)
    assert backbone.preprocessing == Preprocessing(short=112, crop=(112, 112)) and backbone.clip == 16


def test_published_names_and_shapes(backbone: Backbone) -> None:
    state = backbone.net.state_dict()
    assert {key for key in state if not key.endswith("num_batches_tracked")} == published_keys()
    assert {key: tuple(state[key].shape) for key in PUBLISHED_SHAPES} == PUBLISHED_SHAPES


def test_a_file_in_the_published_layout_loads_strictly(tmp_path: Path, backbone: Backbone) -> None:
    state = backbone.net.state_dict()
    published = {f"module.{key}": state[key] for key in sorted(published_keys())}
    whole = {"epoch": 200, "arch": "resnext-101", "state_dict": published, "optimizer": {"state": {}}}
    torch.save(whole, tmp_path / "whole.pth", _use_new_zipfile_serialization=False)  # torch wrote no other kind in 2017
    loaded = load("resnext101_3d", tmp_path / "whole.pth", seed=1).net.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in state.items())


def test_a_file_of_another_net_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {"module.conv1.weight": torch.zeros(64, 3, 3, 7, 7)}}, tmp_path / "other.pth")
    with pytest.raises(WeightsUnavailable, match=r"other\.pth does not fit 'resnext101_3d'"):
        load("resnext101_3d", tmp_path / "other.pth", seed=0)


GOLDEN = [0.2194652, 0.1876938, 0.1827229]
GOLDEN_CLASSES = [7.255296e-4, 6.903909e-4]
