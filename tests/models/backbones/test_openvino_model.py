"""Nets as OpenVINO models: near the net that they were made from, rows that keep to themselves, clear words where it fails."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from models.backbones.batches import ItemBatch
from models.backbones.openvino_model import (
    Arithmetic,
    CannotConvert,
    ModelBatch,
    OpenVinoModel,
    convert,
    knows_bfloat16,
    run_model,
)
from models.backbones.zoo import open_backbone
from tests import ROOT

BATCH = 4
SHAPE = (BATCH, 1, 160, 160, 3)


@pytest.fixture(scope="module")
def eager() -> Backbone:
    """Its batch norms as if it had learnt something, so that folding them matters."""
    backbone = open_backbone("timm:test_resnet", None, seed=0)
    torch.manual_seed(0)
    for part in backbone.net.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            for values, low, high in ((part.weight, 0.5, 1.5), (part.bias, -0.2, 0.2), (part.running_mean, -0.2, 0.2)):
                assert values is not None
                values.uniform_(low, high)
    return backbone


@pytest.fixture(scope="module")
def file(eager: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.xml"
    convert(eager, SHAPE, path)
    return path


def pictures() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, SHAPE, np.uint8)


@pytest.mark.parametrize(("arithmetic", "tolerance"), [("float32", 1e-5), ("bfloat16", 5e-2)])
def test_a_model_says_what_the_net_says_and_of_each_item_alone(
    eager: Backbone, file: Path, arithmetic: Arithmetic, tolerance: float
) -> None:
    if arithmetic == "bfloat16" and not knows_bfloat16():
        pytest.skip("this processor does not compute in bfloat16")
    model, items = OpenVinoModel(file, arithmetic, 1), pictures()
    wanted = eager(torch.from_numpy(items))
    found = {name: rows.copy() for name, rows in model(items).items()}
    other = model(np.concatenate([items[2:], np.zeros_like(items[:2])]))
    assert found.keys() == wanted.keys() == eager.outputs.keys()
    for output, rows in found.items():
        right = wanted[output].numpy()
        assert rows.dtype == np.float32 and rows.shape[1:] == eager.outputs[output]
        assert np.abs(rows - right).max() <= tolerance * np.abs(right).max()
        assert np.array_equal(rows[2:], other[output][:2]), "other places, other neighbours, the same bits"
    if arithmetic == "bfloat16":
        assert not np.allclose(found["pooled"], wanted["pooled"].numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["r3d_18", "i3d", "vggish"])
def test_clips_and_sound_convert_too(name: str, tmp_path: Path) -> None:
    backbone = open_backbone(name, None, seed=0)
    random = np.random.default_rng(0)
    items = (
        random.standard_normal((1, 96, 64), np.float32)
        if name == "vggish"
        else random.integers(0, 256, (1, 16, 112, 112, 3), np.uint8)
    )
    convert(backbone, items.shape, tmp_path / "model.xml")
    found, wanted = OpenVinoModel(tmp_path / "model.xml", "float32", 1)(items), backbone(torch.from_numpy(items))
    for output, rows in wanted.items():
        assert np.abs(found[output] - rows.numpy()).max() <= 1e-5 * rows.abs().max()


def test_a_batch_asks_for_what_it_wants(eager: Backbone, file: Path) -> None:
    batch = ItemBatch(pictures(), 3, {"pooled": "float16", "classes": "float32"})
    found = run_model(ModelBatch(file, "float32", 1, batch))
    kinds = {name: (len(rows), rows.dtype.name) for name, rows in found.items()}
    assert kinds == {"pooled": (3, "float16"), "classes": (3, "float32")}
    again = run_model(ModelBatch(file, "float32", 1, batch))
    assert all(np.array_equal(rows, again[name]) for name, rows in found.items()), "and is not overwritten by the next one"


def test_a_net_that_does_more_than_openvino_knows_says_so(tmp_path: Path) -> None:
    with pytest.raises(CannotConvert, match=r"fasterrcnn_resnet50_fpn_v2@64 cannot become an OpenVINO model \(.+nms"):
        convert(open_backbone("fasterrcnn_resnet50_fpn_v2@64", None, seed=0), (1, 1, 64, 64, 3), tmp_path / "model.xml")


def test_neither_torch_nor_telemetry_is_loaded_to_run_a_model(file: Path) -> None:
    program = """
import sys, numpy as np, socket
def refuse(*_): raise AssertionError("it phones home")
socket.socket.connect = refuse
from models.backbones.openvino_model import OpenVinoModel
from pathlib import Path
OpenVinoModel(Path(sys.argv[1]), "float32", 1)(np.zeros((4, 1, 160, 160, 3), np.uint8))
assert "torch" not in sys.modules and sys.modules["openvino_telemetry"] is None
"""
    subprocess.run([sys.executable, "-c", program, str(file)], cwd=ROOT, check=True, env={**os.environ, "HOME": str(file.parent)})
