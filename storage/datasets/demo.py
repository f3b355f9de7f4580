"""The demo world: a small captioned video data set that is drawn instead of downloaded, the same for the same seed.

videos/<id>.mp4         one clip each, H.264 with an AAC track (silent if the scene is)
captions.jsonl          {"video", "caption", "split"}: a plain folder data set, read as such
truth.jsonl             what was really drawn and which captions are lazy or wrong; for inspection, never for training
world.unfinished.json   the options of a world that is still being drawn
world.json              the same, renamed last: the world is complete"""

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from storage.datasets.dataset import Dataset
from storage.datasets.demo_draw import SOUND_RATE, draw_frames, draw_sound
from storage.datasets.demo_scene import DemoClip, DemoOptions
from storage.datasets.folder import FolderOptions, read_folder
from storage.errors import BadInput, wrap_os_errors
from storage.files.atomic import TEMP_MARK, sync_folder, write_bytes, write_json, write_jsonl
from storage.files.locks import folder_lock

FORMAT = 2  # raise it when the same options give other clips or captions; 2: encoded alike on every processor


def read_demo(options: DemoOptions, root: Path) -> Dataset:
    """The finished world in `root` as a data set."""
    if not (root / "world.json").exists():
        raise BadInput(f"no demo world at {root}; run 'longtake demo' to draw one")
    return read_folder(FolderOptions(name=options.name, captions="captions.jsonl"), root)


Progress = Callable[[int, int], None] | None


def draw_world(root: Path, options: DemoOptions, workers: int = 2, progress: Progress = None) -> bool:
    """Draw what is missing of the world in `root`; True if anything was. `progress` hears (clips done, clips in all).

    An interrupted world goes on where it stopped and ends up with the same bytes. A second process that draws the same
    world waits for the first and then finds nothing to do."""
    world = {"format": FORMAT, "options": options.drawn(), "count": options.train + options.val + options.test}
    finished, unfinished = root / "world.json", root / "world.unfinished.json"
    if _is_marked(finished, world):
        return False
    with wrap_os_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with folder_lock(root):  # waits for another process that draws here
            if _is_marked(finished, world):
                return False
            _claim(root, unfinished, world)
            plan = options.plan()
            captioned = ((clip, caption.text) for clip in plan for caption in clip.captions)
            rows = ({"video": clip.id, "caption": text, "split": clip.split} for clip, text in captioned)
            write_jsonl(root / "captions.jsonl", rows)
            write_jsonl(root / "truth.jsonl", [_truth_row(clip) for clip in plan])
            _draw_clips(root / "videos", plan, options, workers, progress)
            unfinished.replace(finished)
            sync_folder(root)
    return True


def _is_marked(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether there is a marker at `path`; BadInput if it tells of another world than the wanted one."""
    if not path.exists():
        return False
    remedy = "choose another folder, or remove this one to draw it anew"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        theirs = {"format": found["format"], **found["options"]}
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not the marker of a demo world ({error!r}); {remedy}") from error
    ours = {"format": wanted["format"], **wanted["options"]}
    differing = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    if differing:
        has = ", ".join(f"{name}={theirs.get(name)}" for name in differing)
        wants = ", ".join(f"{name}={ours.get(name)}" for name in differing)
        raise BadInput(f"{path.parent} holds a demo world with {has}, but {wants} is asked for; {remedy}")
    return True


def _claim(root: Path, unfinished: Path, world: dict[str, Any]) -> None:
    """Make `root` this world's folder, so that clips found there later are known to be its own."""
    if _is_marked(unfinished, world):
        return
    foreign = [name for name in ("videos", "captions.jsonl", "truth.jsonl") if (root / name).exists()]
    if foreign:
        has = ", ".join(foreign)
        raise BadInput(f"{root} already has {has} but no demo world; choose another folder, nothing was changed")
    write_json(unfinished, world)


def _truth_row(clip: DemoClip) -> dict[str, Any]:
    """The scene's properties, the event's frames [start, end), the near duplicate, and the kind of each caption in order."""
    row = {"video": clip.id, "split": clip.split, "twin": clip.near_duplicate, "differs": clip.differs}
    row |= {"captions": [caption.kind for caption in clip.captions]} | asdict(clip.scene)
    return row if clip.scene.competing else {name: value for name, value in row.items() if name != "competing"}


def _draw_clips(videos: Path, plan: list[DemoClip], options: DemoOptions, workers: int, progress: Progress) -> None:
    videos.mkdir(exist_ok=True)
    for leftover in videos.glob(f"*{TEMP_MARK}*"):
        leftover.unlink()
    missing = [clip for clip in plan if not (videos / f"{clip.id}.mp4").exists()]

    def draw(clip: DemoClip) -> None:
        write_bytes(videos / f"{clip.id}.mp4", draw_clip(clip, options))

    # Threads are enough: numpy and the encoder let go of the interpreter while they work.
    pool = ThreadPoolExecutor(max_workers=max(1, workers))
    try:
        done = len(plan) - len(missing)
        for future in as_completed([pool.submit(draw, clip) for clip in missing]):
            future.result()
            done += 1
            if progress:
                progress(done, len(plan))
    finally:
        pool.shutdown(cancel_futures=True)


def draw_clip(clip: DemoClip, options: DemoOptions) -> bytes:
    """One clip of a world as an mp4."""
    frames, sound = draw_frames(clip.scene, options.size, options.fps), draw_sound(clip.scene, options.fps)
    return encode_clip(frames, sound, options.fps)


def encode_clip(frames: NDArray[np.uint8], sound: NDArray[np.float32], fps: int) -> bytes:
    """frames (T, H, W, 3) RGB and sound (samples,) at SOUND_RATE -> an mp4; one thread, no dates: same bytes."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        # Without B-frames, frame n is shown at exactly n / fps in every reader.
        settings = {"preset": "veryfast", "crf": "16", "bf": "0", "threads": "1"}
        # x264's fast macroblock tree reads past the rows of narrow clips, so that now and then equal frames became other
        # bytes; what it keeps to here is the same for every processor, and exact.
        settings["x264-params"] = "cpu-independent=1"
        picture = container.add_stream("libx264", rate=fps, options=settings)
        picture.height, picture.width, picture.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        audio = container.add_stream("aac", rate=SOUND_RATE, layout="mono", options={"threads": "1"})
        for n, pixels in enumerate(frames):
            image = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            image.pts, image.time_base = n, Fraction(1, fps)
            container.mux(picture.encode(image))
        wave = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
        wave.sample_rate, wave.pts, wave.time_base = SOUND_RATE, 0, Fraction(1, SOUND_RATE)
        container.mux(audio.encode(wave))
        container.mux(picture.encode())
        container.mux(audio.encode())
    return file.getvalue()
