"""ActivityNet Captions: `train.json`, `val_1.json`, `val_2.json`; every time-stamped sentence is a clip of its own.

The captions of the official test split are not public. The two validation files annotate the same videos with other
segments, so val_1 is the val split and val_2 the test split unless the options say otherwise. The segments are called
`<video>_000`, `<video>_001`, ..., those of val_2 `<video>_b000`, ...; all the segments of a video share its file."""

import re
from pathlib import Path
from typing import Any, Literal

from storage.datasets.annotations import find_annotation, no_annotations, read_json, repair_segment
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName, TrainShareOptions
from storage.records import Split, VideoRecord

FILES = ("train.json", "val_1.json", "val_2.json")
EXPECTED = 'an object of videos, each as {"duration": s, "timestamps": [[start, end], ...], "sentences": [...]}'


class ActivityNetOptions(TrainShareOptions):
    """ActivityNet Captions (about 20,000 long videos, described segment by segment)."""

    kind: Literal["activitynet"] = "activitynet"
    """Which reader understands the data set."""
    name: DatasetName = "activitynet"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""
    val_2: Literal["test", "val", "ignore"] = "test"
    """The split that the second validation file becomes; its videos are those of the first."""


def read_activitynet(options: ActivityNetOptions, root: Path) -> Dataset:
    """Videos may be named `v_<id>.*`, as in the annotations, or `<id>.*`."""
    builder = DatasetBuilder(options.name, root)
    wanted: dict[str, tuple[Split, str]] = {"train.json": ("train", ""), "val_1.json": ("val", "")}
    if options.val_2 != "ignore":
        wanted["val_2.json"] = (options.val_2, "b")
    paths = {name: path for name in wanted if (path := find_annotation(root, name))}
    if not paths:
        raise no_annotations("ActivityNet", root, list(wanted))
    for name, (split, mark) in wanted.items():
        if name not in paths:
            builder.report(name, "missing_annotation", f"not there; it would have been in the {split} split")
            continue
        for video, entry in read_json(builder.opened(paths[name]), EXPECTED).items():
            _add_segments(builder, video, entry, split, mark, f"{name}:{video}"[:200])
    return builder.finish()


def video_of(segment_id: str) -> str:
    """The video that a segment belongs to, in both validation files: v_x of v_x_003 and of v_x_b003."""
    return re.sub(r"_b?\d{3,}$", "", segment_id)


def _add_segments(builder: DatasetBuilder, video: str, entry: Any, split: Split, mark: str, where: str) -> None:
    times, sentences = (entry.get(key) if isinstance(entry, dict) else None for key in ("timestamps", "sentences"))
    if not isinstance(times, list) or not isinstance(sentences, list):
        builder.report(video, "malformed", f"expected {EXPECTED}", where, True)
        return
    if len(times) != len(sentences):
        reason = f"{len(times)} timestamps for {len(sentences)} sentences; those without a partner are left out"
        builder.report(video, "malformed", reason, where)
    source = builder.find_file(video, video.removeprefix("v_"))
    for index, (time, sentence) in enumerate(zip(times, sentences, strict=False)):
        video_id = f"{video}_{mark}{index:03d}"
        start, end = time if isinstance(time, list) and len(time) == 2 else (None, None)
        segment, note = repair_segment(start, end, entry.get("duration"))
        if segment is None:
            builder.report(video_id, "bad_segment", note, where, True)
            continue
        if note:
            builder.report(video_id, "repaired_segment", note, where)
        if builder.add_video(VideoRecord(video_id, source, split, segment), where, item=video):
            builder.add_caption(video_id, sentence, where)
