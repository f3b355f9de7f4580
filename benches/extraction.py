"""How close extraction comes to the bare nets, and how far it is ahead of a loop over videos.

    python benches/extraction.py [--clips 12] [--seconds 3] [--threads 1]

Drawn clips of 320 x 240, nets with seeded weights, in three settings of two extractors each:
- heavy: ResNet-50 on 16 frames a clip and r3d_18 on 2 clips of 16 frames; on a CPU the nets are nearly all of the work
- one net: a ResNet-50's pooled feature and its grid averaged over time, as VRE wants them; here they share a forward pass
- light: two small nets on 8 frames a clip, so that decoding weighs as much as it does where a GPU runs the nets
and for each:
- the bare nets: the same frames, already decoded and fitted, in batches of the same size, nothing else
- the extract stage: everything, from files to rows on disk
- one at a time: the way of the common extraction scripts (one extractor after the other, one video after the other: decode it
  whole, make frames ready with PIL, run them in batches of 1, their default, save one .npy a video)
The three take turns; a ratio is the median over the turns. Loading the nets is left out everywhere. On a machine that does other
work at the same time the ratios of CPU time say more: they count all work, hidden behind other work or not.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import av
import numpy as np
import timm
import torch
import torchvision
from PIL import Image

from models.backbones.backbone import Pictures
from storage.datasets.demo import encode_clip
from storage.datasets.folder import FolderOptions
from storage.looks import Look, LookJob, gather, look_at
from storage.media import probe
from storage.sampling import Clips, Sampling, Uniform, choose_frames
from storage.workspace import Workspace
from tasks.catalogue import catalogue
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction import batch_size
from tasks.extractors import BackboneFeature
from tasks.nets import Net, open_net
from tasks.runtime import Runtime
from tasks.sample_frames import SamplingOptions, sample_frames

SAMPLING: dict[str, Sampling] = {
    "frames": Uniform(frames=16),
    "few": Uniform(frames=8),
    "clips": Clips(positions=2, length=16),
}


def feature(net: str, sampling: str, **more: str) -> BackboneFeature:
    return BackboneFeature.model_validate({"net": net, "weights": "random", "sampling": sampling, **more})


SETTINGS = {
    "heavy": {"frames": feature("timm:resnet50", "frames"), "motion": feature("r3d_18", "clips")},
    "one net": {
        "temporal": feature("timm:resnet50", "frames"),
        "spatial": feature("timm:resnet50", "frames", output="grid", over_time="mean"),
    },
    "light": {
        "one": feature("timm:mobilenetv3_small_050", "few"),
        "two": feature("timm:lcnet_050", "few"),
    },
}
TURNS = 3


class Taken(NamedTuple):
    """Seconds that something took."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=1, help="of torch; decoding has processes of its own")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    runtime = Runtime(threads=chosen.threads)
    print(f"{chosen.clips} clips of {chosen.seconds:g} s, {chosen.threads} thread(s)")
    with tempfile.TemporaryDirectory() as folder:
        data = draw(Path(folder) / "data", chosen.clips, chosen.seconds)
        for name, features in SETTINGS.items():
            compare(name, features, data, Path(folder), runtime)


def compare(setting: str, features: dict[str, BackboneFeature], data: Path, folder: Path, runtime: Runtime) -> None:
    nets = {name: open_net(f, "random, seed 0", None, "cpu", "auto") for name, f in features.items()}
    bare_work = {net: everything(data, net, features[name]) for name, net in nets.items()}  # a shared net runs once
    for net, items in bare_work.items():
        bare(net, items[: batch_size(items[0], runtime)], runtime)  # the first call plans its kernels
    times: dict[str, list[Taken]] = {"bare": [], "stage": [], "loop": []}
    for turn in range(TURNS):
        times["bare"].append(timed(lambda: [bare(net, items, runtime) for net, items in bare_work.items()]))
        times["stage"].append(stage_seconds(folder / f"{setting}{turn}", data, features, runtime))
        times["loop"].append(timed(lambda: [one_at_a_time(data, features[name], net) for name, net in nets.items()]))
    seconds = ", ".join(f"{name} {median(t.wall for t in taken):.1f} s" for name, taken in times.items())
    print(f"\n{setting}: {', '.join(f'{f.net} {f.output_name}' for f in features.values())} ({seconds})")
    print("                                 wall   CPU")
    print(f"extract stage / bare nets       {ratio(times, 'stage', 'bare')}" + "  (limit 1.15)" * (setting == "heavy"))
    print(f"one at a time / extract stage   {ratio(times, 'loop', 'stage')}  (floor 2)", flush=True)


def ratio(times: dict[str, list[Taken]], above: str, below: str) -> str:
    pairs = list(zip(times[above], times[below], strict=True))
    return f"{median(a.wall / b.wall for a, b in pairs):5.2f} {median(a.cpu / b.cpu for a, b in pairs):5.2f}"


def draw(folder: Path, count: int, seconds: float) -> Path:
    """Clips of moving gradients with some noise."""
    (folder / "videos").mkdir(parents=True)
    y, x = np.mgrid[:240, :320]
    for n in range(count):
        rng = np.random.default_rng(n)
        noise = rng.integers(0, 25, (240, 320, 3))
        frames = [
            np.stack([(x + 4 * t + 30 * n) % 256, (y + 3 * t) % 256, (x + y + 20 * n) % 256], -1) // 2 + noise
            for t in range(int(seconds * 25))
        ]
        (folder / "videos" / f"clip{n:02d}.mp4").write_bytes(
            encode_clip(np.stack(frames).astype(np.uint8), np.zeros(16000, np.float32), 25)
        )
    rows = [f"clip{n:02d},a moving gradient,train" for n in range(count)]
    (folder / "captions.csv").write_text("video,caption,split\n" + "\n".join(rows) + "\n")
    return folder


def videos(data: Path) -> list[Path]:
    return sorted((data / "videos").glob("*.mp4"))


def everything(data: Path, net: Net, feature: BackboneFeature) -> torch.Tensor:
    """All items of a net, decoded and fitted."""
    look = net.look(SAMPLING[feature.sampling], "bench")
    assert isinstance(look, Look)
    found = [gather(look_at(LookJob(path, {"x": look}, None, probe(path))))["x"].images for path in videos(data)]
    return torch.from_numpy(np.concatenate(found))


def bare(net: Net, items: torch.Tensor, runtime: Runtime) -> None:
    size = batch_size(items[0], runtime)
    for start in range(0, len(items), size):
        net(items[start : start + size])


def stage_seconds(root: Path, data: Path, features: dict[str, BackboneFeature], runtime: Runtime) -> Taken:
    """The extract stage alone; cataloguing and planning frames come before it."""
    workspace = Workspace.open(root)
    table = catalogue.job(workspace, data, runtime, FolderOptions(path=str(data)), {})
    table.carry_out()
    inputs = {"videos": table.ref.part("videos")}
    plans = {}
    used = {name: SAMPLING[name] for name in {f.sampling for f in features.values()}}
    for name, how in used.items():
        job = sample_frames.job(workspace, data, runtime, SamplingOptions(sampling=how), inputs)
        job.carry_out()
        plans[f"frames_{name}"] = job.ref
    options = ExtractOptions(dataset="bench", features=dict(features), sampling=used)
    job = extract_features.job(workspace, data, runtime, options, inputs | plans)
    return timed(job.carry_out)


@torch.inference_mode()
def one_at_a_time(data: Path, feature: BackboneFeature, net: Net) -> None:
    """One extractor, one video after another, as the common scripts do, with the net as its library gives it."""
    pictures, run = net.backbone.pictures, plain(feature)
    assert pictures is not None
    with tempfile.TemporaryDirectory() as folder:
        for path in videos(data):
            with av.open(str(path)) as container:
                frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
            chosen = choose_frames(SAMPLING[feature.sampling], np.arange(len(frames)) / 25)
            rows = []
            for position in chosen:
                ready = np.stack([fitted(frames[number], pictures) for number in position])
                pixels = (torch.from_numpy(ready).permute(3, 0, 1, 2).float() / 255 - 0.45) / 0.225
                rows.append(run((pixels[:, 0] if len(position) == 1 else pixels)[None]))
            np.save(Path(folder) / f"{path.stem}.npy", torch.cat(rows).numpy())


@lru_cache
def plain(feature: BackboneFeature) -> Callable[[torch.Tensor], torch.Tensor]:
    if feature.net == "r3d_18":
        net = torchvision.models.video.r3d_18().eval()
        net.fc = torch.nn.Identity()
        return net
    net = timm.create_model(feature.net.removeprefix("timm:"), num_classes=0).eval()
    return net.forward_features if feature.output == "grid" else net


def fitted(frame: np.ndarray, pictures: Pictures) -> np.ndarray:
    image = Image.fromarray(frame)
    assert pictures.crop is not None
    if pictures.size:
        image = image.resize(pictures.size, Image.Resampling.BILINEAR)
    elif pictures.short:
        short = pictures.short / min(image.size)
        image = image.resize((round(image.width * short), round(image.height * short)), Image.Resampling.BICUBIC)
    left, top = (image.width - pictures.crop[0]) // 2, (image.height - pictures.crop[1]) // 2
    return np.asarray(image.crop((left, top, left + pictures.crop[0], top + pictures.crop[1])))


def timed(work: Callable[[], object]) -> Taken:
    started, before = time.perf_counter(), cpu_seconds()
    work()
    return Taken(time.perf_counter() - started, cpu_seconds() - before)


def cpu_seconds() -> float:
    """Of this process and of its decoders that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    main()
