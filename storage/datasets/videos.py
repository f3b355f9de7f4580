"""A folder of videos and images without captions: enough to extract features from. All of them are in the split 'test'."""

from pathlib import Path
from typing import Literal

from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName
from storage.errors import BadInput
from storage.options import Options
from storage.records import VideoRecord


class VideosOptions(Options):
    """Videos or images alone, without captions."""

    kind: Literal["videos"] = "videos"
    """Which reader understands the data set."""
    name: DatasetName = "videos"
    """What the data set is called in the workspace."""
    path: str | None = None
    """The data folder; --data overrides it."""


def read_videos(options: VideosOptions, root: Path) -> Dataset:
    """Every video and image below the folder, called by its name without its ending."""
    builder = DatasetBuilder(options.name, root)
    safe = [id for id in sorted(builder.files) if builder.is_safe(id, builder.files[id])]
    if not safe:
        raise BadInput(f"{root} has no videos or images (looked for in all its folders); name the folder that they are in")
    videos = tuple(VideoRecord(id, builder.files[id], "test") for id in safe)
    return Dataset(options.name, root, videos, (), tuple(builder.problems), ())
