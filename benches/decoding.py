"""How fast frames are decoded, and whether they are the right ones: Longtake's choice of reader against decord, PyAV and
ffmpeg on the ways in which frames are asked for.

    python benches/decoding.py [--seconds 16] [--rounds 4] [--folder DIR]

The clips are drawn here; every frame carries its number in its pixels, so a wrong frame is counted as one. Times are
processor time (children included), the best of the rounds, one thread a decoder; each is printed as a multiple of the
fastest way that gave every frame right. Trust the ratios, not the times."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

import av
import decord
import imageio_ffmpeg
import numpy as np
from measuring import arguments, cpu_seconds

from storage.media.frame_sampling import Clips, EveryNth, Indices, Uniform, choose_frames
from storage.media.probe import Probe, open_reader, probe

FPS, WIDTH, HEIGHT, DIGITS = 25, 320, 240, 16
Pictures = list[np.ndarray]
Way = Callable[[Path, Probe, list[Indices]], Pictures]

X265 = "log-level=none:bframes=4"
CLIPS: dict[str, tuple[str, str, dict[str, str]]] = {
    "h264, closed groups, MP4": ("a.mp4", "libx264", {"preset": "veryfast", "bf": "3", "g": "50"}),
    "h264, open groups, MKV": ("b.mkv", "libx264", {"preset": "veryfast", "x264-params": "open-gop=1:keyint=50"}),
    "hevc as x265 makes it, MP4": ("c.mp4", "libx265", {"preset": "ultrafast", "x265-params": X265}),
    "mpeg4 with B-frames, AVI": ("d.avi", "mpeg4", {"bf": "2", "g": "50", "b": "600k"}),
}


def main() -> None:
    options = arguments(__doc__, seconds=16, rounds=4, folder=tempfile.gettempdir())
    decord.logging.set_level(decord.logging.QUIET)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for title, (name, codec, settings) in CLIPS.items():
            path = draw(Path(folder) / name, options.seconds * FPS, codec, settings)
            found = probe(path)
            print(f"\n{title}: {found.frames} frames of {WIDTH}x{HEIGHT}, read whole with {found.reader}")
            for pattern, plans in patterns(found).items():
                print_pattern(pattern, measure(path, found, plans, options.rounds))


def patterns(found: Probe) -> dict[str, list[Indices]]:
    """How frames are asked for: each pattern is one or more plans (P, M) of frame numbers."""
    samplings = (Uniform(frames=28), EveryNth(stride=5), Clips(positions=4, length=16))
    even, every, clips = (choose_frames(sampling, found.pts) for sampling in samplings)
    late = choose_frames(Uniform(frames=28), found.pts, (found.duration - 3, found.duration))
    one = {"28 frames, evenly": [even], "every 5th frame": [every], "4 clips of 16 frames": [clips]}
    return one | {"28 frames of the last 3 seconds": [late], "these three plans together": [even, every, clips]}


def measure(path: Path, found: Probe, plans: list[Indices], rounds: int) -> dict[str, tuple[float, int]]:
    """Way -> (seconds of processor time, frames that were wrong or missing)."""
    asked = [number for plan in plans for number in np.unique(plan).tolist()]
    best: dict[str, tuple[float, int]] = {}
    for _ in range(rounds):
        for name, way in ways(len(plans)).items():
            began = cpu_seconds()
            try:
                pictures = way(path, found, plans)
            except RuntimeError:  # decord's word for a file that it cannot read
                pictures = []
            seconds = cpu_seconds() - began
            wrong = sum(a != b for a, b in zip(asked, map(read_number, pictures), strict=False))
            best[name] = min(best.get(name, (float("inf"), 0)), (seconds, wrong + max(0, len(asked) - len(pictures))))
    return best


def ways(plans: int) -> dict[str, Way]:
    found: dict[str, Way] = {"Longtake, one pass": one_pass}
    if plans > 1:
        found["Longtake, a pass for each"] = a_pass_each
    found |= {"decord by index": decord_by_index, "decord in order": decord_in_order}
    return found | {"PyAV in order": pyav_in_order, "ffmpeg, raw pipe": ffmpeg_pipe}


def decode(path: Path, wanted: Indices, found: Probe) -> Pictures:
    """The frames numbered `wanted` (sorted), by the reader that Longtake chooses."""
    reader, _ = open_reader(path, wanted, found)
    numbers = set(wanted.tolist())
    with closing(reader.frames()) as frames:
        return [render() for n, (_, render) in enumerate(islice(frames, int(wanted[-1]) + 1)) if n in numbers]


def one_pass(path: Path, found: Probe, plans: list[Indices]) -> Pictures:
    wanted = np.unique(np.concatenate([plan.ravel() for plan in plans]))
    images = decode(path, wanted, found)
    return [images[at] for plan in plans for at in np.searchsorted(wanted, np.unique(plan))]


def a_pass_each(path: Path, found: Probe, plans: list[Indices]) -> Pictures:
    return [image for plan in plans for image in decode(path, np.unique(plan), found)]


def decord_by_index(path: Path, found: Probe, plans: list[Indices]) -> Pictures:
    video = decord.VideoReader(str(path), num_threads=1)
    return [image for plan in plans for image in video.get_batch(np.unique(plan).tolist()).asnumpy()]


def decord_in_order(path: Path, found: Probe, plans: list[Indices]) -> Pictures:
    video = decord.VideoReader(str(path), num_threads=1)
    return picked((video.next().asnumpy for _ in range(len(video))), plans)


def pyav_in_order(path: Path, found: Probe, plans: list[Indices]) -> Pictures:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return picked((partial(frame.to_ndarray, format="rgb24") for frame in container.decode(stream)), plans)


def ffmpeg_pipe(path: Path, found: Probe, plans: list[Indices]) -> Pictures:
    """Every frame through a pipe, as tools without bindings do."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-v", "error", "-threads", "1", "-i", str(path)]
    command += ["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:1"]
    size = found.width * found.height * 3
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        whole = takewhile(lambda data: len(data) == size, iter(partial(process.stdout.read, size), b""))
        pictures = picked((partial(np.frombuffer, data, np.uint8) for data in whole), plans)
        process.kill()
    return [picture.reshape(found.height, found.width, 3) for picture in pictures]


def picked(frames: Iterator[Callable[[], np.ndarray]], plans: list[Indices]) -> Pictures:
    """The wanted ones of frames that come in order, up to the last."""
    numbers = sorted({number for plan in plans for number in plan.ravel().tolist()})
    kept: dict[int, np.ndarray] = {}
    for number, render in enumerate(frames):
        if number in numbers:
            kept[number] = render()
        if number >= numbers[-1]:
            break
    return [kept[number] for plan in plans for number in np.unique(plan).tolist() if number in kept]


def print_pattern(pattern: str, best: dict[str, tuple[float, int]]) -> None:
    exact = min(seconds for seconds, wrong in best.values() if not wrong)
    print(f"  {pattern:34}{'CPU ms':>8}{'ratio':>8}  wrong frames")
    for name, (seconds, wrong) in sorted(best.items(), key=lambda item: item[1][0]):
        print(f"    {name:32}{1000 * seconds:>8.0f}{seconds / exact:>8.2f}  {wrong or '-'}")


def draw(path: Path, count: int, codec: str, settings: dict[str, str]) -> Path:
    """A texture that moves, with the frame's number as bright and dark blocks above it."""
    rng = np.random.default_rng(0)
    texture = np.kron(rng.integers(60, 200, (HEIGHT // 8, WIDTH // 8, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS, options=settings)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(count):
            picture = np.roll(texture, 2 * number, axis=1)
            digits = np.array([number >> bit & 1 for bit in range(DIGITS - 1, -1, -1)])
            picture[:32] = np.repeat(digits, WIDTH // DIGITS)[None, :, None] * 220 + 16
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def read_number(picture: np.ndarray) -> int:
    """(H, W, 3) -> the number drawn on it."""
    block = WIDTH // DIGITS
    bits = [picture[8:24, n * block + 6 : n * block + block - 6].mean() > 128 for n in range(DIGITS)]
    return int("".join(str(int(bit)) for bit in bits), 2)


if __name__ == "__main__":
    main()
