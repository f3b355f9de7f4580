"""The catalogue of one data set: its videos, captions and problems as Parquet, and the keys that later stages use.

An *inventory* is what reading the annotations and fingerprinting the files tells, without decoding anything: it is
cheap, and enough to know every key in advance. The catalogue adds what probing found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.datasets.dataset import Dataset
from storage.errors import StorageError
from storage.files.atomic import write_parquet
from storage.files.file_cache import CachedProbe, FileCache
from storage.files.hashing import digest, digest_rows
from storage.records import SPLITS, Caption, Problem, VideoRecord

ABSENT = "absent"  # the key of a video whose file is not there

_VIDEO_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("split", pa.string()),
        ("start", pa.float64()),
        ("end", pa.float64()),
        ("key", pa.string()),
        ("content", pa.string()),
        ("usable", pa.bool_()),
        ("frames", pa.int64()),
        ("fps", pa.float64()),
        ("duration", pa.float64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("codec", pa.string()),
        ("has_audio", pa.bool_()),
        ("damaged", pa.bool_()),
    ]
)
_CAPTION_SCHEMA = pa.schema([("video_id", pa.string()), ("n", pa.int32()), ("text", pa.string())])
_PROBLEM_SCHEMA = pa.schema(
    [
        ("item", pa.string()),
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("where", pa.string()),
        ("quarantined", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class DatasetSnapshot:
    """A data set and the content key of each of its videos."""

    dataset: Dataset
    contents: dict[str, str]
    """source -> hash of the file's bytes, for every file that can be read"""

    @cached_property
    def record_keys(self) -> dict[str, str]:
        """video id -> key of its bytes and segment."""
        return {video.id: record_key(video, self.contents) for video in self.dataset.videos}

    @cached_property
    def parts(self) -> dict[str, str]:
        """Keys by split, so that a stage depends on exactly what it reads: videos/train, captions/test, ..."""
        splits = {video.id: video.split for video in self.dataset.videos}
        parts = {}
        for split in SPLITS:
            keys = ((v.id, self.record_keys[v.id]) for v in self.dataset.videos if v.split == split)
            parts[f"videos/{split}"] = digest_rows(keys)
            texts = ((c.video_id, str(c.n), c.text) for c in self.dataset.captions if splits.get(c.video_id) == split)
            parts[f"captions/{split}"] = digest_rows(texts)
        parts["videos"] = digest(*(parts[f"videos/{split}"] for split in SPLITS))
        parts["captions"] = digest(*(parts[f"captions/{split}"] for split in SPLITS))
        return parts

    @cached_property
    def captions_of(self) -> dict[str, list[str]]:
        """video id -> its captions, in order."""
        found: dict[str, list[str]] = {}
        for caption in self.dataset.captions:
            found.setdefault(caption.video_id, []).append(caption.text)
        return found

    @cached_property
    def key(self) -> str:
        problems = ((p.item, p.kind, p.reason) for p in self.dataset.problems)
        return digest(self.dataset.name, self.parts, digest_rows(problems))


def snapshot_dataset(
    dataset: Dataset, file_cache: FileCache, progress: Callable[[int, int], None] | None = None
) -> DatasetSnapshot:
    sources = sorted({video.source for video in dataset.videos if video.source})
    keys = file_cache.fingerprint(dataset.root, sources, progress)
    return DatasetSnapshot(dataset, {source: key for source, key in keys.items() if key})


def record_key(video: VideoRecord, contents: Mapping[str, str]) -> str:
    content = contents.get(video.source or "")
    if content is None:
        return ABSENT
    return content if video.segment is None else digest(content, list(video.segment))


@dataclass(frozen=True)
class Catalogue:
    """The tables of one catalogue folder."""

    folder: Path
    root: Path

    @cached_property
    def videos(self) -> pa.Table:
        return _read(self.folder / "videos.parquet")

    @cached_property
    def captions(self) -> pa.Table:
        return _read(self.folder / "captions.parquet")

    @cached_property
    def captions_of(self) -> dict[str, list[str]]:
        """video id -> its captions, in order."""
        found: dict[str, list[str]] = {}
        for id, text in zip(self.captions["video_id"].to_pylist(), self.captions["text"].to_pylist(), strict=True):
            found.setdefault(id, []).append(text)
        return found

    @cached_property
    def problems(self) -> list[Problem]:
        return [Problem(**row) for row in _read(self.folder / "quarantine.parquet").to_pylist()]

    @cached_property
    def records(self) -> dict[str, VideoRecord]:
        """Every video of the data set by id, whether its file can be used or not."""
        columns = (self.videos[name].to_pylist() for name in ("id", "source", "split", "start", "end"))
        return {
            id: VideoRecord(id, source, split, None if start is None else (start, end))
            for id, source, split, start, end in zip(*columns, strict=True)
        }

    @cached_property
    def usable_keys(self) -> dict[str, str]:
        """video id -> record key of the videos whose file can be decoded."""
        table = self.videos
        rows = zip(table["id"].to_pylist(), table["key"].to_pylist(), table["usable"].to_pylist(), strict=True)
        return {id: key for id, key, usable in rows if usable}

    @cached_property
    def content_keys(self) -> dict[str, str]:
        """video id -> hash of its file's bytes, where there is a file."""
        rows = zip(self.videos["id"].to_pylist(), self.videos["content"].to_pylist(), strict=True)
        return {id: content for id, content in rows if content}

    def ids(self, *splits: str) -> list[str]:
        return [id for id, record in self.records.items() if record.split in splits]

    def path_of(self, video_id: str) -> Path:
        source = self.records[video_id].source
        if source is None:
            raise StorageError(f"{video_id} has no file in {self.root}")
        return self.root / source


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot read {path}: {error}; run again with '--force catalogue'") from error


def write_catalogue(folder: Path, inventory: DatasetSnapshot, probes: Mapping[str, CachedProbe]) -> Counter[str]:
    """Write the three tables; returns how many videos are usable, quarantined, absent or damaged."""
    dataset, counts = inventory.dataset, Counter[str]()
    problems = list(dataset.problems)
    rows: list[dict[str, Any]] = []
    for video in dataset.videos:
        content = inventory.contents.get(video.source or "")
        probed = probes.get(content or "")
        metadata = probed.metadata if probed else None
        start, end = video.segment or (None, None)
        row = {"id": video.id, "source": video.source, "split": video.split, "start": start, "end": end}
        row |= {"key": inventory.record_keys[video.id], "content": content, "usable": metadata is not None}
        for name in ("frames", "fps", "duration", "width", "height", "codec", "has_audio", "damaged"):
            row[name] = metadata.get(name) if metadata else None
        rows.append(row)
        counts["usable" if metadata else "absent" if video.source is None else "quarantined"] += 1
        if video.source is not None and metadata is None:
            kind, reason = (probed.bad_kind, probed.bad_reason) if probed else ("unreadable", "the file cannot be read")
            problems.append(Problem(video.id, kind, reason, video.source, quarantined=True))
        elif metadata and metadata.get("damaged"):
            counts["damaged"] += 1
            reason = "the file promises more than it holds; only what can be decoded is used"
            problems.append(Problem(video.id, "damaged", reason, video.source or ""))
    counts["captions"] = len(dataset.captions)
    write_parquet(folder / "videos.parquet", pa.Table.from_pylist(rows, _VIDEO_SCHEMA))
    write_parquet(folder / "captions.parquet", _caption_table(dataset.captions))
    write_parquet(folder / "quarantine.parquet", problem_table(problems))
    return counts


def _caption_table(captions: Iterable[Caption]) -> pa.Table:
    captions = list(captions)
    columns = [[c.video_id for c in captions], [c.n for c in captions], [c.text for c in captions]]
    return pa.table(columns, schema=_CAPTION_SCHEMA)


def problem_table(problems: Iterable[Problem]) -> pa.Table:
    """Problems as a table; the quarantined first, then by item."""
    ordered = sorted(problems, key=lambda p: (not p.quarantined, p.item, p.kind))
    names = _PROBLEM_SCHEMA.names
    return pa.table([[getattr(p, name) for p in ordered] for name in names], schema=_PROBLEM_SCHEMA)


@dataclass(frozen=True)
class Changes:
    """How many videos differ between two states of a data set."""

    added: int = 0
    removed: int = 0
    changed: int = 0
    recaptioned: int = 0
    """videos that are the same, with other captions"""

    @property
    def videos(self) -> int:
        return self.added + self.removed + self.changed + self.recaptioned

    def __str__(self) -> str:
        """In words: '3 videos added, 1 video changed'."""
        words = [f"{n} {'video' if n == 1 else 'videos'} {what}" for what, n in asdict(self).items() if n]
        return ", ".join(words) or "splits or problems changed"


def compare(before: Catalogue, after: DatasetSnapshot) -> Changes:
    """What changed between a catalogue and an inventory."""
    old = dict(zip(before.videos["id"].to_pylist(), before.videos["key"].to_pylist(), strict=True))
    new = after.record_keys
    both = old.keys() & new.keys()
    told, tell = before.captions_of, after.captions_of
    return Changes(
        added=len(new.keys() - old.keys()),
        removed=len(old.keys() - new.keys()),
        changed=sum(old[id] != new[id] for id in both),
        recaptioned=sum(old[id] == new[id] and told.get(id) != tell.get(id) for id in both),
    )
