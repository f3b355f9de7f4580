"""A plain folder: videos (or images) anywhere in it and one table of captions.

    captions.csv | .tsv | .parquet   columns video, caption; optional split, start, end
    captions.jsonl                   the same as one object per line; "captions": [...] may stand for several

`video` is a file's name, its path below the folder, or its id (the name without its ending). With start and end (in
seconds) a row describes a segment: a clip of its own, called `<id>_<n>` in the order of the table. Splits that the
table does not give are derived from a hash of the video's id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from storage.datasets.annotations import TABLE_SUFFIXES, parse_split, read_rows, repair_segment
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName, composed, is_media
from storage.errors import BadInput
from storage.options import Options
from storage.records import SPLITS, Split, TimeSpan, VideoRecord

VIDEO_COLUMNS = ("video", "video_id", "file_name", "file")
CAPTION_COLUMNS = ("caption", "text", "sentence", "captions")
COLUMNS = (*VIDEO_COLUMNS, *CAPTION_COLUMNS, "split", "start", "end")


class FolderOptions(Options):
    """Your own videos and captions."""

    kind: Literal["folder"] = "folder"
    """Which reader understands the data set."""
    name: DatasetName = "folder"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""
    captions: str | None = None
    """The table of captions, relative to the data folder; without it captions.csv, .tsv, .jsonl or .parquet, or the
    only such file there."""
    val_share: float = Field(default=0.1, ge=0, lt=1)
    """The share of the videos without a split that become val."""
    test_share: float = Field(default=0.1, ge=0, lt=1)
    """The share of the videos without a split that become test."""

    @field_validator("captions")
    @classmethod
    def _stay_in_the_folder(cls, captions: str | None) -> str | None:
        if captions is not None and (PurePath(captions).is_absolute() or ".." in PurePath(captions).parts):
            raise ValueError("the table of captions must lie in the data folder: give its path from there")
        return captions

    @model_validator(mode="after")
    def _leave_some_to_train(self) -> FolderOptions:
        if self.val_share + self.test_share >= 1:
            raise ValueError("val_share + test_share must stay below 1, or nothing is left to train on")
        return self


def derive_splits(ids: Iterable[str], val_share: float, test_share: float) -> tuple[dict[str, Split], list[str]]:
    """A split for every id from a hash of the id alone, so that a new video moves no other; and the ids lent (below).

    The hash puts an id on [0, 1): the lowest `test_share` is test, the next `val_share` val, the rest train. If three
    or more ids leave a split empty that has a share, it borrows one: test and val the lowest, train the highest on that
    line of a split that has more. Of 16 ids each such split has two, of 24 three: one video cannot tell a good epoch,
    since its CIDEr is always 0. So a new video can move another only by ending or taking over such a loan."""
    hashes = {name: int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) / 2**64 for name in ids}
    line = sorted(hashes, key=lambda name: (hashes[name], name))
    splits: dict[str, Split] = {}
    for name in line:
        splits[name] = "test" if hashes[name] < test_share else "val" if hashes[name] < test_share + val_share else "train"
    lent: list[str] = []
    shares: dict[Split, float] = {"test": test_share, "val": val_share, "train": 1.0 - test_share - val_share}
    least = min(3, max(1, len(line) // 8)) if len(line) >= 3 else 0
    for split, share in shares.items():
        while share > 0 and (sizes := Counter(splits.values()))[split] < least:
            order = reversed(line) if split == "train" else line
            lent.append(next(name for name in order if sizes[splits[name]] > least))
            splits[lent[-1]] = split
    return splits, lent


def find_table(root: Path, captions: str | None = None) -> Path:
    """The table of captions; BadInput lists what was looked for, or between which files to choose."""
    if captions is not None:
        if (root / captions).is_file():
            return root / captions
        raise BadInput(f"no table of captions at {root / captions}; set dataset.captions to a file below {root}")
    files = sorted(path for path in root.iterdir() if path.suffix.lower() in TABLE_SUFFIXES and path.is_file())
    visible = [path for path in files if not path.name.startswith(".")]
    found = [path for path in visible if path.stem == "captions"] or visible
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise BadInput(f"several tables in {root}: {names}; name the captions with dataset.captions")
    wanted = ", ".join(f"captions{suffix}" for suffix in TABLE_SUFFIXES)
    raise BadInput(f"no captions in {root}; looked for {wanted} or any single file with such an ending; add one")


def read_folder(options: FolderOptions, root: Path) -> Dataset:
    """The folder as a data set; a video that the table names and the folder lacks stays, without a source."""
    builder = DatasetBuilder(options.name, root)
    path = builder.opened(find_table(root, options.captions))
    clips, given = _read_table(builder, path)
    undecided = [video for video in clips if video not in given]
    derived, lent = derive_splits(undecided, options.val_share, options.test_share)
    if undecided:
        counts = Counter(derived.values())
        sizes = "/".join(str(counts[split]) for split in SPLITS)
        extra = f"; too few for every share, so small splits borrowed {', '.join(lent)}" if lent else ""
        reason = f"{len(undecided)} videos without a split: {sizes} in train/val/test by a hash of their ids{extra}"
        builder.report(builder.name, "split_derived", reason, path.name)
    splits = derived | given
    taken = set(clips)
    for video, segments in clips.items():
        count = 0
        for segment, rows in segments.items():
            video_id = video
            if segment is not None:
                video_id, count = _free(f"{video}_{count}", taken), count + 1
                taken.add(video_id)
            record = VideoRecord(video_id, builder.files.get(video), splits[video], segment)
            if builder.add_video(record, rows[0][1], video):
                for text, where in rows:
                    if text is not None:
                        builder.add_caption(video_id, text, where)
    return builder.finish()


_Clips = dict[str, dict[TimeSpan | None, list[tuple[Any, str]]]]
"""video -> segment, or None for the whole -> its captions and where they are (None: only declared)"""


def _read_table(builder: DatasetBuilder, path: Path) -> tuple[_Clips, dict[str, Split]]:
    """The clips, and video -> the split that the table gives."""
    clips: _Clips = {}
    splits: dict[str, Split] = {}
    bad_splits: dict[str, tuple[Any, str]] = {}
    names, column = _Names(builder), ""
    for line, row in read_rows(path, COLUMNS):
        where = f"{path.name}:{line}"
        if column not in row:  # the first row, or a JSON line with other names
            column = _video_column(row, path)
        video = names.find(row.get(column), where)
        if video is None:
            continue
        split, start, end = row.get("split"), row.get("start"), row.get("end")
        if split is not None and not _is_blank(split):
            known = parse_split(split)
            if known is None:  # a slip of the pen must not move a test video into train: the row is left out
                bad_splits.setdefault(video, (split, where))
                continue
            if splits.setdefault(video, known) != known:
                reason = f"this row says {known}, but it is in {splits[video]} already and stays there"
                builder.report(video, "split_conflict", reason, where)
        segment = None
        if not (start is end is None or (_is_blank(start) and _is_blank(end))):
            segment, note = repair_segment(start, end)
            if segment is None:
                builder.report(video, "bad_segment", f"{note}; the row is left out", where, True)
                continue
            if note:
                builder.report(video, "repaired_segment", note, where)
        clips.setdefault(video, {}).setdefault(segment, []).extend((text, where) for text in _texts(row))
    for video, (split, where) in bad_splits.items():
        reason = f"split {split!r:.80}; expected train, val (validate, validation, dev) or test"
        builder.report(video, "bad_split", reason, where, quarantined=video not in clips)
    return clips, splits


def _video_column(row: dict[str, Any], path: Path) -> str:
    """The column that names the video. A table without one, or without captions, is BadInput; a JSON line is not."""
    column = next((name for name in VIDEO_COLUMNS if name in row), None)
    if path.suffix.lower() != ".jsonl" and (column is None or not any(name in row for name in CAPTION_COLUMNS)):
        names = ", ".join((*VIDEO_COLUMNS[1:], *CAPTION_COLUMNS[1:]))
        wanted = f"'video' and 'caption' (also called {names}), and if you like split, start, end"
        parted = "; its columns are parted by ';', save it with ','" if any(";" in name for name in row) else ""
        raise BadInput(f"{path}, line 1: the columns are {', '.join(row)}; expected {wanted}{parted}")
    return column or VIDEO_COLUMNS[0]


class _Names:
    """Which video a cell of the table means: an id, a path below the root or a file's name, in this order."""

    def __init__(self, builder: DatasetBuilder):
        self._builder = builder
        self._known: dict[Any, str | None] = {}
        self._absent: dict[str, str] = {}
        self._taken = set(builder.files)
        self._by_path = {composed(path): video for video, path in builder.files.items()}
        self._by_name: dict[str, list[str]] = {}
        for path, video in self._by_path.items():
            name = path.rpartition("/")[2]
            for key in (name, name.rpartition(".")[0]):
                self._by_name.setdefault(key, []).append(video)

    def find(self, value: Any, where: str) -> str | None:
        """The video's id, of an absent one too; None, once reported, if the cell does not name one video."""
        if type(value) is not str and type(value) is not int:
            self._builder.report(where, "malformed", f"the video is {value!r:.80}; expected its name", where, True)
            return None
        if value not in self._known:
            video = self._find(composed(str(value).strip()), where)
            self._known[value] = video if video is not None and self._builder.is_safe(video, where) else None
        return self._known[value]

    def _find(self, name: str, where: str) -> str | None:
        if name in self._builder.files:
            return name
        path = name.replace("\\", "/").removeprefix(f"{self._builder.root.as_posix()}/").removeprefix("./")
        if path in self._by_path:
            return self._by_path[path]
        videos = self._by_name.get(name, [])
        if len(videos) > 1:
            reason = f"it fits {', '.join(videos[:5])}; its captions are left out, so give the path or the id"
            self._builder.report(name, "ambiguous", reason, where, True)
            return None
        return videos[0] if videos else self._name_absent(name, path)

    def _name_absent(self, name: str, path: str) -> str:
        """The id that the file would have if it were there."""
        if path.startswith("/") or ".." in path.split("/"):
            return name  # which is unsafe, and is reported so
        path = path.rpartition(".")[0] if is_media(path) else path
        if path not in self._absent:
            stem = path.rpartition("/")[2]
            self._absent[path] = stem if stem == path else _free(stem, self._taken, path.replace("/", "__"))
            self._taken.add(self._absent[path])
        return self._absent[path]


def _free(name: str, taken: set[str], other: str = "") -> str:
    """The name, or the other one, with underscores until no video has it."""
    if name in taken and other:
        name = other
    while name in taken:
        name += "_"
    return name


def _texts(row: dict[str, Any]) -> list[Any]:
    """The captions of a row; [None] if it only declares its video."""
    values = [row[column] for column in CAPTION_COLUMNS if row.get(column) is not None]
    return [text for value in values for text in (value if isinstance(value, list) else [value])] or [None]


def _is_blank(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())
