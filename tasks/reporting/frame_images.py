"""Small images of the frames that a report shows: decoded once, kept beside the report for comparisons of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from storage.catalogue import Catalogue
from storage.errors import BadMedia, StorageError
from storage.files.atomic import write_parquet
from storage.media.frame_sampling import Uniform
from tasks.extraction.frames import read_frames
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext

_FILE = "pictures.parquet"
_MOST_IMAGES = 12_000  # about 30 MB of a page: beyond it, each video has fewer
_FEWEST = 3
_LARGER = 4
"""a picture, or a video of one frame, is shown so many times as wide"""
_FEW_PICTURES = 1_500  # above them, half of that
_QUALITY = 60
_SCHEMA = pa.schema([("video_id", pa.string()), ("times", pa.list_(pa.float64())), ("frames", pa.list_(pa.binary()))])


@dataclass(frozen=True)
class FrameImages:
    """Frames of one video as small WebP images, and their seconds."""

    frames: tuple[bytes, ...] = ()
    times: tuple[float, ...] = ()


NO_IMAGES = FrameImages()


def decode_frame_images(
    context: StageContext, table: Catalogue, ids: Sequence[str], frames: int, width: int
) -> dict[str, FrameImages]:
    """video id -> its frame images; a video that cannot be decoded any more is left out."""
    found = {}
    wanted = {id: {"shown": Uniform(frames=frames_per_video(len(ids), frames))} for id in ids}
    with progress_bar("frames for the report", len(ids), "videos") as progress:
        for id, answer in read_frames(context, table, wanted):
            progress.advance()
            if not isinstance(answer, BadMedia):
                shown = answer["shown"].images[:, 0]
                larger = 1 if len(shown) > 1 else _LARGER if len(ids) <= _FEW_PICTURES else _LARGER // 2
                images = tuple(to_webp(image, larger * width) for image in shown)
                found[id] = FrameImages(images, tuple(answer["shown"].pts.tolist()))
    return found


def frames_per_video(videos: int, wanted: int) -> int:
    """How many frames of each video are shown: fewer when there are thousands of videos."""
    return min(wanted, max(_FEWEST, _MOST_IMAGES // max(videos, 1)))


def to_webp(image: np.ndarray, width: int) -> bytes:
    """(H, W, 3) -> WebP; an image that is smaller already stays as it is."""
    width = min(width, image.shape[1])
    height = max(1, round(image.shape[0] * width / image.shape[1]))
    file = BytesIO()
    Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS).save(file, "WEBP", quality=_QUALITY)
    return file.getvalue()


def write_frame_images(folder: Path, images: Mapping[str, FrameImages]) -> None:
    rows = [{"video_id": id, "times": list(p.times), "frames": list(p.frames)} for id, p in images.items()]
    write_parquet(folder / _FILE, pa.Table.from_pylist(rows, _SCHEMA))


def read_frame_images(folder: Path) -> dict[str, FrameImages]:
    """video id -> the images that a report kept; empty if there are none."""
    path = folder / _FILE
    if not path.exists():
        return {}
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot read {path}: {error}; run with '--force report'") from error
    return {row["video_id"]: FrameImages(tuple(row["frames"]), tuple(row["times"])) for row in rows}
