"""VATEX: its JSON files of 10 English captions per clip."""

from pathlib import Path
from typing import Any, Literal

from storage.datasets.annotations import find_annotation, no_annotations, read_json_list
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName
from storage.options import Options
from storage.records import Split, VideoRecord

FILES: dict[Split, str] = {
    "train": "vatex_training_v1.0.json",
    "val": "vatex_validation_v1.0.json",
    "test": "vatex_public_test_english_v1.1.json",
}
SIZES: dict[Split, int] = {"train": 25_991, "val": 3000, "test": 6000}
EXPECTED = "a list of objects with 'videoID' and 'enCap'"


class VatexOptions(Options):
    """VATEX's English captions (34,991 clips, 10 captions each); its public test split is test."""

    kind: Literal["vatex"] = "vatex"
    """Which reader understands the data set."""
    name: DatasetName = "vatex"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""


def read_vatex(options: VatexOptions, root: Path) -> Dataset:
    """A clip's file is named by its videoID, such as Ptf_2VRj-V0_000122_000132.mp4, anywhere below root."""
    builder = DatasetBuilder(options.name, root)
    paths = {split: path for split, name in FILES.items() if (path := find_annotation(root, name))}
    if not paths:
        raise no_annotations("VATEX", root, list(FILES.values()))
    for split, path in paths.items():
        for index, entry in enumerate(read_json_list(builder.opened(path), EXPECTED)):
            _add_clip(builder, entry, split, f"{path.name}[{index}]")
    builder.check_counts(SIZES)
    return builder.finish()


def _add_clip(builder: DatasetBuilder, entry: Any, split: Split, where: str) -> None:
    clip, captions = (entry.get("videoID"), entry.get("enCap")) if isinstance(entry, dict) else (None, None)
    if not isinstance(clip, str) or not isinstance(captions, list):
        builder.report(where, "malformed", "no 'videoID' with text in it, or no list 'enCap'; left out", where, True)
    elif builder.add_video(VideoRecord(clip, builder.find_file(clip), split), where):
        for caption in captions:
            builder.add_caption(clip, caption, where)
