"""How close extraction comes to the bare engine, how far it is ahead of eager torch and of a loop over videos, and how it bears
other work.

    python benches/extraction.py [--clips 24] [--seconds 3] [--size 320 240] [--turns 3] [--ways float32 bfloat16 torch]
                                [--only heavy photos] [--photos FOLDER] [--count 500] [--weights FILE]

Clips: drawn, nets with seeded weights, two extractors in each setting: heavy (on a CPU the nets are nearly all the work), one net
(a pooled feature and a grid, as VRE wants them, which share a forward pass), light (decoding weighs as it does beside a GPU).
--ways: how the stage runs its nets: OpenVINO in float32 or bfloat16, or torch.
- the bare engine: the same frames, decoded and resized before, in batches of the same size through OpenVINO, one stream per core
  (or through torch on as many threads), nothing read or written
- the extract stage: everything, from files to rows on disk, with the default number of processes
- the kind loop: one extractor after the other, one video after the other: decode it once, make the chosen frames ready with PIL,
  run them in batches of 1, save one .npy a video. It decodes in place and makes ready only what it needs
- video_features: the loop of v-iashin/video_features (commit a2f61b7), its defaults kept except for how many frames, asked for
  by its own options so that both sides run the nets equally often: extraction_total=16 or 8, batch_size=1, or stack_size=16 and
  step_size so that there are 2 (left at its defaults it would run all 75 frames and 4 stacks of a clip of 3 s). Its OpenCV and
  torchvision.io are PyAV here. It starts Python once per extractor, which is not counted. Both loops run torch on all cores

Photos: those of a folder, or drawn ones; tf_efficientnet_lite2 with the weights of a file, or seeded ones. The stage, pooled and
grid, against eager torch on all cores without reading or writing, and against a loop over photos (eager_photos.py); then beside
one busy process; then on one core alone. "Memory kept": torch with glibc told to keep what is freed, as our processes have it.

All take turns; a ratio is the median over the turns. Loading and converting the nets is left out everywhere. On a busy machine
the ratios of CPU time say more: they count all work, hidden behind other work or not."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import av
import imageio_ffmpeg
import numpy as np
import timm
import timm.data
import torch
import torchvision
from measuring import Took, arguments, exit_by_limits, require, timed
from PIL import Image

from models.backbones.backbone import Preprocessing
from models.backbones.batches import ItemBatch
from models.backbones.openvino_model import knows_bfloat16, openvino
from storage.datasets.demo import encode_clip
from storage.datasets.folder import FolderOptions
from storage.files.hashing import digest_file
from storage.machine import keep_freed_memory, usable_cores
from storage.media.frame_sampling import Clips, Sampling, Uniform, choose_frames
from storage.media.frame_stream import DecodeJob, FrameRequest, gather, stream_frames
from storage.media.probe import probe
from storage.workspace import Workspace
from tasks.catalogue import catalogue
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction.engine import batch_size
from tasks.extraction.extractors import BackboneFeature
from tasks.extraction.nets import Engine, Net, open_net, spec_of
from tasks.framework.runtime import Runtime
from tasks.sample_frames import SamplingOptions, sample_frames

FRAMES, FEW, STACKS = Uniform(frames=16), Uniform(frames=8), Clips(positions=2, length=16)
SAMPLING: dict[str, Sampling] = {"frames": FRAMES, "few": FEW, "clips": STACKS, "photo": Uniform(frames=1)}


def feature(net: str, sampling: str, **more: str) -> BackboneFeature:
    return BackboneFeature.model_validate({"net": net, "weights": "random", "sampling": sampling, **more})


RESNET = feature("timm:resnet50", "frames")
GRID = feature("timm:resnet50", "frames", output="grid", over_time="mean")
SETTINGS = {
    "heavy": {"frames": RESNET, "motion": feature("r3d_18", "clips")},
    "one net": {"temporal": RESNET, "spatial": GRID},
    "light": {"one": feature("timm:mobilenetv3_small_050", "few"), "two": feature("timm:lcnet_050", "few")},
}
EAGER = "eager torch, nothing read or written"
FLOORS = {"float32": 1.3, "bfloat16": 4.0}
"""how many times as fast as video_features the stage is to be on the setting heavy"""


def main() -> None:
    ways = ["float32", "bfloat16", "torch"]
    drawn: dict[str, Any] = {"clips": 24, "seconds": 3.0, "size": [320, 240]}
    chosen = arguments(__doc__, **drawn, turns=3, ways=ways, only=[*SETTINGS, "photos"], photos="", count=500, weights="random")
    if "bfloat16" in chosen.ways and not knows_bfloat16():
        print("this processor does not compute in bfloat16, says OpenVINO: left out")
        chosen.ways.remove("bfloat16")
    print(f"{usable_cores()} core(s); {chosen.clips} clips of {chosen.seconds:g} s, {chosen.size[0]} x {chosen.size[1]}")
    with tempfile.TemporaryDirectory() as folder:
        data = draw(Path(folder) / "data", chosen.clips, chosen.seconds, *chosen.size)
        for name in chosen.only:
            if name == "photos":
                compare_photos(copy_photos(Path(folder) / "photos", chosen.photos, chosen.count), chosen.weights, chosen.turns)
            else:
                compare(name, chosen.ways, data, Path(folder), chosen.turns)
    exit_by_limits()


def compare(setting: str, ways: list[str], data: Path, folder: Path, turns: int) -> None:
    features = SETTINGS[setting]
    print(f"\n{setting}: {', '.join(f'{f.net} {f.output_name}' for f in features.values())}", flush=True)
    work: dict[str, Callable[[int], Took]] = {
        "kind loop": lambda _: timed(lambda: [kind_loop(data, f) for f in features.values()]),
        "video_features": lambda _: timed(lambda: video_features(data, features)),
    }
    for feature in features.values():  # loaded before the clock starts
        plain(feature)
    for way in ways:
        work |= _ours(setting, way, data, folder)
    times = take_turns(work, turns)
    for way in ways:
        print(f"{way:42} wall   CPU")
        over = ratio(times, f"stage, {way}", f"bare, {way}")
        print(f"  {'extract stage / bare engine':40}{over}" + "  (limit 1.15)" * (setting == "heavy"))
        for loop in ("kind loop", "video_features"):
            faster = ratio(times, loop, f"stage, {way}")
            print(f"  {loop + ' / extract stage':40}{faster}", flush=True)
        if setting == "heavy" and way != "torch":
            require(over.wall <= 1.15, f"heavy, {way}: {over.wall:.2f} of the bare engine's time, not 1.15")
            require(faster.wall >= FLOORS[way], f"heavy, {way}: {faster.wall:.2f} times video_features, not {FLOORS[way]}")


def take_turns(work: Mapping[str, Callable[[int], Took]], turns: int) -> dict[str, list[Took]]:
    times: dict[str, list[Took]] = {name: [] for name in work}
    for turn in range(turns):
        for name, measure in work.items():
            torch.set_num_threads(usable_cores())
            times[name].append(took := measure(turn))
            print(f"  turn {turn}: {name} {took.wall:.1f} s, CPU {took.cpu:.1f} s", flush=True)
    return times


def runtime_of(way: str) -> Runtime:
    return Runtime(device="cpu", engine="torch" if way == "torch" else "openvino")


def _ours(setting: str, way: str, data: Path, folder: Path) -> dict[str, Callable[[int], Took]]:
    """The bare engine and the stage, with nets run in one way."""
    precision = "bfloat16" if way == "bfloat16" else "float32"
    features = {name: f.model_copy(update={"precision": precision}) for name, f in SETTINGS[setting].items()}
    nets = {name: opened(f, way) for name, f in features.items()}
    bare_work = {net: everything(data, net, features[name]) for name, net in nets.items()}  # a shared net runs once
    for net, items in bare_work.items():
        batch = items[: batch_size(items[0], runtime_of(way))]
        bare(net, batch)  # converts it
        if way != "torch":
            near = least_cosine(net, batch)
            print(f"  rows of {net.backbone.name}, OpenVINO in {way}, against torch's: cosine {near:.7f} or more")
    used = {name: SAMPLING[name] for name in {f.sampling for f in features.values()}}

    def whole(turn: int) -> Took:
        return stage(folder / f"{setting}-{way}-{turn}", data, features, used, runtime_of(way))["extract_features"]

    return {f"bare, {way}": lambda _: timed(lambda: [bare(*each) for each in bare_work.items()]), f"stage, {way}": whole}


def compare_photos(data: Path, weights: str, turns: int) -> None:
    """Real photos or drawn ones, one frame each."""
    runtime, count = Runtime(device="cpu"), len(videos(data))
    base = feature("timm:tf_efficientnet_lite2", "photo").model_copy(update={"weights": weights})
    torch_net, net = opened(base, "torch"), opened(base, "float32")
    items = everything(data, net, base)
    bare(net, items[: batch_size(items[0], runtime)])
    print(f"\nphotos: {count}, {base.net}")
    print(f"  OpenVINO against torch: cosine {least_cosine(net, items[: batch_size(items[0], runtime)]):.7f} or more")
    one_core: dict[str, list[Took]] = {"net": [], "loop": []}

    def eager(way: str) -> Took:
        """By a program of its own, which also takes the time on one core."""
        program = [sys.executable, str(Path(__file__).with_name("eager_photos.py")), way, weights, str(data)]
        lines = subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()
        found = [Took(*map(float, line.split())) for line in lines]
        one_core[way].append(found[1])
        return found[0]

    work: dict[str, Callable[[int], Took]] = {
        EAGER: lambda _: eager("net"),
        "eager loop": lambda _: eager("loop"),
        "eager torch, memory kept": lambda _: timed(lambda: bare(torch_net, items)),
        "bare engine": lambda _: timed(lambda: bare(net, items)),
    }

    def whole(what: str, turn: int, features: dict[str, BackboneFeature]) -> Took:
        root = data.parent / f"{what}-{turn}-{len(list(data.parent.iterdir()))}"
        return stage(root, data, features, {"photo": SAMPLING["photo"]}, runtime)["extract_features"]

    for output in ("pooled", "grid"):
        chosen = {output: base.model_copy(update={"output": output})}
        work[f"stage, {output}"] = partial(lambda turn, output, chosen: whole(output, turn, chosen), output=output, chosen=chosen)
    pooled = {"pooled": base}
    work["stage, pooled, beside a busy process"] = lambda turn: beside_work(lambda: whole("busy", turn, pooled))
    work["bare engine, one core"] = lambda _: on_one_core(lambda: timed(lambda: bare(net, items)))
    work["stage, pooled, one core"] = lambda turn: on_one_core(lambda: whole("one-core", turn, pooled))
    keep_freed_memory()
    times = take_turns(work, turns) | {"eager torch, one core": one_core["net"]}
    for name, took in times.items():
        print(f"  {name:44}{count / median(t.wall for t in took):6.1f} photos/s")
    print(f"{'':52} wall   CPU")
    for above, below, floor in (
        ("eager loop", "stage, pooled", 2.0),
        (EAGER, "stage, pooled", 1.5),
        (EAGER, "stage, grid", 1.5),
        (EAGER, "bare engine", 0.0),
        ("eager torch, memory kept", "bare engine", 0.0),
        ("stage, pooled", "stage, pooled, beside a busy process", 0.5),
        ("bare engine, one core", "stage, pooled, one core", 0.0),
        ("eager torch, one core", "stage, pooled, one core", 0.9),
    ):
        found = ratio(times, above, below)
        print(f"  {above} / {below}: {found}" + (f"  (floor {floor})" if floor else ""), flush=True)
        require(found.wall >= floor, f"photos: {above} / {below} is {found.wall:.2f}, not {floor}")


def beside_work(measure: Callable[[], Took]) -> Took:
    """While one other process keeps a core busy."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return measure()
    finally:
        busy.kill()
        busy.wait()


def on_one_core(measure: Callable[[], Took]) -> Took:
    """As `taskset -c` would have it: this process and all that it starts."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    try:
        return measure()
    finally:
        os.sched_setaffinity(0, cores)


class Ratio(NamedTuple):
    """Of times by the clock, and of processor time."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:5.2f}  {self.cpu:5.2f}"


def ratio(times: dict[str, list[Took]], above: str, below: str) -> Ratio:
    pairs = list(zip(times[above], times[below], strict=True))
    return Ratio(median(a.wall / b.wall for a, b in pairs), median(a.cpu / b.cpu for a, b in pairs))


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
    write_captions(folder)
    return folder


def write_captions(folder: Path) -> None:
    """One caption for each file of a data set."""
    rows = [f"{path.stem},a moving gradient,train" for path in sorted((folder / "videos").iterdir())]
    (folder / "captions.csv").write_text("video,caption,split\n" + "\n".join(rows) + "\n")


def copy_photos(folder: Path, source: str, count: int) -> Path:
    """A data set of photos: copies of those in a folder, or drawn ones of the size of Flickr's."""
    (folder / "videos").mkdir(parents=True)
    for path in sorted(Path(source).glob("*.jpg"))[:count] if source else ():
        shutil.copyfile(path, folder / "videos" / path.name)
    random = np.random.default_rng(0)
    for n in range(0 if source else count):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        coarse.save(folder / "videos" / f"photo{n:05}.jpg", quality=90)
    write_captions(folder)
    return folder


def videos(data: Path) -> list[Path]:
    return sorted((data / "videos").iterdir())


def opened(feature: BackboneFeature, way: str) -> Net:
    engine: Engine = "torch" if way == "torch" else "openvino"
    named = "random, seed 0" if feature.weights == "random" else digest_file(Path(feature.weights))
    return open_net(spec_of(feature, named, None, "cpu", engine=engine))


def everything(data: Path, net: Net, feature: BackboneFeature) -> np.ndarray:
    """All items of a net, decoded and resized."""
    look = net.request(SAMPLING[feature.sampling], "bench")
    assert isinstance(look, FrameRequest)
    jobs = (DecodeJob(path, {"x": look}, None, probe(path)) for path in videos(data))
    return np.concatenate([gather(stream_frames(job))["x"].images for job in jobs])


def bare(net: Net, items: np.ndarray) -> None:
    """Batches through the engine on all cores; the last one is filled up with zeros, as the stage does."""
    size = batch_size(items[0], Runtime())
    batches = [items[at : at + size] for at in range(0, len(items), size)]
    batches[-1] = np.concatenate([batches[-1], np.zeros((size - len(batches[-1]), *items.shape[1:]), items.dtype)])
    if net.spec.engine == "torch":
        for batch in batches:
            net(torch.from_numpy(batch))
        return
    queue = infer_queue(net, batches[0].shape, usable_cores())
    for batch in batches:
        queue.start_async({0: batch})
    queue.wait_all()


@lru_cache
def infer_queue(net: Net, shape: tuple[int, ...], streams: int) -> Any:
    _, job = net.job(ItemBatch(np.zeros(shape, np.float32 if len(shape) == 3 else np.uint8), 1, {}))
    options = {"INFERENCE_NUM_THREADS": streams, "NUM_STREAMS": streams, "ENABLE_CPU_PINNING": False}
    options["INFERENCE_PRECISION_HINT"] = "bf16" if job.arithmetic == "bfloat16" else "f32"
    ov = openvino()
    return ov.AsyncInferQueue(ov.Core().compile_model(job.file, "CPU", options), streams)


def least_cosine(net: Net, items: np.ndarray) -> float:
    """How alike torch's rows and the engine's are, the least alike pair of them, over all outputs."""
    run, job = net.job(ItemBatch(items, len(items), dict.fromkeys(net.backbone.outputs, "float32")))
    ours, theirs = run(job), net(torch.from_numpy(items))
    pairs = [(ours[name].reshape(len(items), -1), theirs[name].reshape(len(items), -1)) for name in ours]
    return min(float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()) for a, b in pairs)


def stage(
    root: Path, data: Path, features: Mapping[str, BackboneFeature], sampling: Mapping[str, Sampling], runtime: Runtime
) -> dict[str, Took]:
    """The stages up to extraction, each with its time."""
    workspace, took = Workspace.open(root), {}
    table = catalogue.bind(workspace, data, runtime, FolderOptions(path=str(data)), {})
    took["catalogue"] = timed(table.execute)
    inputs = {"videos": table.ref.part("videos")}
    plans = [sample_frames.bind(workspace, data, runtime, SamplingOptions(sampling=s), inputs) for s in sampling.values()]
    took["sample_frames"] = timed(lambda: [plan.execute() for plan in plans])
    options = ExtractOptions(dataset="bench", features=dict(features), sampling=dict(sampling))
    inputs |= {"frame_plans": tuple(plan.ref for plan in plans)}
    took["extract_features"] = timed(extract_features.bind(workspace, data, runtime, options, inputs).execute)
    return took


@torch.inference_mode()
def kind_loop(data: Path, feature: BackboneFeature) -> None:
    """One extractor, one video after another, with the net as its library gives it."""
    preprocessing, run = opened(feature, "torch").backbone.preprocessing, plain(feature)
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


def video_features(data: Path, features: dict[str, BackboneFeature]) -> None:
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
