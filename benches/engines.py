"""Nets on one core: eager torch, Inductor (torch.compile, weights frozen, channels last) and OpenVINO, side by side.

    python benches/engines.py [--nets tf_efficientnet_lite2 timm:resnet50 r3d_18] [--rounds 3]

Items per second of processor time, glibc told to keep freed memory for all; the largest difference from eager torch relative to
the largest value; seconds of compiling or converting, which the speeds leave out. tf_efficientnet_lite2 has its ImageNet weights,
the others random ones. Inductor needs a C++ compiler."""

import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TORCHINDUCTOR_FREEZING", "1")

import numpy as np
import torch
from measuring import arguments, best_of

from models.backbones.backbone import Backbone
from models.backbones.batches import ItemBatch
from models.backbones.openvino_model import ModelBatch, convert, knows_bfloat16, run_model
from models.backbones.packaged import PACKAGES
from models.backbones.packaged import convert as convert_package
from models.backbones.zoo import open_backbone
from storage.machine import keep_freed_memory
from tasks.extraction.engine import batch_size
from tasks.framework.runtime import Runtime

NETS = ["tf_efficientnet_lite2", "timm:resnet50", "resnet152", "inception_v4", "r3d_18", "vggish"]


def main() -> None:
    chosen = arguments(__doc__, nets=NETS, rounds=3)
    torch.set_num_threads(1)
    keep_freed_memory()
    ways = ["float32", *(["bfloat16"] if knows_bfloat16() else [])]
    print("items per second of processor time (largest relative difference from eager; seconds to compile or convert)")
    print(f"{'net':24}{'eager':>8}{'Inductor':>26}" + "".join(f"{'OpenVINO ' + way:>28}" for way in ways))
    with tempfile.TemporaryDirectory() as folder:
        for net in chosen.nets:
            measure(net, ways, chosen.rounds, Path(folder))


@torch.inference_mode()
def measure(net: str, ways: list[str], rounds: int, folder: Path) -> None:
    weights = folder / f"{net}.safetensors" if net in PACKAGES else None
    if weights:
        convert_package(net, PACKAGES[net], weights)
    backbone = open_backbone(net, weights, 0)
    items = some_items(backbone)
    names = list(backbone.outputs)
    eager = {name: value.numpy() for name, value in backbone(torch.from_numpy(items)).items()}

    begun = time.perf_counter()
    compiled = torch.compile(lambda pixels: [value for _, value in sorted(backbone(pixels).items())])
    by_inductor = dict(zip(sorted(eager), compiled(torch.from_numpy(items)), strict=True))
    compiling = time.perf_counter() - begun

    begun = time.perf_counter()
    convert(backbone, items.shape, file := folder / f"{net.replace(':', '-')}.xml")
    jobs = {way: ModelBatch(file, way, 1, ItemBatch(items, len(items), dict.fromkeys(names, "float32"))) for way in ways}
    by_openvino = {way: run_model(job) for way, job in jobs.items()}
    converting = time.perf_counter() - begun

    runs = [lambda: backbone(torch.from_numpy(items)), lambda: compiled(torch.from_numpy(items))]
    runs += [lambda job=job: run_model(job) for job in jobs.values()]
    speeds = [len(items) / took.cpu for took in best_of(runs, rounds)]
    print(f"{net:24}{speeds[0]:8.1f}", end="")
    print(f"{speeds[1]:12.1f} ({difference(eager, by_inductor):.0e}; {compiling:3.0f} s)", end="")
    for way, speed in zip(ways, speeds[2:], strict=True):
        print(f"{speed:14.1f} ({difference(eager, by_openvino[way]):.0e}; {converting:3.0f} s)", end="")
    print(flush=True)


def some_items(backbone: Backbone) -> np.ndarray:
    """A batch as the stage would fill it."""
    random = np.random.default_rng(0)
    if backbone.preprocessing is None:
        patch = random.normal(size=(96, 64)).astype(np.float32)
        return random.normal(size=(batch_size(patch, Runtime()), *patch.shape)).astype(np.float32)
    width, height = backbone.preprocessing.crop or backbone.preprocessing.size or (224, 224)
    item = np.zeros((backbone.clip or 1, height, width, 3), np.uint8)
    return random.integers(0, 256, (batch_size(item, Runtime()), *item.shape), np.uint8)


def difference(eager: dict[str, np.ndarray], other: dict) -> float:
    return max(float(np.abs(np.asarray(other[name]) - rows).max() / np.abs(rows).max()) for name, rows in eager.items())


if __name__ == "__main__":
    main()
