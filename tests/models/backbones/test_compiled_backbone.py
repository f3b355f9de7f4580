"""Compiled nets: near the net that they were made from, rows that keep to themselves, and clear words where they cannot be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.compiled import Arithmetic, CannotCompile, CompiledBackbone
from models.backbones.zoo import open_backbone

BATCH = 4
with_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of its own for compiled code."""
    before = os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    yield tmp_path_factory.mktemp("code")
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    if before is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


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


def pictures() -> Tensor:
    return torch.randint(0, 256, (BATCH, 1, 160, 160, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@with_compiler
@pytest.mark.parametrize(("arithmetic", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_a_compiled_net_says_what_the_net_says_and_of_each_item_alone(
    eager: Backbone, code: Path, arithmetic: Arithmetic, tolerance: float
) -> None:
    compiled = CompiledBackbone(eager, arithmetic, code)
    items = pictures()
    wanted, found = eager(items), compiled(items)
    with torch.inference_mode():
        other = compiled(torch.cat([items[2:], torch.zeros_like(items[:2])]))
    assert found.keys() == wanted.keys() == eager.outputs.keys()
    for output, rows in found.items():
        assert rows.dtype == torch.float32 and rows.shape[1:] == eager.outputs[output]
        assert (rows - wanted[output]).abs().max() <= tolerance * wanted[output].abs().max()
        assert torch.equal(rows[2:], other[output][:2]), "other places, other neighbours, the same bits"
    if arithmetic == "bfloat16":
        assert not torch.allclose(found["pooled"], wanted["pooled"], rtol=1e-5)
    assert any(code.rglob("*.so")), "what the C++ compiler made is kept"


def test_without_a_compiler_the_message_says_what_to_install(
    eager: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CannotCompile, match=r"'g\+\+' is not here; install g\+\+"):
        CompiledBackbone(eager, "float32", tmp_path)


def test_a_compiler_that_fails_is_named_as_the_reason(eager: Backbone, code: Path) -> None:
    from torch._inductor import config

    compiled = CompiledBackbone(eager, "float32", code)
    with config.patch({"cpp.cxx": (None, "false")}), pytest.raises(CannotCompile, match="could not be compiled"):
        compiled(pictures()[:3])  # a size that there is no code for


def test_a_net_for_frames_of_any_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotCompile, match="frames of any size"):
        CompiledBackbone(open_backbone("fasterrcnn_resnet50_fpn_v2", None, seed=0), "float32", tmp_path)
