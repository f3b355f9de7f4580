"""What extraction does for GPUs, run on a CPU: batches in flight, overflows, folded batch norms, a process per card."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.backbones.batches import ItemBatch
from models.backbones.folding import fold_batch_norms
from models.backbones.zoo import open_backbone
from storage.features.store import FeatureStore
from storage.media.probe import probe
from tasks.extraction import nets
from tasks.extraction.engine import RunningBatches, Video
from tasks.extraction.extractors import BackboneFeature
from tasks.extraction.gpu_processes import run_on_gpus, use_card
from tasks.extraction.nets import Net, NetSpec, open_net
from tasks.extraction.shards import PendingRows, Shard, run_shards
from tests.storage.clips import make_clip
from tests.tasks.extraction.toy_extraction import IN_PROCESS, SEVEN_FRAMES

SPEC = NetSpec("timm:test_resnet", "random", "", "torch", "cpu", "float32")


def test_a_batch_is_started_before_the_one_before_it_is_taken() -> None:
    order: list[str] = []

    class Recorded:
        in_process = True

        def submit(self, name: Any) -> Callable[[], Any]:
            order.append(f"start {name}")
            return lambda: order.append(f"take {name}") or {}

    def settle(batch: Any, outputs: Any) -> Any:
        order.append(f"write {batch.items}")
        return iter(())

    batcher: Any = SimpleNamespace(net=Recorded(), settle=settle)
    running = RunningBatches(IN_PROCESS)
    for name in "abc":
        list(running.submit(batcher, SimpleNamespace(items=name)))  # type: ignore[arg-type]
    list(running.take_all())
    expected = "start a, start b, take a, write a, start c, take b, write b, take c, write c"
    assert order == expected.split(", ")


class Overflowing:
    """A backbone one of whose products is beyond float16, though its result is not."""

    name, clip, preprocessing, outputs = "overflowing", None, None, {"embedding": (2,)}

    def __init__(self) -> None:
        self.net: nn.Module = nn.Linear(2, 2, bias=False).requires_grad_(False)
        self.net.weight.fill_(300.0)  # type: ignore[operator]

    def __call__(self, items: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"embedding": self.net(items).float() / 1000}


def test_a_row_that_overflows_float16_is_computed_again_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    half = replace(SPEC, arithmetic="float16")
    monkeypatch.setattr(nets, "open_net", lambda spec: Net(spec, Overflowing()))
    batch = ItemBatch(np.array([[1, 2], [300, 300]], np.float32), 2, {"embedding": "float16"})
    assert not np.isfinite(Net(half, Overflowing())(torch.from_numpy(batch.items))["embedding"]).all()
    found = Net(half, Overflowing()).start(batch)()["embedding"]
    assert found.dtype == np.float16 and found.tolist() == [[np.float16(0.9)] * 2, [180.0, 180.0]]


def test_only_wanted_outputs_and_real_items_leave_the_net() -> None:
    items = np.random.default_rng(0).integers(0, 256, (3, 1, 160, 160, 3), np.uint8)
    found = open_net(SPEC).start(ItemBatch(items, 2, {"pooled": "float16"}))()
    expected = open_net(SPEC).backbone(torch.from_numpy(items))["pooled"][:2].numpy().astype(np.float16)
    assert list(found) == ["pooled"] and np.array_equal(found["pooled"], expected)


@pytest.mark.parametrize("name", ["timm:test_resnet", "r3d_18"])
def test_folded_batch_norms_change_rounding_alone(name: str) -> None:
    backbone = open_backbone(name, None, 0)
    for module in backbone.net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):  # fresh ones do nothing, so nothing could go wrong
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    shape = (1, backbone.clip or 1, 64, 64, 3)
    items = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = {output: x.clone() for output, x in backbone(items).items()}
    norms = sum(isinstance(m, nn.BatchNorm2d | nn.BatchNorm3d) for m in backbone.net.modules())
    assert fold_batch_norms(backbone.net, lambda: backbone(items)) == norms > 0
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in backbone.net.modules())
    torch.testing.assert_close(backbone(items), expected, rtol=1e-3, atol=1e-4)


def test_a_convolution_that_something_else_reads_is_left_alone() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
            nn.init.constant_(self.norm.weight, 3.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.convolution(x)
            return y + self.norm(y)

    net, x = Both().eval(), torch.randn(1, 3, 4, 4)
    before = net(x)
    assert fold_batch_norms(net, lambda: {"y": net(x)}) == 0 and torch.equal(net(x), before)


def test_processes_of_several_cards_give_the_rows_of_one(tmp_path: Path) -> None:
    paths = [make_clip(tmp_path / f"v{n}.mp4", 20 + n) for n in range(3)]
    videos = [Video(path.stem, path, None, probe(path)) for path in paths]
    feature = BackboneFeature(net="timm:test_resnet", weights="random")

    def shards(folder: str) -> list[Shard]:
        store = str(tmp_path / folder)
        FeatureStore.create(Path(store), provenance={"extractor_key": "x"})
        rows = [PendingRows("x", feature, store, "", SEVEN_FRAMES, "", {v.id: f"key of {v.id}"}) for v in videos]
        return [Shard((video,), (row,), None, IN_PROCESS) for video, row in zip(videos, rows, strict=True)]

    alone = list(run_shards(shards("alone"), IN_PROCESS))
    apart = list(run_on_gpus(shards("apart"), IN_PROCESS, 2))
    assert [result.id for result in apart] == ["v0", "v1", "v2"] and all(result.bad is None for result in (*alone, *apart))
    views = [FeatureStore.open(tmp_path / folder).view() for folder in ("alone", "apart")]
    assert all(np.array_equal(views[0].read(video.id), views[1].read(video.id)) for video in videos)


def test_each_process_sees_one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    use_card(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    use_card(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
