"""What benches/extraction.py compares with on photos: torch as it comes, in a process of its own, without anything of Longtake's.

    python benches/eager_photos.py net|loop WEIGHTS FOLDER

net: the photos are decoded before, then go through the net in batches of 11, as the stage has them. loop: one photo at a time,
opened, resized, through the net, saved as .npy. WEIGHTS: a file, or 'random'. Prints wall and processor seconds, and those of one
thread on one core; loading is left out."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import timm
import timm.data
import torch
from PIL import Image
from safetensors.torch import load_file

BATCH = 11


def timed(work: Callable[[], None]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)


@torch.inference_mode()
def main(way: str, weights: str, folder: Path) -> None:
    torch.manual_seed(0)
    net = timm.create_model("tf_efficientnet_lite2", num_classes=0).eval()
    if weights != "random":
        net.load_state_dict(load_file(weights), strict=False)
    ready = timm.data.create_transform(**timm.data.resolve_data_config({}, model=net))
    paths = sorted((folder / "videos").iterdir())

    def opened(path: Path) -> torch.Tensor:
        return ready(Image.open(path).convert("RGB"))

    pixels = torch.stack([opened(path) for path in paths]) if way == "net" else torch.zeros(0)

    def work() -> None:
        if way == "net":
            for batch in pixels.split(BATCH):
                net(batch)
            return
        with tempfile.TemporaryDirectory() as out:
            for path in paths:
                np.save(Path(out) / f"{path.stem}.npy", net(opened(path)[None]).numpy())

    net(opened(paths[0])[None])
    timed(work)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    timed(work)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
