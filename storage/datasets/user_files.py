"""User files: videos and images from anywhere, without captions, to be captioned by a trained run.

No recipe can name this kind: what a run learns from is a data set. A clip is called by the hash of its file's bytes (and its
segment), never by its name, so a copy or a renamed file is the same clip."""

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from storage.datasets.dataset import NOT_A_FILE, Dataset, DatasetName, is_unicode, scan
from storage.options import Options
from storage.records import Problem, TimeSpan, VideoRecord, check_video_id

USER_FILES = "loose"
ROOT = Path("/")
"""user files lie anywhere, so their sources are below the root of the file system"""


class UserClip(Options):
    """One file, or a part of one."""

    id: str
    source: str
    """its absolute path without the first slash"""
    segment: TimeSpan | None = None


class UserFilesOptions(Options):
    """Clips to be captioned."""

    kind: Literal["loose"] = "loose"
    name: DatasetName = USER_FILES
    clips: tuple[UserClip, ...]


def read_user_files(options: UserFilesOptions, root: Path) -> Dataset:
    videos = tuple(VideoRecord(check_video_id(clip.id), clip.source, "test", clip.segment) for clip in options.clips)
    return Dataset(options.name, root, videos, (), (), ())


def clip_of(content: str, path: Path, segment: TimeSpan | None = None) -> UserClip:
    """The clip of a file whose bytes have this hash."""
    id = content if segment is None else f"{content}-{round(1000 * segment[0])}-{round(1000 * segment[1])}"
    return UserClip(id=id, source=source_of(path), segment=segment)


def source_of(path: Path) -> str:
    return path.absolute().relative_to(ROOT).as_posix()


def gather_files(arguments: Iterable[str]) -> tuple[list[Path], list[Problem]]:
    """Files, folders (all media below them) and patterns such as 'clips/**/*.mp4' -> files, each once, in the order given;
    and what came to nothing. A file that is named is taken whatever its ending; whether it is a video, its bytes tell."""
    found: dict[Path, None] = {}
    problems: list[Problem] = []
    for argument in arguments:
        path = Path(argument).expanduser()
        names = [path]
        if not path.exists() and glob.has_magic(argument):
            # A folder that a pattern finds stands for itself, as it does on a command line.
            names = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - Path.glob has no absolute patterns
            if "**" in path.parts:
                names = [name for name in names if not name.is_dir()]
            if not names:
                problems.append(_problem(argument, "no_match", "no file has a name like that; check the pattern"))
        for name in names:
            _take(name, found, problems)
    return list(found), problems


def _take(path: Path, found: dict[Path, None], problems: list[Problem]) -> None:
    if not is_unicode(str(path)):
        problems.append(_problem(str(path), "unsafe_id", "its name is not valid Unicode; rename it"))
    elif path.is_dir():
        inside = scan(path, problems)
        found.update(dict.fromkeys((path / name).absolute() for name in inside))
        if not inside:
            words = "no videos or images in this folder; name files to try them"
            problems.append(_problem(str(path), "no_media", words))
    elif not path.exists():
        problems.append(_problem(str(path), "missing", "there is no such file; check its name"))
    elif not path.is_file():
        problems.append(_problem(str(path), "not_a_file", NOT_A_FILE))
    else:
        found[path.absolute()] = None


def _problem(item: str, kind: str, reason: str) -> Problem:
    printable = item.encode(errors="backslashreplace").decode()
    return Problem(printable, kind, reason, quarantined=True)
