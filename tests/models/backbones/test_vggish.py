"""VGGish: the public weights' names and shapes, stored outputs, and patches that do not disturb each other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.backbones.vggish import load
from models.backbones.weights import WeightsUnavailable
from models.backbones.zoo import open_backbone

PUBLIC_SHAPES = {
    "features.0.weight": (64, 1, 3, 3),
    "features.3.weight": (128, 64, 3, 3),
    "features.6.weight": (256, 128, 3, 3),
    "features.8.weight": (256, 256, 3, 3),
    "features.11.weight": (512, 256, 3, 3),
    "features.13.weight": (512, 512, 3, 3),
    "embeddings.0.weight": (4096, 512 * 6 * 4),
    "embeddings.2.weight": (4096, 4096),
    "embeddings.4.weight": (128, 4096),
}
"""Of vggish-10086976.pth; each weight has a bias beside it."""


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load("vggish", None, seed=0)


def patches(count: int) -> Tensor:
    """(count, 96, 64): as log-mel patches are, from silence at -4.6 up."""
    coarse = torch.randn(count, 1, 12, 8, generator=torch.Generator().manual_seed(1)) * 2 - 2
    return nn.functional.interpolate(coarse, (96, 64), mode="bilinear")[:, 0].clamp(min=-4.605)


def test_seeded_outputs_are_the_stored_ones(backbone: Backbone) -> None:
    assert backbone.preprocessing is None and backbone.clip is None and backbone.outputs == {"embedding": (128,)}
    found = backbone(patches(2))["embedding"]
    assert found.shape == (2, 128) and found.dtype == torch.float32
    assert bool((found >= 0).all()) and bool((found == 0).any())  # the last ReLU is applied
    strongest = found[0].argsort(descending=True)[:4]
    assert strongest.tolist() == GOLDEN_PLACES
    assert found[0, strongest].tolist() == pytest.approx(GOLDEN, rel=1e-3)


def test_the_layers_follow_the_paper(backbone: Backbone) -> None:
    """The same weights in a plain computation: convolutions in four groups, halved after each, then time, band, channel."""
    state, x = backbone.net.state_dict(), patches(1)[:, None]
    for n in (0, 3, 6, 8, 11, 13):
        x = nn.functional.conv2d(x, state[f"features.{n}.weight"], state[f"features.{n}.bias"], padding=1).clamp(min=0)
        if n not in (6, 11):
            x = nn.functional.max_pool2d(x, 2)
    row = torch.stack([x[0, :, time, band] for time in range(6) for band in range(4)]).flatten()
    for n in (0, 2, 4):
        row = (state[f"embeddings.{n}.weight"] @ row + state[f"embeddings.{n}.bias"]).clamp(min=0)
    assert torch.allclose(backbone(patches(1))["embedding"][0], row, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("count", [3, 8])
def test_a_patch_does_not_depend_on_its_neighbours_or_its_place(backbone: Backbone, count: int) -> None:
    items = patches(count)
    found = backbone(items)["embedding"]
    others = items.roll(1, 0) * 0.5
    others[count - 1] = items[0]
    assert torch.equal(backbone(others)["embedding"][count - 1], found[0])
    assert torch.equal(backbone(items.flip(0))["embedding"].flip(0), found)


def test_a_file_in_the_public_layout_loads_strictly(tmp_path: Path, backbone: Backbone) -> None:
    expected = {**PUBLIC_SHAPES, **{key.replace("weight", "bias"): shape[:1] for key, shape in PUBLIC_SHAPES.items()}}
    assert {key: tuple(value.shape) for key, value in backbone.net.state_dict().items()} == expected
    state = backbone.net.state_dict()
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "vggish.pth")
    loaded = load("vggish", tmp_path / "vggish.pth", seed=1).net.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in state.items())


def test_a_file_of_another_net_is_refused(tmp_path: Path) -> None:
    torch.save({"features.0.weight": torch.zeros(64, 3, 3, 3)}, tmp_path / "other.pth")
    with pytest.raises(WeightsUnavailable, match=r"other\.pth does not fit 'vggish'.* 18 of 18"):
        load("vggish", tmp_path / "other.pth", seed=0)


GOLDEN_PLACES = [59, 25, 94, 39]
GOLDEN = [16.39892, 15.67443, 15.48630, 13.92293]


def test_sound_without_a_net_is_the_loudness_of_each_band_and_its_change() -> None:
    silence = torch.full((1, 96, 64), math.log(0.01))
    beep = silence.clone()
    beep[0, ::2, 5] += 2.0
    backbone = open_backbone("log_mel", None, 0)
    assert not backbone(silence)["embedding"].any() and backbone.outputs["embedding"] == (128,)
    found = backbone(beep)["embedding"][0]
    assert found[5].item() == pytest.approx(1.0, abs=1e-5) and found[64 + 5].item() == pytest.approx(1.0, abs=1e-5)
    assert int((found != 0).sum()) == 2
    with pytest.raises(WeightsUnavailable, match="has no weights"):
        open_backbone("log_mel", Path("some.pth"), 0)
