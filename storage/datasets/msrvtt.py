"""MSR-VTT: `videodatainfo.json`, the train_val and test files, `MSRVTT_data.json`; those that are there are merged."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from storage.datasets.annotations import find_annotation, list_in, no_annotations, parse_split, read_json
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName, TrainShareOptions
from storage.records import Split, VideoRecord

_PARTS = ("", "train_val_", "train_", "val_", "test_")
FILES = (*(f"{part}videodatainfo.json" for part in _PARTS), "MSRVTT_data.json")
SIZES: dict[Split, int] = {"train": 6513, "val": 497, "test": 2990}
EXPECTED = "an object with the lists 'videos' (video_id, split) and 'sentences' (video_id, caption, sen_id)"


class MsrvttOptions(TrainShareOptions):
    """MSR-VTT (10,000 clips, 20 captions each)."""

    kind: Literal["msrvtt"] = "msrvtt"
    """Which reader understands the data set."""
    name: DatasetName = "msrvtt"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""


class SentenceEntry(NamedTuple):
    """One entry of 'sentences', the file that holds it and where."""

    sen_id: int | None
    video_id: str
    text: Any
    file: str
    where: str


def read_msrvtt(options: MsrvttOptions, root: Path) -> Dataset:
    """Splits as the files say; captions in the order of sen_id. Files may repeat each other's entries."""
    builder = DatasetBuilder(options.name, root)
    paths = [path for name in FILES if (path := find_annotation(root, name))]
    if not paths:
        raise no_annotations("MSR-VTT", root, FILES)
    sentences: list[SentenceEntry] = []
    for path in paths:
        data = read_json(builder.opened(path), EXPECTED)
        _add_videos(builder, list_in(data, "videos", path, EXPECTED), path.name)
        sentences += _sentences(builder, list_in(data, "sentences", path, EXPECTED), path.name)
    _add_captions(builder, sentences)
    builder.check_counts(SIZES)
    return builder.finish()


def _add_videos(builder: DatasetBuilder, videos: list[Any], name: str) -> None:
    here: set[str] = set()
    for index, entry in enumerate(videos):
        where = f"{name}:videos[{index}]"
        video_id = entry.get("video_id") if isinstance(entry, dict) else None
        if not isinstance(video_id, str):
            builder.report(where, "malformed", "no 'video_id' with text in it; left out", where, True)
            continue
        split = parse_split(entry.get("split"))
        if split is None:
            reason = f"split {entry.get('split')!r:.80}; expected train, validate or test"
            builder.report(video_id, "bad_split", reason, where, True)
            continue
        if video_id not in here and builder.split_of(video_id) == split:
            continue  # another file said the same
        here.add(video_id)
        # 'start time' and 'end time' place the clip in its YouTube original; the clip's own file is cut already
        builder.add_video(VideoRecord(video_id, builder.find_file(video_id), split), where)


def _sentences(builder: DatasetBuilder, rows: list[Any], name: str) -> Iterator[SentenceEntry]:
    for index, entry in enumerate(rows):
        where = f"{name}:sentences[{index}]"
        video_id = entry.get("video_id") if isinstance(entry, dict) else None
        if isinstance(video_id, str):
            sen_id = entry.get("sen_id")
            yield SentenceEntry(sen_id if type(sen_id) is int else None, video_id, entry.get("caption"), name, where)
        else:
            builder.report(where, "malformed", "no 'video_id' with text in it; left out", where, True)


def _add_captions(builder: DatasetBuilder, sentences: list[SentenceEntry]) -> None:
    """In the order of sen_id, those without one last. What one file repeats of another counts once; equal captions
    without a number in one file are two people's."""
    first: dict[tuple[str, int | None, str], SentenceEntry] = {}
    for row in sorted(sentences, key=lambda row: math.inf if row.sen_id is None else row.sen_id):
        before = first.setdefault((row.video_id, row.sen_id, str(row.text)), row)
        if before is row or (before.file == row.file and row.sen_id is None):
            builder.add_caption(row.video_id, row.text, row.where)
        elif before.file == row.file:
            builder.report(row.video_id, "duplicate_caption", f"sentence {row.sen_id} again; left out", row.where)
