"""Image backbones: outputs and preprocessing are timm's own, rows keep to themselves, and files fit or are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import timm.data
import torch
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from models.backbones.backbone import Preprocessing
from models.backbones.image import ImageBackbone, fitted, load
from models.backbones.weights import WeightsUnavailable, digest
from models.backbones.zoo import UnknownBackbone, UnknownOutput, canonical, check_output, module_of, open_backbone
from storage.media.resize import FrameTransform, resize_and_crop

NET = "timm:test_resnet"  # half a million weights, 160 pixels


def stripes(backbone: ImageBackbone, count: int) -> Tensor:
    """Slanted stripes that differ by picture, (count, 1, H, W, 3) uint8, as large as the net wants them."""
    assert backbone.preprocessing is not None and backbone.preprocessing.crop is not None
    width, height = backbone.preprocessing.crop
    n, y, x, c = torch.meshgrid(*(torch.arange(size) for size in (count, height, width, 3)), indexing="ij")
    return ((x * (3 + n) + y * 5 + c * 40) % 256).byte()[:, None]


def awake(backbone: ImageBackbone) -> ImageBackbone:
    """Gains as trained nets have them: fresh residual blocks begin as nothing, and inception_v4's signal dies away."""
    for part in backbone.net.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.weight.fill_(2.2 if backbone.name == "inception_v4" else part.weight.mean().item() or 0.25)
    return backbone


# Seeded weights, one striped picture: pooled mean, four of pooled, two cells of the grid, and the largest class by number.
GOLDEN: dict[str, tuple[list[float], int]] = {
    "inception_v4": ([0.010192, 0.0074622, 9.8524e-06, 0.0025153, 0, 0.009739, 0], 946),
    "resnet101": ([0.18669, 0.18213, 0.16941, 0.04966, 0.0042574, 0.0096508, 0.065499], 903),
    "resnet152": ([0.47885, 0.38279, 1.2908, 0.00084476, 1.2718, 0.24336, 0.031569], 709),
    "resnext101_32x8d": ([0.051558, 0.0039804, 0.0037864, 0.099059, 0.060166, 0.0020587, 0.003294], 786),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_named_nets_give_their_stored_outputs(name: str) -> None:
    backbone = open_backbone(name, None, seed=0)
    assert isinstance(backbone, ImageBackbone)
    found = awake(backbone)(stripes(backbone, 1))
    pooled, grid, classes = (found[output][0] for output in ("pooled", "grid", "classes"))
    numbers = [pooled.mean(), *pooled[:4], grid[0, 0], grid[-1, -1]]
    expected, likeliest = GOLDEN[name]
    assert np.allclose(numbers, expected, rtol=1e-3, atol=1e-3 * max(map(abs, expected)))
    assert int(classes.argmax()) == likeliest and classes.sum().item() == pytest.approx(1, abs=1e-4)
    assert {output: tuple(value.shape[1:]) for output, value in found.items()} == backbone.outputs
    size, cells, side = (1536, 64, 299) if name == "inception_v4" else (2048, 49, 224)
    assert backbone.outputs == {"pooled": (size,), "grid": (cells, size), "classes": (1000,)} and backbone.clip is None
    assert backbone.preprocessing is not None and backbone.preprocessing.crop == (side, side)


@pytest.mark.parametrize(
    "name", ["test_resnet", "test_vit", "test_convnext", pytest.param("swin_tiny_patch4_window7_224", marks=pytest.mark.slow)]
)
def test_outputs_are_timms_own(name: str) -> None:
    backbone = awake(load(f"timm:{name}", None, 3))
    items = stripes(backbone, 2)
    found = backbone(items)
    headless = timm.create_model(name, num_classes=0).eval()
    headless.load_state_dict({k: v for k, v in backbone.net.state_dict().items() if k in headless.state_dict()})
    config = timm.data.resolve_data_config({}, model=headless)
    mean, std = (torch.tensor(config[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    pixels = (items[:, 0].permute(0, 3, 1, 2).float() / 255 - mean) / std
    with torch.inference_mode():
        assert torch.allclose(found["pooled"], headless(pixels), rtol=1e-4, atol=1e-5)
        assert torch.allclose(found["classes"], backbone.net(pixels).softmax(-1), rtol=1e-4, atol=1e-6)
        seen: Any = headless.forward_features(pixels)  # type: ignore[operator]
    if seen.ndim == 3:
        expected = seen[:, headless.num_prefix_tokens :]
    else:
        expected = (seen if seen.shape[-1] == headless.num_features else seen.permute(0, 2, 3, 1)).reshape(
            2, -1, found["grid"].shape[-1]
        )
    assert torch.allclose(found["grid"], expected, rtol=1e-4, atol=1e-5)
    assert {output: tuple(value.shape[1:]) for output, value in found.items()} == backbone.outputs
    assert all(value.dtype == torch.float32 and not value.requires_grad for value in found.values())


@pytest.mark.parametrize("shape", [(200, 310), (410, 300), (161, 161)])
def test_a_fitted_frame_is_what_timms_transform_makes_of_it(shape: tuple[int, int]) -> None:
    backbone = load(NET, None, 0)
    frame = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=backbone.net))
    pixels = transform(Image.fromarray(frame))
    assert isinstance(pixels, Tensor) and backbone.preprocessing is not None
    ours = resize_and_crop(frame, FrameTransform(**asdict(backbone.preprocessing)))
    with torch.inference_mode():
        expected = backbone.net(pixels[None].to(memory_format=torch.channels_last)).softmax(-1)
    found = backbone(torch.from_numpy(ours.copy())[None, None])["classes"]
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-8)


def test_squashed_and_centred_pictures() -> None:
    config = {"input_size": (3, 224, 224), "crop_pct": 0.9, "crop_mode": "center", "interpolation": "lanczos"}
    assert fitted(config) == Preprocessing(short=248, crop=(224, 224), interpolation="bicubic")
    assert fitted({**config, "crop_mode": "squash", "interpolation": "bilinear"}) == Preprocessing(
        size=(248, 248), crop=(224, 224)
    )


@pytest.mark.parametrize("name", [NET, "timm:resnet10t", "timm:test_vit"])
def test_a_row_depends_on_its_own_picture_alone(name: str) -> None:
    backbone = awake(load(name, None, 0))
    items = stripes(backbone, 4)
    found = backbone(items)
    order = torch.tensor([2, 0, 3, 1])
    others = torch.flip(items, [2])
    others[1] = items[3]
    moved, among_others = backbone(items[order]), backbone(others)
    for output in backbone.outputs:
        assert torch.equal(moved[output], found[output][order]), output
        assert torch.equal(among_others[output][1], found[output][3]), output
        assert not torch.equal(among_others[output][0], found[output][0]), output


def test_the_same_seed_gives_the_same_weights_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one = load(NET, None, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert digest(one.net) == digest(load(NET, None, seed=1).net) != digest(load(NET, None, seed=2).net)


def _plain(state: dict[str, Tensor], path: Path) -> None:
    torch.save(state, path)


def _wrapped(state: dict[str, Tensor], path: Path) -> None:
    torch.save({"epoch": 3, "arch": "net", "state_dict": {f"module.{key}": t for key, t in state.items()}}, path)


def _before_counters(state: dict[str, Tensor], path: Path) -> None:
    kept = {key: t for key, t in state.items() if not key.endswith("num_batches_tracked")}
    torch.save({"model": kept}, path, _use_new_zipfile_serialization=False)


def _safe(state: dict[str, Tensor], path: Path) -> None:
    save_file({key: t.contiguous() for key, t in state.items()}, path)


LAYOUTS: dict[str, tuple[str, Callable[[dict[str, Tensor], Path], None]]] = {
    "hub": ("model.safetensors", _safe),
    "torch": ("net-0123abcd.pth", _plain),
    "training script": ("net.pth", _wrapped),
    "old": ("net.pth", _before_counters),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [NET, "timm:test_vit"])
def test_published_layouts_load_to_the_same_outputs(tmp_path: Path, name: str, layout: str) -> None:
    original = awake(load(name, None, 5))
    file, write = LAYOUTS[layout]
    write(original.net.state_dict(), tmp_path / file)
    loaded = load(name, tmp_path / file, 0)
    items = stripes(original, 2)
    expected, found = original(items), loaded(items)
    assert found.keys() == expected.keys() == loaded.outputs.keys()
    assert all(torch.equal(found[output], expected[output]) for output in expected)
    assert "state_dict" not in loaded.net.pretrained_cfg  # type: ignore[operator]


def test_torchvisions_file_of_resnext101_has_the_layout_that_timm_wants() -> None:
    with torch.device("meta"):
        theirs = torchvision.models.resnext101_32x8d().state_dict()
        ours = timm.create_model("resnext101_32x8d").state_dict()
    assert {key: t.shape for key, t in theirs.items()} == {key: t.shape for key, t in ours.items()}


@pytest.mark.parametrize("classes", [0, 7])
def test_a_file_without_a_classifier_or_with_one_of_your_own(tmp_path: Path, classes: int) -> None:
    torch.manual_seed(9)
    net = timm.create_model("test_resnet", num_classes=classes).eval()
    save_file(net.state_dict(), tmp_path / "mine.safetensors")
    backbone = load(NET, tmp_path / "mine.safetensors", 0)
    assert backbone.outputs.get("classes") == ((7,) if classes else None)
    assert backbone.net.state_dict().keys() == net.state_dict().keys()
    assert check_output(backbone, "pooled") == (96,)
    if not classes:
        with pytest.raises(UnknownOutput, match=r"has no output 'classes'.*no classifier; it has pooled, grid"):
            check_output(backbone, "classes")


def test_a_head_that_projects_to_captions_is_no_classifier() -> None:
    backbone = load("timm:vit_xsmall_patch16_clip_224", None, 0)
    assert backbone.outputs == {"pooled": (256,), "grid": (196, 256)}


class Surprise:
    """Would make a file when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_file_with_code_in_it_is_refused_and_not_executed(tmp_path: Path) -> None:
    state: dict[str, Any] = load(NET, None, 0).net.state_dict()
    for name, trap in (("with", state | {"x": Surprise(tmp_path / "ran")}), ("only", Surprise(tmp_path / "ran"))):
        torch.save(trap, tmp_path / f"{name}.pth")
        with pytest.raises(WeightsUnavailable, match="holds no plain weights"):
            load(NET, tmp_path / f"{name}.pth", 0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_a_truncated_file_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"net.{ending}"
    (_safe if ending == "safetensors" else _plain)(load(NET, None, 0).net.state_dict(), path)
    data = path.read_bytes()
    for size in (0, 7, 1000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(WeightsUnavailable, match=f"net.{ending} holds no plain weights of 'timm:test_resnet'"):
            load(NET, path, 0)


def test_weights_of_another_net_are_refused(tmp_path: Path) -> None:
    own = load(NET, None, 0).net.state_dict()
    other = timm.create_model("resnet10t").state_dict()
    reshaped = {**own, "conv1.weight": torch.zeros(3, 3)}
    partial = {key: own[key] for key in list(own)[:20]}
    for name, state in {"other": other, "reshaped": reshaped, "partial": partial, "none": {}, "notes": {"epoch": 3}}.items():
        torch.save(state, tmp_path / f"{name}.pth")
        with pytest.raises(WeightsUnavailable, match=rf"{name}.pth does not fit 'timm:test_resnet' ?(\(|:)"):
            load(NET, tmp_path / f"{name}.pth", 0)
    with pytest.raises(WeightsUnavailable, match=r"no weights of 'timm:test_resnet' at .*nowhere.pth"):
        load(NET, tmp_path / "nowhere.pth", 0)


def test_a_sized_net_sees_the_whole_frame_and_averages_its_map_to_14_by_14_cells_as_by_hand() -> None:
    backbone = load(f"{NET}@512", None, seed=0)  # a map of 16 x 16
    assert backbone.preprocessing == Preprocessing(size=(512, 512), crop=(512, 512), interpolation="bilinear")
    assert backbone.outputs["grid14"] == (196, backbone.outputs["grid"][1])
    found = awake(backbone)(stripes(backbone, 1))
    side = round(found["grid"].shape[1] ** 0.5)
    whole, cells = found["grid"][0].unflatten(0, (side, side)), found["grid14"][0].unflatten(0, (14, 14))
    for row in (0, 5, 13):
        for column in (0, 8, 13):
            top, bottom = row * side // 14, -(-(row + 1) * side // 14)
            left, right = column * side // 14, -(-(column + 1) * side // 14)
            by_hand = whole[top:bottom, left:right].mean((0, 1))
            assert torch.allclose(cells[row, column], by_hand, atol=1e-5)
    assert "grid14" not in load(NET, None, seed=0).outputs
    with pytest.raises(ValueError, match="from 32 to 2048"):
        load(f"{NET}@9", None, seed=0)


def test_names_with_a_size_are_those_of_the_same_net() -> None:
    assert canonical("timm:resnet101@448") == "resnet101@448" and module_of("timm:resnet101.tv_in1k@448") == "image"
    with pytest.raises(UnknownBackbone):
        module_of("timm:resnet1O1@448")
