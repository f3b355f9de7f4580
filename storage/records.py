"""The records that every package shares: a video, a caption, a problem, a reference to a stage's result."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from storage.errors import UnsafeId
from storage.files.hashing import digest

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
TimeSpan = tuple[float, float]
"""start and end in seconds"""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\u0085\u2028\u2029/\\]")


def check_video_id(video_id: str) -> str:
    """The id itself if it is safe as one path component and one table cell, else UnsafeId says why."""
    if not video_id or video_id != video_id.strip():
        raise UnsafeId(f"video id {video_id!r} is empty or has blanks around it; give every video a plain name")
    if _FORBIDDEN.search(video_id):
        raise UnsafeId(f"video id {video_id!r} has a slash or a control character; an id is a name, not a path")
    if video_id.startswith("."):
        raise UnsafeId(f"video id {video_id!r} starts with a dot, so it could hide or leave its folder; rename it")
    try:
        size = len(video_id.encode())
    except UnicodeEncodeError:
        raise UnsafeId(f"video id {video_id!r} is not valid Unicode; rename the file") from None
    if size > 200:
        raise UnsafeId(f"video id {video_id[:40]!r}... has {size} bytes; 200 is the most a file name can safely hold")
    return video_id


@dataclass(frozen=True, slots=True)
class VideoRecord:
    """One clip. `source` is its file, relative to the data set's root with forward slashes, or None if it is absent
    (imported features can stand in for it). `segment` is (start, end) in seconds. An image is a one-frame video."""

    id: str
    source: str | None
    split: Split
    segment: TimeSpan | None = None


@dataclass(frozen=True, slots=True)
class Caption:
    """The `n`-th caption (from 0) of a video."""

    video_id: str
    n: int
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about one item that was noticed and worked around. `kind` is a short stable word for counting;
    a `quarantined` item takes no part in the run, any other is only reported."""

    item: str
    kind: str
    reason: str
    where: str = ""
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """A reference to a stage's result: where it is and the key of what it was computed from. JSON, never a tensor.

    `parts` maps the name of a part (such as "captions/train") to a key of its own, so that a later stage can depend on
    exactly what it reads; `selected` names the parts that this reference is restricted to (none: the whole result)."""

    kind: str
    uri: str
    key: str
    count: int = 0
    made_by: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    selected: tuple[str, ...] = ()

    def part(self, *names: str) -> ArtifactRef:
        """A reference to some parts: same place, a key of these parts alone. Of one part, the parts below it stay ("videos"
        has "videos/train"); of several, just those that are named."""
        if missing := next((name for name in names if name not in self.parts), None):
            raise KeyError(f"{self.kind} has no part '{missing}'; it has {', '.join(sorted(self.parts)) or 'none'}")
        if len(names) == 1:
            key, below = self.parts[names[0]], {n: key for n, key in self.parts.items() if n.startswith(f"{names[0]}/")}
        else:
            below = {name: self.parts[name] for name in names}
            key = digest(sorted(below.items()))
        return replace(self, key=key, parts=below, selected=names)

    def to_json(self) -> dict[str, Any]:
        whole = {name: getattr(self, name) for name in ("kind", "uri", "key", "count", "made_by")}
        return whole | {"parts": dict(self.parts)} | ({"selected": list(self.selected)} if self.selected else {})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ArtifactRef:
        return cls(**{**data, "selected": tuple(data.get("selected", ()))})
