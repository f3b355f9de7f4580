"""How close extraction comes to the bare nets, and how far it is ahead of a loop over videos.

    python benches/extraction.py [--clips 24] [--seconds 3] [--size 320 240] [--threads 1] [--turns 3]
                                [--compiled no bfloat16] [--only heavy]

Drawn clips, nets with seeded weights, two extractors in each of three settings: heavy (on a CPU the nets are nearly all of the
work), one net (a pooled feature and a grid, as VRE wants them, which share a forward pass), light (decoding weighs as much as it
does where a GPU runs the nets). --compiled: how the stage runs its nets (no, float32, bfloat16); --only: these settings.
- the bare nets: the same frames, decoded and fitted before, in batches of the same size, no more; compiled if the stage's are.
  Beside them stands the least cosine of a compiled net's rows with those of the net as it is
- the extract stage: everything, from files to rows on disk
- the kind loop: one extractor after the other, one video after the other: decode it once, make the chosen frames ready with PIL,
  run them in batches of 1, save one .npy a video. It decodes in place and makes ready only what it needs
- video_features: the loop of v-iashin/video_features (commit a2f61b7), its defaults kept except for how many frames, asked for
  by its own options so that both sides run the nets equally often: extraction_total=16 or 8, batch_size=1, or stack_size=16 and
  step_size so that there are 2 (left at its defaults it would run all 75 frames and 4 stacks of a clip of 3 s). Its OpenCV and
  torchvision.io are PyAV here. It starts Python once per extractor, which is not counted. Both loops run the nets in float32
- video_features in bfloat16 (where the stage's nets are compiled to that): the same with torch's autocast, not offered by it
All take turns; a ratio is the median over the turns. Loading and compiling the nets is left out everywhere. On a busy machine the
ratios of CPU time say more: they count all work, hidden behind other work or not."""

import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import av
import imageio_ffmpeg
import numpy as np
import timm
import timm.data
import torch
import torchvision
from measuring import Took, arguments, timed
from PIL import Image

from models.backbones.backbone import Preprocessing
from storage.datasets.demo import encode_clip
from storage.datasets.folder import FolderOptions
from storage.media.frame_sampling import Clips, Sampling, Uniform, choose_frames
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, stream_frames
from storage.media.probe import probe
from storage.workspace import Workspace
from tasks.catalogue import catalogue
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction.engine import batch_size
from tasks.extraction.extractors import BackboneFeature
from tasks.extraction.nets import Net, open_net
from tasks.framework.runtime import Runtime
from tasks.sample_frames import SamplingOptions, sample_frames

FRAMES, FEW, STACKS = Uniform(frames=16), Uniform(frames=8), Clips(positions=2, length=16)
SAMPLING: dict[str, Sampling] = {"frames": FRAMES, "few": FEW, "clips": STACKS}


def feature(net: str, sampling: str, **more: str) -> BackboneFeature:
    return BackboneFeature.model_validate({"net": net, "weights": "random", "sampling": sampling, **more})


RESNET = feature("timm:resnet50", "frames")
GRID = feature("timm:resnet50", "frames", output="grid", over_time="mean")
SETTINGS = {
    "heavy": {"frames": RESNET, "motion": feature("r3d_18", "clips")},
    "one net": {"temporal": RESNET, "spatial": GRID},
    "light": {"one": feature("timm:mobilenetv3_small_050", "few"), "two": feature("timm:lcnet_050", "few")},
}
seeded_net = partial(open_net, weights="random, seed 0", tagger=None, device="cpu", precision="auto")


def main() -> None:
    measured: dict[str, Any] = {"clips": 24, "seconds": 3.0, "size": [320, 240], "threads": 1, "turns": 3}
    chosen = arguments(__doc__, **measured, compiled=["no", "bfloat16"], only=list(SETTINGS))
    torch.set_num_threads(chosen.threads)
    runtime = Runtime(threads=chosen.threads, device="cpu")
    width, height = chosen.size
    print(f"{chosen.clips} clips of {chosen.seconds:g} s, {width} x {height}, {chosen.threads} thread(s)")
    with tempfile.TemporaryDirectory() as folder:
        data = draw(Path(folder) / "data", chosen.clips, chosen.seconds, width, height)
        for name in chosen.only:
            compare(name, chosen.compiled, data, Path(folder), runtime, chosen.turns)


def compare(setting: str, ways: list[str], data: Path, folder: Path, runtime: Runtime, turns: int) -> None:
    features = SETTINGS[setting]
    print(f"\n{setting}: {', '.join(f'{f.net} {f.output_name}' for f in features.values())}", flush=True)
    loops: dict[str, Callable[[int], Took]] = {
        "kind loop": lambda _: timed(lambda: [kind_loop(data, f) for f in features.values()]),
        "video_features": lambda _: timed(lambda: video_features(data, features)),
    }
    if "bfloat16" in ways:
        loops["video_features in bfloat16"] = lambda _: timed(lambda: video_features(data, features, half=True))
    work = dict(loops)
    for feature in features.values():  # loaded before the clock starts
        plain(feature)
        seeded_net(feature)
    for way in ways:
        work |= _ours(setting, way, data, folder, runtime)
    times: dict[str, list[Took]] = {name: [] for name in work}
    for turn in range(turns):
        for name, measure in work.items():
            times[name].append(took := measure(turn))
            print(f"  turn {turn}: {name} {took.wall:.1f} s, CPU {took.cpu:.1f} s", flush=True)
    for way in ways:
        print(f"compiled: {way:38} wall   CPU")
        limit = "  (limit 1.15)" * (setting == "heavy")
        print(f"  {'extract stage / bare nets':44}{ratio(times, f'stage, {way}', f'bare, {way}')}{limit}")
        for loop in (name for name in loops if way == "bfloat16" or not name.endswith("bfloat16")):
            print(f"  {loop + ' / extract stage':44}{ratio(times, loop, f'stage, {way}')}  (floor 2)", flush=True)


def _ours(setting: str, way: str, data: Path, folder: Path, runtime: Runtime) -> dict[str, Callable[[int], Took]]:
    """The bare nets and the stage, with nets compiled in one way."""
    features = {name: f.model_copy(update={"compiled": way}) for name, f in SETTINGS[setting].items()}
    nets = {name: seeded_net(f) for name, f in features.items()}
    bare_work = {net: everything(data, net, features[name]) for name, net in nets.items()}  # a shared net runs once
    for net, items in bare_work.items():
        # The first call plans its kernels, or compiles.
        first = timed(partial(bare, net, items[: batch_size(items[0], runtime)], runtime))
        print(f"  first batch of {net.backbone.name}, {way}: {first.wall:.1f} s, CPU {first.cpu:.1f} s", flush=True)
    if way != "no":
        for name, net in nets.items():
            items = bare_work[net]
            likeness = least_cosine(seeded_net(SETTINGS[setting][name]), net, items[: batch_size(items[0], runtime)])
            print(f"  rows of {net.backbone.name}, {way}, against those as it is: cosine {likeness:.6f} or more")
    return {
        f"bare, {way}": lambda _: timed(lambda: [bare(net, items, runtime) for net, items in bare_work.items()]),
        f"stage, {way}": lambda turn: stage_seconds(folder / f"{setting}-{way}-{turn}", data, features, runtime),
    }


def ratio(times: dict[str, list[Took]], above: str, below: str) -> str:
    pairs = list(zip(times[above], times[below], strict=True))
    return f"{median(a.wall / b.wall for a, b in pairs):5.2f} {median(a.cpu / b.cpu for a, b in pairs):5.2f}"


def draw(folder: Path, count: int, seconds: float, width: int = 320, height: int = 240) -> Path:
    """Clips of moving gradients with some noise."""
    (folder / "videos").mkdir(parents=True)
    y, x = np.mgrid[:height, :width]
    for n in range(count):
        noise = np.random.default_rng(n).integers(0, 25, (height, width, 3))
        frames = []
        for t in range(int(seconds * 25)):
            frame = np.stack([(x + 4 * t + 30 * n) % 256, (y + 3 * t) % 256, (x + y + 20 * n) % 256], -1)
            frames.append((frame // 2 + noise).astype(np.uint8))
        clip = encode_clip(np.stack(frames), np.zeros(16000, np.float32), 25)
        (folder / "videos" / f"clip{n:02d}.mp4").write_bytes(clip)
    rows = [f"clip{n:02d},a moving gradient,train" for n in range(count)]
    (folder / "captions.csv").write_text("video,caption,split\n" + "\n".join(rows) + "\n")
    return folder


def videos(data: Path) -> list[Path]:
    return sorted((data / "videos").glob("*.mp4"))


def everything(data: Path, net: Net, feature: BackboneFeature) -> torch.Tensor:
    """All items of a net, decoded and fitted."""
    look = net.request(SAMPLING[feature.sampling], "bench")
    assert isinstance(look, FrameRequest)
    jobs = (DecodeJob(path, {"x": look}, None, probe(path)) for path in videos(data))
    return torch.from_numpy(np.concatenate([gather(stream_frames(job))["x"].images for job in jobs]))


def bare(net: Net, items: torch.Tensor, runtime: Runtime) -> None:
    for batch in items.split(batch_size(items[0], runtime)):
        net(batch)


def least_cosine(one: Net, other: Net, items: torch.Tensor) -> float:
    """How alike the rows of two nets are, the least alike pair of them, over all outputs."""
    ours, theirs = one(items), other(items)
    pairs = ((ours[name].reshape(len(items), -1), theirs[name].reshape(len(items), -1)) for name in ours)
    return min(float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()) for a, b in pairs)


def stage_seconds(root: Path, data: Path, features: dict[str, BackboneFeature], runtime: Runtime) -> Took:
    """The extract stage alone; cataloguing and planning frames come before it."""
    workspace = Workspace.open(root)
    table = catalogue.bind(workspace, data, runtime, FolderOptions(path=str(data)), {})
    table.execute()
    inputs = {"videos": table.ref.part("videos")}
    used = {name: SAMPLING[name] for name in {f.sampling for f in features.values()}}
    plans = [sample_frames.bind(workspace, data, runtime, SamplingOptions(sampling=s), inputs) for s in used.values()]
    for plan in plans:
        plan.execute()
    options = ExtractOptions(dataset="bench", features=dict(features), sampling=used)
    inputs |= {"frame_plans": tuple(plan.ref for plan in plans)}
    job = extract_features.bind(workspace, data, runtime, options, inputs)
    return timed(job.execute)


@torch.inference_mode()
def kind_loop(data: Path, feature: BackboneFeature) -> None:
    """One extractor, one video after another, with the net as its library gives it."""
    preprocessing, run = seeded_net(feature).backbone.preprocessing, plain(feature)
    assert preprocessing is not None
    with tempfile.TemporaryDirectory() as folder:
        for path in videos(data):
            frames = decoded(path)
            chosen = choose_frames(SAMPLING[feature.sampling], np.arange(len(frames)) / 25)
            rows = []
            for position in chosen:
                ready = np.stack([fitted(frames[number], preprocessing) for number in position])
                pixels = (torch.from_numpy(ready).permute(3, 0, 1, 2).float() / 255 - 0.45) / 0.225
                rows.append(run((pixels[:, 0] if len(position) == 1 else pixels)[None]))
            np.save(Path(folder) / f"{path.stem}.npy", torch.cat(rows).numpy())


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def plain(feature: BackboneFeature) -> Callable[[torch.Tensor], torch.Tensor]:
    """The net as its library gives it."""
    net: Any = library_net(feature.net)
    return net.forward_features if feature.output == "grid" else net


@lru_cache
def library_net(name: str) -> torch.nn.Module:
    if name != "r3d_18":
        return timm.create_model(name.removeprefix("timm:"), num_classes=0).eval()
    net = torchvision.models.video.r3d_18().eval()
    net.fc = torch.nn.Identity()
    return net


def fitted(frame: np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    image = Image.fromarray(frame)
    assert preprocessing.crop is not None
    if preprocessing.size:
        image = image.resize(preprocessing.size, Image.Resampling.BILINEAR)
    elif preprocessing.short:
        short = preprocessing.short / min(image.size)
        image = image.resize((round(image.width * short), round(image.height * short)), Image.Resampling.BICUBIC)
    width, height = preprocessing.crop
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return np.asarray(image.crop((left, top, left + width, top + height)))


def video_features(data: Path, features: dict[str, BackboneFeature], half: bool = False) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        for feature in features.values():
            frames = SAMPLING[feature.sampling]
            frames_loop(data, feature, frames.frames) if isinstance(frames, Uniform) else stacks_loop(data)


@torch.no_grad()
def frames_loop(data: Path, feature: BackboneFeature, count: int) -> None:
    """A net for images on some frames of each video, as video_features does it (models/_base/base_framewise_extractor.py,
    utils/io.py): re-encode the video to another rate with ffmpeg, open the result twice and read it, timm's transforms by PIL
    on each frame, one frame a pass."""
    net = plain(feature)
    config = timm.data.resolve_data_config({}, model=library_net(feature.net))
    ready: Callable[[Image.Image], torch.Tensor] = timm.data.create_transform(**config)
    with tempfile.TemporaryDirectory() as folder:
        for path in videos(data):
            again = Path(folder) / f"{path.stem}_new_fps.mp4"
            with av.open(str(path)) as container:
                stream = container.streams.video[0]
                rate = count * float(stream.average_rate or 25) / stream.frames
            command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-loglevel", "panic", "-y", "-i", str(path)]
            subprocess.run([*command, "-filter:v", f"fps=fps={rate}", str(again)], check=True)
            with av.open(str(again)) as container:  # it looks whether the first frame is there
                next(container.decode(video=0))
            rows = []
            with av.open(str(again)) as container:
                for frame in islice(container.decode(video=0), count):
                    image = ready(Image.fromarray(frame.to_ndarray(format="rgb24")))
                    rows.append(net(image.unsqueeze(0)).float().numpy())
            again.unlink()
            np.save(Path(folder) / f"{path.stem}.npy", np.concatenate(rows))


@torch.no_grad()
def stacks_loop(data: Path) -> None:
    """r3d_18 on 2 stacks of 16 frames per video, as video_features runs its r2plus1d_18 (models/r21d/extract_r21d.py): read the
    whole video and its sound, scale and normalise all frames in float32, one stack a pass."""
    net = plain(SETTINGS["heavy"]["motion"])
    mean, std = (torch.tensor(values).view(3, 1, 1, 1) for values in ((0.432, 0.395, 0.376), (0.228, 0.221, 0.217)))
    with tempfile.TemporaryDirectory() as folder:
        for path in videos(data):
            frames = decoded(path)
            with av.open(str(path)) as container:
                _sound = [frame.to_ndarray() for frame in container.decode(audio=0)]
            pixels = torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2).to(torch.float32) / 255
            pixels = torch.nn.functional.interpolate(pixels, size=(128, 171), mode="bilinear", align_corners=False)
            pixels = ((pixels - mean) / std)[..., 8:120, 30:142]
            starts = range(pixels.shape[1] - 15)
            chosen = starts[:: -(-len(starts) // 2)]  # its step_size such that there are 2
            rows = [net(pixels[None, :, start : start + 16]).float().numpy() for start in chosen]
            np.save(Path(folder) / f"{path.stem}.npy", np.concatenate(rows))


if __name__ == "__main__":
    main()
