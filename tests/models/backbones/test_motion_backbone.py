"""Motion backbones: outputs and preprocessing are torchvision's own, and its published layout loads by name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.models import get_model, get_model_weights

from models.backbones.backbone import Preprocessing
from models.backbones.motion import NAMES, MotionBackbone, fitted, frames_of, load
from models.backbones.weights import WeightsUnavailable
from models.backbones.zoo import UnknownOutput, check_output, open_backbone
from storage.media.resize import FrameTransform, resize_and_crop


def rolling(count: int, frames: int = 16, side: int = 112) -> Tensor:
    """Stripes that roll at a speed of their own, (count, frames, side, side, 3) uint8."""
    sizes = (count, frames, side, side, 3)
    n, m, y, x, c = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij")
    return ((x * 3 + y * 5 + m * (2 + 3 * n) + c * 40) % 256).byte()


# Seeded weights, one rolling clip: pooled mean, five of pooled, the likeliest class.
GOLDEN = [0.5263, 0.10167, 0.69274, 1.6264, 1.643, 0.73182]
LIKELIEST = 316


@pytest.fixture(scope="module")
def r3d() -> MotionBackbone:
    return load("r3d_18", None, 0)


def test_r3d_18_gives_its_stored_outputs(r3d: MotionBackbone) -> None:
    found = r3d(rolling(1))
    pooled, classes = found["pooled"][0], found["classes"][0]
    assert np.allclose([pooled.mean(), *pooled[:5]], GOLDEN, rtol=1e-3, atol=1e-3 * max(GOLDEN))
    assert int(classes.argmax()) == LIKELIEST and classes.sum().item() == pytest.approx(1, abs=1e-4)
    assert r3d.outputs == {"pooled": (512,), "classes": (400,)} and r3d.clip == 16
    assert r3d.preprocessing == Preprocessing(size=(171, 128), crop=(112, 112))


def test_a_clip_is_seen_as_torchvision_shows_it(r3d: MotionBackbone) -> None:
    video = np.random.default_rng(1).integers(0, 256, (16, 128, 171, 3), np.uint8)  # of the size that it is resized to
    assert r3d.preprocessing is not None
    ours = np.stack([resize_and_crop(frame, FrameTransform(**asdict(r3d.preprocessing))) for frame in video])
    preset = get_model_weights("r3d_18").DEFAULT.transforms()
    theirs = preset(torch.from_numpy(video).permute(0, 3, 1, 2))
    torch.manual_seed(0)
    net = get_model("r3d_18", weights=None).eval()
    with torch.inference_mode():
        expected = net(theirs[None]).softmax(-1)
    assert torch.allclose(r3d(torch.from_numpy(ours)[None])["classes"], expected, rtol=1e-4, atol=1e-7)


def test_a_row_depends_on_its_own_clip_alone(r3d: MotionBackbone) -> None:
    items = rolling(3, 8, 64)  # it takes any size; smaller is quicker
    found = r3d(items)
    order = torch.tensor([2, 0, 1])
    others = torch.flip(items, [1])
    others[0] = items[1]
    moved, among_others = r3d(items[order]), r3d(others)
    for output in r3d.outputs:
        assert torch.equal(moved[output], found[output][order])
        assert torch.equal(among_others[output][0], found[output][1])
        assert not torch.equal(among_others[output][2], found[output][2])  # played backwards it is another clip


def test_torchvisions_layout_loads_to_the_same_outputs(tmp_path: Path, r3d: MotionBackbone) -> None:
    torch.manual_seed(0)
    state = get_model("r3d_18", weights=None).state_dict()
    torch.save({f"module.{key}": value for key, value in state.items()}, tmp_path / "r3d_18-0123abcd.pth")
    loaded = open_backbone("tv:r3d_18", tmp_path / "r3d_18-0123abcd.pth", 7)
    items = rolling(1, 8, 64)
    expected, found = r3d(items), loaded(items)
    assert loaded.name == "r3d_18" and all(torch.equal(found[output], expected[output]) for output in expected)


@pytest.mark.slow
def test_s3d_classifies_by_convolution_and_equals_torchvisions() -> None:
    backbone = load("tv:s3d", None, 2)
    torch.manual_seed(2)
    net = get_model("s3d", weights=None).eval()
    items = rolling(1, 16, 224)
    preset = get_model_weights("s3d").DEFAULT.transforms()
    mean, std = (torch.tensor(values).view(1, 3, 1, 1, 1) for values in (preset.mean, preset.std))
    with torch.inference_mode():
        expected = net((items.permute(0, 4, 1, 2, 3).float() / 255 - mean) / std).softmax(-1)
    assert torch.allclose(backbone(items)["classes"], expected, rtol=1e-4, atol=1e-7)
    assert backbone.outputs == {"pooled": (1024,), "classes": (400,)}


def test_every_video_net_of_torchvision_says_how_it_is_shown_clips() -> None:
    assert {"r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v2_s", "swin3d_t"} <= set(NAMES)
    for name in NAMES:
        weights = get_model_weights(name).DEFAULT
        pictures = fitted(weights.transforms())
        assert pictures.crop in {(112, 112), (224, 224)} and (pictures.size is None) != (pictures.short is None)
        assert frames_of(name) >= weights.meta.get("min_temporal_size", 1)
    assert (frames_of("swin3d_t"), frames_of("mvit_v2_s")) == (32, 16)


def test_a_classifier_of_your_own_and_none_at_all(tmp_path: Path) -> None:
    state = get_model("mc3_18", num_classes=9).state_dict()
    torch.save(state, tmp_path / "mine.pth")
    assert load("tv:mc3_18", tmp_path / "mine.pth", 0).outputs == {"pooled": (512,), "classes": (9,)}
    torch.save({key: value for key, value in state.items() if not key.startswith("fc.")}, tmp_path / "none.pth")
    backbone = load("tv:mc3_18", tmp_path / "none.pth", 0)
    assert backbone.outputs == {"pooled": (512,)} == {key: (v.shape[1],) for key, v in backbone(rolling(1, 4, 48)).items()}
    with pytest.raises(UnknownOutput, match=r"'tv:mc3_18' has no output 'classes'.*it has pooled$"):
        check_output(backbone, "classes")


def test_weights_of_another_net_are_refused(tmp_path: Path) -> None:
    torch.save(get_model("mc3_18", num_classes=3).state_dict(), tmp_path / "other.pth")
    with pytest.raises(WeightsUnavailable, match=r"other.pth does not fit 'r3d_18': \d+ of \d+ weights"):
        load("r3d_18", tmp_path / "other.pth", 0)
    state = get_model("r3d_18", num_classes=3).state_dict()
    del state["fc.bias"]
    torch.save(state, tmp_path / "partial.pth")
    with pytest.raises(WeightsUnavailable, match=r"partial.pth does not fit 'r3d_18': 1 of 2 weights .* such as bias"):
        load("r3d_18", tmp_path / "partial.pth", 0)
