"""What every reader returns, the builder that makes it, and the scan for videos.

A bad item never stops a reader: it becomes a `Problem`. Only what makes the whole data set useless is a `BadInput`: no
folder, no annotation file, a malformed one, or not one usable caption. The kinds of problems:

    unsafe_id        an id that must not become a path                                       quarantined
    malformed        an entry without the fields it needs, or of the wrong type              quarantined
    bad_split        a split that is none of train, val, test                                quarantined
    bad_segment      a start and an end in seconds that leave nothing to watch               quarantined
    no_video         captions without a video file; quarantined only if nothing declares the video, because imported
                     features can stand in for a file
    ambiguous        a name that fits several files (folder: quarantined; else the first file is taken)
    no_captions, not_annotated, empty_caption, duplicate_video, duplicate_caption, repaired_segment, outside_root,
    broken_link, unreadable_folder, missing_annotation, split_counts, split_conflict, split_derived, no_split, not_mapped
                     only reported; the reason says what was done"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from storage.datasets.annotations import SURROGATE, clean_caption
from storage.errors import BadInput, UnsafeId
from storage.files.hashing import digest
from storage.options import Options
from storage.records import SPLITS, Caption, Problem, Split, VideoRecord, check_video_id

DatasetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A name that is also a folder of the workspace."""

IMAGE_SUFFIXES = frozenset({"jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff", "ppm"})
_VIDEO_SUFFIXES = "mp4 m4v mov avi mkv webm mpg mpeg mpe ts m2ts mts wmv flv f4v ogv ogm 3gp 3g2 asf vob divx mxf gif"
MEDIA_SUFFIXES = IMAGE_SUFFIXES.union(_VIDEO_SUFFIXES.split())
NOT_A_FILE = "it is a pipe, a socket or a device; copy the video to a plain file"


class TrainShareOptions(Options):
    """What the options of published data sets have in common."""

    train_share: float = Field(1.0, gt=0, le=1)
    """Part of the training split that is used, chosen by a hash of the ids (RecNet, Table 4: 0.5)."""


def with_train_share(dataset: Dataset, share: float) -> Dataset:
    """The data set with a part of its training videos; a smaller part lies within a larger one."""
    train = sorted((video.id for video in dataset.videos if video.split == "train"), key=digest)
    dropped = set(train[max(1, round(share * len(train))) :])
    if not dropped:
        return dataset
    videos = tuple(video for video in dataset.videos if video.id not in dropped)
    return replace(dataset, videos=videos, captions=tuple(c for c in dataset.captions if c.video_id not in dropped))


@dataclass(frozen=True)
class Dataset:
    """One data set as its reader understood it: videos sorted by id, captions by video id and n, the problems, and the
    annotation files that were read."""

    name: str
    root: Path
    videos: tuple[VideoRecord, ...]
    captions: tuple[Caption, ...]
    problems: tuple[Problem, ...]
    annotations: tuple[Path, ...]


class DatasetBuilder:
    """Collects the rows of one data set. `paths` are the videos and images below the root, `files` their ids."""

    def __init__(self, name: str, root: Path):
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            raise BadInput(f"the data folder {root} {what}; pass the data folder with --data")
        self.name, self.root = name, root
        self.problems: list[Problem] = []
        self.paths = scan(root, self.problems)
        self.files = assign_ids(self.paths, self.problems)
        self._by_stem = group_by_stem(self.paths)
        self._annotations: list[Path] = []
        self._videos: dict[str, VideoRecord] = {}
        self._captions: dict[str, list[str]] = {}
        self._items: dict[str, str] = {}
        self._unsafe: set[str] = set()
        self._undeclared: dict[str, list[str]] = {}

    def opened(self, path: Path) -> Path:
        """Note that an annotation file takes part; returns it."""
        self._annotations.append(path)
        return path

    def report(self, item: str, kind: str, reason: str, where: str = "", quarantined: bool = False) -> None:
        item, reason = _one_cell(item)[:200], _one_cell(reason)[:500]
        self.problems.append(Problem(item, kind, reason, _one_cell(where), quarantined))

    def is_safe(self, video_id: str, where: str) -> bool:
        """Whether the id may become a path; if not, that is reported once."""
        if video_id in self._unsafe:
            return False
        try:
            check_video_id(video_id)
        except UnsafeId as error:
            self._unsafe.add(video_id)
            self.report(_one_cell(video_id).strip() or where, "unsafe_id", str(error), where, True)
            return False
        return True

    def add_video(self, video: VideoRecord, where: str, item: str = "") -> bool:
        """Declare a video; False (and a problem) if its id is unsafe or taken. Segments of one file share an `item`,
        under which a missing file is reported once."""
        if not self.is_safe(video.id, where):
            return False
        if before := self.split_of(video.id):
            self.report(video.id, "duplicate_video", f"declared again; the first one, in {before}, stays", where)
            return False
        self._videos[video.id], self._captions[video.id], self._items[video.id] = video, [], item or video.id
        return True

    def split_of(self, video_id: str) -> Split | None:
        """The split of a declared video, None of any other."""
        return self._videos[video_id].split if video_id in self._videos else None

    def add_caption(self, video_id: str, text: Any, where: str) -> None:
        """A caption of a video that was declared before. Equal captions of a video stay: annotators do agree."""
        if type(text) is not str:
            self.report(video_id, "malformed", f"a caption is {type(text).__name__}; expected text", where, True)
            return
        if video_id not in self._videos:
            if self.is_safe(video_id, where):
                self._undeclared.setdefault(video_id, []).append(where)
        elif cleaned := clean_caption(text):
            self._captions[video_id].append(cleaned)
        else:
            self.report(video_id, "empty_caption", "the caption is empty and was left out", where)

    def find_file(self, *stems: str) -> str | None:
        """The file with one of the stems, tried in order. Several: the first by preference, and a problem."""
        for stem in stems:
            paths = self._by_stem.get(composed(stem), [])
            if len(paths) > 1:
                self.report(stem, "ambiguous", f"several files: {', '.join(paths[:5])}; the first is used")
            if paths:
                return paths[0]
        return None

    def leave_out(self, stems: Iterable[str]) -> None:
        """Files of these stems are known to the annotations and not to be used: nothing is to be said of them."""
        unused = {path for stem in stems for path in self._by_stem.get(composed(stem), ())}
        self.paths = [path for path in self.paths if path not in unused]

    def check_counts(self, published: Mapping[Split, int]) -> None:
        """Report if the splits do not have their published sizes."""
        found = Counter(record.split for record in self._videos.values())
        if any(found[split] != published[split] for split in SPLITS):
            have, want = ("/".join(f"{counts[split]:,}" for split in SPLITS) for counts in (found, published))
            self.report(self.name, "split_counts", f"{have} videos in train/val/test; the published split has {want}")

    def finish(self) -> Dataset:
        """The data set, sorted, with what is missing reported; BadInput if it has no caption at all."""
        missing: Counter[str] = Counter()
        for video_id, record in self._videos.items():
            count = len(self._captions[video_id])
            if not count:
                self.report(video_id, "no_captions", f"a {record.split} video without captions")
            if record.source is None:
                missing[self._items[video_id]] += count
        for item, count in missing.items():
            self.report(item, "no_video", f"no video file for {count} captions; imported features can stand in for it")
        for item, lines in self._undeclared.items():
            reason = f"{len(lines)} captions of a video that no annotation declares"
            self.report(item, "no_video", reason, lines[0], True)
        for path in set(self.paths).difference(record.source or "" for record in self._videos.values()):
            self.report(path, "not_annotated", "a video or image that no annotation names; it is not used")
        ids = sorted(self._videos)
        captions = tuple(Caption(name, n, text) for name in ids for n, text in enumerate(self._captions[name]))
        if not captions:
            raise BadInput(self._no_captions())
        problems = sorted(set(self.problems), key=lambda p: (p.kind, p.item, p.where, p.reason))
        videos = tuple(self._videos[name] for name in ids)
        return Dataset(self.name, self.root, videos, captions, tuple(problems), tuple(self._annotations))

    def _no_captions(self) -> str:
        names = ", ".join(str(path) for path in self._annotations)
        problems = [problem for problem in self.problems if problem.kind != "not_annotated"]
        counts = Counter(problem.kind for problem in problems).most_common()
        found_by_scan = ", ".join(f"{count} {kind}" for kind, count in counts) or "nothing in them"
        first = f" (first: {problems[0].where or problems[0].item}: {problems[0].reason})" if problems else ""
        return f"not one usable caption in {names}: {found_by_scan}{first}; check that these are the right files"


def assign_ids(paths: Iterable[str], problems: list[Problem]) -> dict[str, str]:
    """Id -> path. An id is the file's stem. Where several files share one, the only video among images (its thumbnails)
    keeps it, or else the one in the root itself; the others are called `<folder>__<stem>`, and if that is taken too
    (`a.avi` beside `a.mp4`) with `__<ending>` behind."""
    ids: dict[str, str] = {}
    shared: list[tuple[str, str]] = []
    for stem, group in group_by_stem(paths).items():
        keeper = next((path for path in group if "/" not in path), None)
        if len(group) == 1 or (not _is_image(group[0]) and _is_image(group[1])):
            keeper = group[0]
        if keeper:
            ids[stem] = keeper
        shared += [(composed(path.rpartition(".")[0].replace("/", "__")), path) for path in group if path != keeper]
    for name, path in shared:
        if name in ids:
            name += f"__{path.rpartition('.')[2]}"
        if ids.setdefault(name, path) != path:
            reason = f"its id would be '{name}', which is the id of {ids[name]}; rename one of them to use both"
            problems.append(Problem(path, "duplicate_video", reason))
    return ids


def group_by_stem(paths: Iterable[str]) -> dict[str, list[str]]:
    """Stem -> its files, the preferred one first: videos before images, then the shallowest, then by name."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(composed(path.rpartition("/")[2].rpartition(".")[0]), []).append(path)
    for group in groups.values():
        if len(group) > 1:
            group.sort(key=lambda path: (_is_image(path), path.count("/"), path))
    return groups


def composed(text: str) -> str:
    """The text in Unicode's composed form: one file system stores names decomposed, another does not."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def is_media(path: str) -> bool:
    """Whether a name ends as a video or an image does, in any casing."""
    stem, _, suffix = path.rpartition("/")[2].rpartition(".")
    return bool(stem) and suffix.lower() in MEDIA_SUFFIXES


def scan(root: Path, problems: list[Problem]) -> list[str]:
    """The sorted relative paths of all media files below root. Hidden files and folders are skipped; a linked folder is
    not entered: inside the root its files are found where they are, outside it is a problem."""
    found: list[str] = []
    base, folders = root.resolve(), [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    elif entry.is_symlink():
                        found += [path] if _is_usable_link(base, path, problems) else []
                    elif is_media(path) and entry.is_file(follow_symlinks=False):
                        found.append(path)
                    elif is_media(path):
                        problems.append(Problem(_one_cell(path), "not_a_file", NOT_A_FILE, quarantined=True))
        except OSError as error:
            problems.append(Problem(_one_cell(folder) or ".", "unreadable_folder", error.strerror or str(error)))
    odd = {path for path in found if not is_unicode(path)}
    reason = "the name of the file or of its folder is not valid Unicode; rename it"
    problems += [Problem(_one_cell(path), "unsafe_id", reason, quarantined=True) for path in odd]
    return sorted(path for path in found if path not in odd)


def _is_usable_link(base: Path, path: str, problems: list[Problem]) -> bool:
    """A link to a file inside the root counts, unless the scan finds that file itself under the same stem."""
    link = base / path
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):  # it leads nowhere, or in a circle
        if is_media(path):
            problems.append(Problem(_one_cell(path), "broken_link", "the link leads nowhere; it is not used"))
        return False
    if not target.is_relative_to(base):
        if is_media(path) or target.is_dir():
            reason = "the link leaves the data folder and is not followed; copy what it points to into the folder"
            problems.append(Problem(_one_cell(path), "outside_root", reason))
        return False
    inside = target.relative_to(base)
    found_by_scan = is_media(inside.as_posix()) and not any(part.startswith(".") for part in inside.parts)
    return is_media(path) and target.is_file() and not (found_by_scan and inside.stem == link.stem)


def is_unicode(path: str) -> bool:
    """Whether a name can be encoded; the bytes of one that is not UTF-8 are shown by Python as surrogates."""
    return path.isprintable() or not SURROGATE.search(path)


def _is_image(path: str) -> bool:
    return path.rpartition(".")[2].lower() in IMAGE_SUFFIXES


def _one_cell(text: str) -> str:
    """The text as one cell of a table can hold it: encodable, on one line."""
    return text if text.isprintable() else clean_caption(text.encode(errors="backslashreplace").decode())
