"""Image backbones: the preprocessing is timm's, weights come from a seed or a file, and what is missing is explained."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import timm.data
import torch
from PIL import Image
from safetensors.torch import save_file

from models.backbones.image import WeightsUnavailable, load_image_backbone

NET = "resnet10t"


def frames(height: int, width: int) -> torch.Tensor:
    coarse = torch.rand(2, 3, 5, 6, generator=torch.Generator().manual_seed(0)) * 255
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear").byte().permute(0, 2, 3, 1)


@pytest.mark.parametrize("shape", [(300, 410), (90, 64), (201, 201)])
def test_preprocessing_equals_timms_own_up_to_rounding(shape: tuple[int, int]) -> None:
    backbone = load_image_backbone(NET, "random")
    images = frames(*shape)
    found = backbone.preprocess(images)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=backbone.net))
    expected = torch.stack([transform(Image.fromarray(image.numpy())) for image in images])
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1.5 / 255 / 0.22  # PIL rounds to whole levels after each of its two passes


def test_features_are_pooled_and_do_not_depend_on_the_batch() -> None:
    backbone = load_image_backbone(NET, "random")
    batch = backbone.preprocess(frames(120, 90))
    found = backbone.features(batch)
    assert found.shape == (2, backbone.size) == (2, 512)
    assert torch.allclose(found[1:], backbone.features(batch[1:]), atol=1e-5)
    assert not found.requires_grad


def test_the_same_seed_gives_the_same_weights_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one = load_image_backbone(NET, "random", seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert one.weights_digest == load_image_backbone(NET, "random", seed=1).weights_digest
    assert one.weights_digest != load_image_backbone(NET, "random", seed=2).weights_digest


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_weights_of_a_file_are_loaded_and_its_classifier_left_aside(tmp_path: Path, ending: str) -> None:
    torch.manual_seed(9)
    state = timm.create_model(NET, num_classes=7).state_dict()
    path = tmp_path / f"weights.{ending}"
    if ending == "pth":
        torch.save({"state_dict": state}, path)
    else:
        save_file(state, path)
    backbone = load_image_backbone(NET, str(path))
    assert torch.equal(backbone.net.state_dict()["conv1.0.weight"], state["conv1.0.weight"])
    assert backbone.size == 512


class Surprise:
    """Would make a file when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_files_that_are_no_weights_are_explained_and_never_executed(tmp_path: Path) -> None:
    with pytest.raises(WeightsUnavailable, match=r"no weights of 'resnet10t' at .*none\.pth"):
        load_image_backbone(NET, str(tmp_path / "none.pth"))
    trap = tmp_path / "trap.pth"
    torch.save({"conv1.0.weight": Surprise(tmp_path / "executed")}, trap)
    with pytest.raises(WeightsUnavailable, match="holds no plain weights"):
        load_image_backbone(NET, str(trap))
    assert not (tmp_path / "executed").exists()
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("these are not weights")
        with pytest.raises(WeightsUnavailable, match=name):
            load_image_backbone(NET, str(tmp_path / name))
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    with pytest.raises(WeightsUnavailable, match="does not fit"):
        load_image_backbone(NET, str(tmp_path / "tensor.pth"))


def test_pretrained_weights_that_cannot_be_fetched_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsUnavailable, match=r"from timm/resnet10t.*give the file's path"):
        load_image_backbone(NET, "pretrained")


def test_an_unknown_net_lists_similar_ones() -> None:
    with pytest.raises(ValueError, match=r"no net 'resnet10q'; similar: .*resnet10t"):
        load_image_backbone("resnet10q", "random")
