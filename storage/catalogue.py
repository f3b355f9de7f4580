"""The catalogue of one data set: its videos, captions and problems as Parquet, and the keys that later stages use.

A *snapshot* is what the annotations and the hashes of the files tell, without decoding anything: it is cheap, and enough to know
every key in advance. The catalogue adds what probing found."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.datasets.dataset import Dataset
from storage.errors import StorageError
from storage.files.atomic import write_parquet
from storage.files.file_cache import CachedProbe, FileCache, Progress
from storage.files.hashing import digest, digest_rows
from storage.records import SPLITS, Caption, Problem, VideoRecord

ABSENT = "absent"  # the key of a video whose file is not there

_PROBED = {
    **{"frames": "int64", "fps": "float64", "duration": "float64", "width": "int32", "height": "int32"},
    **{"codec": "string", "has_audio": "bool", "damaged": "bool"},
}
_VIDEO_SCHEMA = pa.schema(
    dict.fromkeys(("id", "source", "split"), "string")
    | {"start": "float64", "end": "float64", "key": "string", "content": "string", "usable": "bool"}
    | _PROBED
)
_CAPTION_SCHEMA = pa.schema({"video_id": "string", "n": "int32", "text": "string"})
_PROBLEM_SCHEMA = pa.schema(dict.fromkeys(("item", "kind", "reason", "where"), "string") | {"quarantined": "bool"})


@dataclass(frozen=True)
class DatasetSnapshot:
    """A data set and the content hash of each of its files."""

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
        return parts | {k: digest(*(parts[f"{k}/{split}"] for split in SPLITS)) for k in ("videos", "captions")}

    @cached_property
    def captions_of(self) -> dict[str, list[str]]:
        """video id -> its captions, in order."""
        return _by_video((caption.video_id, caption.text) for caption in self.dataset.captions)

    @cached_property
    def key(self) -> str:
        problems = ((p.item, p.kind, p.reason) for p in self.dataset.problems)
        return digest(self.dataset.name, self.parts, digest_rows(problems))


def snapshot_dataset(dataset: Dataset, file_cache: FileCache, progress: Progress = None) -> DatasetSnapshot:
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
        return _by_video(_rows(self.captions, "video_id", "text"))

    @cached_property
    def problems(self) -> list[Problem]:
        return [Problem(**row) for row in _read(self.folder / "quarantine.parquet").to_pylist()]

    @cached_property
    def records(self) -> dict[str, VideoRecord]:
        """Every video of the data set by id, whether its file can be used or not."""
        rows = _rows(self.videos, "id", "source", "split", "start", "end")
        spans = ((*row, None if start is None else (start, end)) for *row, start, end in rows)
        return {row[0]: VideoRecord(*row) for row in spans}

    @cached_property
    def usable_keys(self) -> dict[str, str]:
        """video id -> record key of the videos whose file can be decoded."""
        return {id: key for id, key, usable in _rows(self.videos, "id", "key", "usable") if usable}

    @cached_property
    def content_keys(self) -> dict[str, str]:
        """video id -> hash of its file's bytes, where there is a file."""
        return {id: content for id, content in _rows(self.videos, "id", "content") if content}

    def ids(self, *splits: str) -> list[str]:
        return [id for id, record in self.records.items() if record.split in splits]

    def path_of(self, video_id: str) -> Path:
        source = self.records[video_id].source
        if source is None:
            raise StorageError(f"{video_id} has no file in {self.root}")
        return self.root / source


def _rows(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)


def _by_video(captions: Iterable[tuple[Any, ...]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id, text in captions:
        found.setdefault(id, []).append(text)
    return found


def _read(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot read {path}: {error}; run again with '--force catalogue'") from error


def write_catalogue(folder: Path, snapshot: DatasetSnapshot, probes: Mapping[str, CachedProbe]) -> Counter[str]:
    """Write the three tables; returns how many videos are usable, quarantined, absent or damaged."""
    dataset, counts = snapshot.dataset, Counter[str]()
    problems = list(dataset.problems)
    rows: list[dict[str, Any]] = []
    for video in dataset.videos:
        content = snapshot.contents.get(video.source or "")
        probed = probes.get(content or "")
        metadata = probed.metadata if probed else None
        start, end = video.segment or (None, None)
        row = {"id": video.id, "source": video.source, "split": video.split, "start": start, "end": end}
        row |= {"key": snapshot.record_keys[video.id], "content": content, "usable": metadata is not None}
        rows.append(row | {name: (metadata or {}).get(name) for name in _PROBED})
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
    write_parquet(folder / "captions.parquet", _table(dataset.captions, _CAPTION_SCHEMA))
    write_parquet(folder / "quarantine.parquet", problem_table(problems))
    return counts


def problem_table(problems: Iterable[Problem]) -> pa.Table:
    """Problems as a table; the quarantined first, then by item."""
    ordered = sorted(problems, key=lambda p: (not p.quarantined, p.item, p.kind))
    return _table(ordered, _PROBLEM_SCHEMA)


def _table(records: Sequence[Caption | Problem], schema: pa.Schema) -> pa.Table:
    return pa.table([[getattr(record, name) for record in records] for name in schema.names], schema=schema)


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
    """What changed between a catalogue and a snapshot."""
    old, new = dict(_rows(before.videos, "id", "key")), after.record_keys
    same = {id for id in old.keys() & new.keys() if old[id] == new[id]}
    changed = len(old.keys() & new.keys()) - len(same)
    recaptioned = sum(before.captions_of.get(id) != after.captions_of.get(id) for id in same)
    return Changes(len(new.keys() - old.keys()), len(old.keys() - new.keys()), changed, recaptioned)
