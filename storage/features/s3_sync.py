"""Feature stores on S3-like storage. The local folder of a store is a cache of the remote one, and readers map it as always.

    remote = RemoteFeatures("s3://bucket/prefix")
    mirror = remote.mirror("msvd/resnet-1a2b", local_folder)
    mirror.pull()                                             what others made is here now
    with store.writer(published=mirror.push_segment): ...     what is made here is there as soon as it is on disk
    mirror.push()                                             and whatever a kill left unsent

Objects have the names of the files of a store. A segment's index is created last, so a remote segment exists whole or not
at all; a pulled one appears by a rename. A segment is removed only when every row of it is in one of newer name: merged
segments are newer than their sources, and two machines that tidy at once never remove each other's copy. Everything may
be killed and run twice."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.errors import Mismatch, StorageError, wrap_os_errors
from storage.features.maintenance import Compaction, ProgressCallback, RowTimes, index_rows, superseded
from storage.features.object_store import ObjectInfo, ObjectStore
from storage.features.reader import SegmentGone
from storage.features.segments import INDEX, delete_segment, is_segment_name, remove_leftovers, segment_names, staged
from storage.features.store import FeatureStore
from storage.files.atomic import write_bytes

_REMEDY = "'longtake features verify' tells whether it is the local one; remove that segment and run again"
_GROUP = "zarr.json"
_SEGMENT_FILE = re.compile(r"zarr\.json|index\.parquet|data/zarr\.json|data/c(\.\d{1,12})+")
_NOTE_FILE = re.compile(r"imports/(\d{8}T\d{12}-[0-9a-f]{16}/)?zarr\.json")
_AT_ONCE = 8
_ATTEMPTS = 20  # each one lost means that a compaction was published in between
_LEFT_BEHIND = timedelta(days=1)  # a segment that has no index after this time will never get one


@dataclass(frozen=True)
class Transfer:
    """What a pull or push did: segments and bytes copied, segments removed because newer ones hold their rows."""

    segments: int = 0
    nbytes: int = 0
    removed: int = 0


class RemoteFeatures:
    """The feature stores below one URL: s3://bucket/prefix or file:///folder."""

    def __init__(self, url: str):
        self.objects = ObjectStore(url)
        self.url = self.objects.url

    def names(self) -> list[str]:
        """The stores there, named as 'longtake features list' names them: <data set>/<name>."""
        below = [store for dataset in self.objects.folders() for store in self.objects.folders(dataset)]
        return sorted(name for name in below if self.objects.get(f"{name}/{_GROUP}") is not None)

    def mirror(self, name: str, local: Path) -> Mirror:
        """The remote store `name` and the local folder as a pair; neither need exist yet."""
        return Mirror(self.objects, name, local)


class Mirror:
    """A remote store and its local copy."""

    def __init__(self, objects: ObjectStore, name: str, local: Path):
        self.url, self.local = f"{objects.url}/{name}", local
        self._objects, self._name = objects, name
        self._remote_checked = False

    def pull(self, progress: ProgressCallback | None = None) -> Transfer:
        """Fetch every remote segment that is missing here, then drop local ones that the remote compacted away.

        Without a remote store there is nothing to do. progress counts bytes."""
        group = self._objects.get(f"{self._name}/{_GROUP}")
        if group is None:
            return Transfer()
        with wrap_os_errors(self.local):
            if not (self.local / _GROUP).exists():
                write_bytes(self.local / _GROUP, group)
            self._require_same(group)
            remove_leftovers(self.local)
            segments, nbytes, remote = self._copy_until_stable(lambda: self._fetch_missing(progress))
            self._fetch_notes()
            gone = [name for name in self._superseded(self._local_segments()) if name not in remote]
            for name in gone:
                delete_segment(self.local / name)
        return Transfer(segments, nbytes, len(gone))

    def push(self, progress: ProgressCallback | None = None) -> Transfer:
        """Send every local segment that the remote lacks, then remove remote ones whose rows newer ones hold."""
        self._ensure_remote_store()
        segments, nbytes, remote = self._copy_until_stable(lambda: self._send_missing(progress))
        self._send_notes()
        gone = self._superseded(remote)
        for name in gone:
            self._remove(name)
        return Transfer(segments, nbytes, len(gone))

    def push_segment(self, segment: Path, replaced: Sequence[Path] = ()) -> None:
        """Send one segment, then remove those that it replaced; for `FeatureStore.writer(published=...)`."""
        self._ensure_remote_store()
        try:
            for _ in self._send(segment.name, self._files(segment.name)):
                pass
        except SegmentGone:  # a compaction took it; the next push sends what it became
            return
        for path in replaced:
            self._remove(path.name)

    def compact(self, keep: Mapping[str, str] | None = None) -> Compaction:
        """Compact the store here and there: what was merged is sent before its sources are removed there."""
        self.pull()
        before = set(self._local_segments())
        done = FeatureStore.open(self.local).compact(keep)
        self.push()
        listed = self._listed()
        sources = [name for name in self._superseded(_indexed(listed), keep) if name in before]
        for name in [*sources, *(name for name, files in listed.items() if _is_left_behind(files))]:
            self._remove(name)
        return done

    def _copy_until_stable(self, copy: Callable[[], tuple[int, int]]) -> tuple[int, int, set[str]]:
        """Copy until no segment went away in the middle -> segments, bytes copied, segments that are there."""
        for _ in range(_ATTEMPTS):
            try:
                segments, nbytes = copy()
            except SegmentGone:  # its rows are in a newer segment that the listing did not have yet
                continue
            return segments, nbytes, _indexed(self._listed())
        raise StorageError(f"{self.url} changed {_ATTEMPTS} times while it was copied; run the same command again")

    def _fetch_missing(self, progress: ProgressCallback | None) -> tuple[int, int]:
        listed, here = self._listed(), set(self._local_segments())
        missing = {name: {file: entry.size for file, entry in listed[name].items()} for name in _indexed(listed) - here}
        return _copy_all(self._fetch, missing, progress)

    def _send_missing(self, progress: ProgressCallback | None) -> tuple[int, int]:
        there, here = _indexed(self._listed()), set(self._local_segments())
        needless = self._superseded(there | here)
        missing = {name: self._files(name) for name in here - there if name not in needless}
        return _copy_all(self._send, missing, progress)

    def _fetch(self, segment: str, files: dict[str, int]) -> Iterator[int]:
        """Fetch a whole segment -> sizes of its files as they arrive."""
        with staged(self.local / segment) as stage:
            (stage / "data").mkdir()

            def fetch(file: str) -> int:
                with (stage / file).open("xb") as out:
                    try:
                        for block in self._objects.stream(f"{self._name}/{segment}/{file}"):
                            out.write(block)
                    except FileNotFoundError:
                        raise SegmentGone(segment) from None
                    if out.tell() != files[file]:
                        raise StorageError(f"{self.url}/{segment}/{file} came incomplete; run the same command again")
                return files[file]

            yield from _in_parallel(fetch, files)

    def _send(self, segment: str, files: dict[str, int]) -> Iterator[int]:
        """Send a whole segment, its index last -> sizes of its files as they are there."""

        def send(file: str) -> int:
            try:
                data = (self.local / segment / file).read_bytes()
            except FileNotFoundError:
                raise SegmentGone(segment) from None
            path = f"{self._name}/{segment}/{file}"
            if not self._objects.create(path, data) and self._objects.get(path) != data:
                what = f"has other content than the one in {self.local}; one of them is damaged"
                raise Mismatch(f"{self.url}/{segment}/{file} {what}: {_REMEDY}")
            return len(data)

        yield from _in_parallel(send, [file for file in files if file != INDEX])
        yield send(INDEX)

    def _remove(self, segment: str) -> None:
        """The index goes first: without it the rest is no segment any more."""
        self._objects.delete([f"{self._name}/{segment}/{INDEX}"])
        self._objects.delete([entry.path for entry in self._objects.below(f"{self._name}/{segment}/")])

    def _listed(self) -> dict[str, dict[str, ObjectInfo]]:
        """segment -> file -> object, of all that is there; names that no segment has are ignored."""
        found: dict[str, dict[str, ObjectInfo]] = defaultdict(dict)
        for entry in self._objects.below(f"{self._name}/"):
            segment, _, file = entry.path.removeprefix(f"{self._name}/").partition("/")
            if is_segment_name(segment) and _SEGMENT_FILE.fullmatch(file):
                found[segment][file] = entry
        return found

    def _local_segments(self) -> list[str]:
        return [name for name in segment_names(self.local) if (self.local / name / INDEX).exists()]

    def _files(self, segment: str) -> dict[str, int]:
        folder = self.local / segment
        try:
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        except FileNotFoundError:
            raise SegmentGone(segment) from None
        return {file: size for file, size in sizes.items() if _SEGMENT_FILE.fullmatch(file)}

    def _superseded(self, segments: Iterable[str], keep: Mapping[str, str] | None = None) -> list[str]:
        return superseded({name: self._rows(name) for name in segments}, keep)

    def _rows(self, segment: str) -> RowTimes:
        """The rows of a segment by its index here, else there; none if it is gone."""
        try:
            data: bytes | None = (self.local / segment / INDEX).read_bytes()
        except FileNotFoundError:
            data = self._objects.get(f"{self._name}/{segment}/{INDEX}")
        try:
            return {} if data is None else index_rows(data)
        except pa.ArrowException as error:
            what = f"the index of segment {segment} in {self.local} or at {self.url} cannot be read ({error})"
            raise StorageError(f"{what}; {_REMEDY}") from error

    def _ensure_remote_store(self) -> None:
        """Make the remote store, or see that the one there is of the same extractor."""
        if not self._remote_checked:
            FeatureStore.open(self.local)
            group = (self.local / _GROUP).read_bytes()
            if not self._objects.create(f"{self._name}/{_GROUP}", group):
                self._require_same(self._objects.get(f"{self._name}/{_GROUP}") or group)
            self._remote_checked = True

    def _require_same(self, group: bytes) -> None:
        mine, (key, dtype, feature_shape) = FeatureStore.open(self.local), _identity(group, self.url)
        there = (key, dtype, mine.feature_shape if feature_shape is None else feature_shape)
        shape = feature_shape if mine.feature_shape is None else mine.feature_shape
        here = (mine.provenance.get("extractor_key"), mine.dtype.name, shape)
        if there != here:
            what = f"features of (extractor key, dtype, shape of a step) {there}, {self.local} of {here}"
            raise Mismatch(f"{self.url} holds {what}; give one of them another name or place")

    def _fetch_notes(self) -> None:
        """What was imported. Notes never change, so one that is here is right."""
        for entry in self._objects.below(f"{self._name}/imports/"):
            note = entry.path.removeprefix(f"{self._name}/")
            if _NOTE_FILE.fullmatch(note) and not (self.local / note).exists():
                write_bytes(self.local / note, self._objects.get(entry.path) or b"{}")

    def _send_notes(self) -> None:
        for path in sorted(self.local.glob("imports/**/zarr.json")):
            self._objects.create(f"{self._name}/{path.relative_to(self.local)}", path.read_bytes())


def _indexed(listed: Mapping[str, Mapping[str, ObjectInfo]]) -> set[str]:
    return {name for name, files in listed.items() if INDEX in files}


def _is_left_behind(files: Mapping[str, ObjectInfo]) -> bool:
    return INDEX not in files and datetime.now(UTC) - max(entry.at for entry in files.values()) > _LEFT_BEHIND


_Copy = Callable[[str, dict[str, int]], Iterator[int]]


def _copy_all(copy: _Copy, segments: Mapping[str, dict[str, int]], progress: ProgressCallback | None) -> tuple[int, int]:
    """Copy segments (name -> sizes of its files), oldest first -> how many, how many bytes."""
    done, total = 0, sum(sum(sizes.values()) for sizes in segments.values())
    for name in sorted(segments):
        for size in copy(name, segments[name]):
            done += size
            if progress:
                progress(done, total)
    return len(segments), done


def _in_parallel(work: Callable[[str], int], files: Iterable[str]) -> Iterator[int]:
    with ThreadPoolExecutor(_AT_ONCE, "copying") as pool:
        yield from pool.map(work, files)


def _identity(group: bytes, where: str) -> tuple[Any, str, tuple[int, ...] | None]:
    """extractor key, dtype and shape of a step that a store's zarr.json declares."""
    try:
        attributes = json.loads(group)["attributes"]
        declared = attributes["longtake_features"]
        feature_shape = None if declared["tail"] is None else tuple(declared["tail"])
        return attributes["provenance"]["extractor_key"], declared["dtype"], feature_shape
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{where}/{_GROUP} is damaged or of no Longtake feature store ({error!r})") from error
