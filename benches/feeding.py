"""How much work lies between files and a net that costs nothing, as a fast GPU would: the extract stage against bare decoding.

    python benches/feeding.py [--clips 48] [--seconds 3] [--size 320 240] [--photos FOLDER] [--count 2000]
                              [--processes 2] [--turns 3]

- clips: drawn ones, 16 frames of each. The stage, catalogue and frame plans made before, against PyAV + PIL in as many processes:
  decode in order up to the last wanted frame, make the wanted ones RGB, resize the short side to 256, cut 224 x 224 out
- photos: the JPEGs of a folder, or drawn ones; catalogue (probing), plan, stage and store against a plain loop of PIL:
  open, RGB, resize, cut, keep nothing
Both sides decode the same frames to the same size. CPU seconds are of all processes together, their start included; the ratio of
CPU time is what counts on a machine that does other things as well."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bare_decoding import SHORT, SIDE
from extraction import copy_photos, draw, stage
from measuring import Took, arguments, exit_by_limits, require, timed

from models.backbones.backbone import Preprocessing
from storage.media.frame_sampling import Uniform
from tasks.extraction import shards
from tasks.extraction.extractors import BackboneFeature
from tasks.extraction.nets import Net, NetSpec
from tasks.framework.runtime import Runtime

WIDTH = 512


class FreeBackbone:
    """A net that looks at nothing."""

    name, clip, net = "the free net", None, torch.nn.Identity()
    preprocessing = Preprocessing(short=SHORT, crop=(SIDE, SIDE), interpolation="bicubic")
    outputs: Mapping[str, tuple[int, ...]] = {"pooled": (WIDTH,)}

    def __call__(self, items: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"pooled": torch.zeros(len(items), WIDTH)}


class FreeNet(Net):
    """Run where its batches are filled, as a GPU's is."""

    def __init__(self) -> None:
        super().__init__(NetSpec("free", "random", "", "torch", "cpu", "float32"), FreeBackbone())
        self.in_process = True

    def job(self, batch: Any) -> Any:
        return lambda batch: batch.select({"pooled": np.zeros((len(batch.items), WIDTH), np.float32)}), batch


def main() -> None:
    drawn: dict[str, Any] = {"clips": 48, "seconds": 3.0, "size": [320, 240]}
    chosen = arguments(__doc__, **drawn, photos="", count=2000, processes=2, turns=3)
    net = FreeNet()
    shards.open_net = lambda spec: net  # type: ignore[assignment]
    runtime = Runtime(device="cpu", decoders=chosen.processes)
    feature = {"free": BackboneFeature(net="resnet101", weights="random")}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        clips = draw(root / "clips", chosen.clips, chosen.seconds, *chosen.size)
        sampling, paths = Uniform(frames=16), sorted((clips / "videos").iterdir())
        turns = []
        for turn in range(chosen.turns):
            ours = stage(root / f"clips-{turn}", clips, feature, {"frames": sampling}, runtime)["extract_features"]
            turns.append((ours, timed(partial(bare, paths, 16, chosen.processes))))
        show(f"{len(paths)} clips, 16 frames each", len(paths) * 16, turns, 1.3)
        photos = copy_photos(root / "photos", chosen.photos, chosen.count)
        paths, turns = sorted((photos / "videos").iterdir()), []
        for turn in range(chosen.turns):
            took = stage(root / f"photos-{turn}", photos, feature, {"frames": Uniform(frames=1)}, runtime)
            ours = Took(sum(t.wall for t in took.values()), sum(t.cpu for t in took.values()))
            turns.append((ours, timed(partial(bare, paths, 0, 1))))
            print("  " + ", ".join(f"{name} {t.cpu:.1f} s" for name, t in took.items()))
        show(f"{len(paths)} photos, probe to store", len(paths), turns, 1.5)
    exit_by_limits()


def show(what: str, frames: int, turns: list[tuple[Took, Took]], limit: float) -> None:
    for ours, bare in turns:
        speeds = f"{frames / ours.wall:.0f} and {frames / bare.wall:.0f} frames/s"
        print(f"  {speeds}, CPU {1000 * ours.cpu / frames:.2f} and {1000 * bare.cpu / frames:.2f} ms per frame")
    wall, cpu = median(a.wall / b.wall for a, b in turns), median(a.cpu / b.cpu for a, b in turns)
    print(f"{what}: stage / bare decoding: CPU {cpu:.2f} (limit {limit}), wall {wall:.2f}", flush=True)
    require(cpu <= limit, f"{what}: {cpu:.2f} of the bare decoding's CPU time, not {limit}")


def bare(paths: list[Path], frames: int, processes: int) -> None:
    """The files shared out among processes of benches/bare_decoding.py."""
    program = [sys.executable, str(Path(__file__).with_name("bare_decoding.py")), str(frames)]
    running = [subprocess.Popen([*program, *map(str, paths[n::processes])]) for n in range(processes)]
    assert {process.wait() for process in running} == {0}


if __name__ == "__main__":
    main()
