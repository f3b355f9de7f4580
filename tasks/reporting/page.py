"""What the report of one run shows, as plain values that a stage fills in; `rendering.py` beside it makes the page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from storage.neighbours import NearDuplicates
from tasks.reporting.published import Published


@dataclass(frozen=True)
class Score:
    """One number about the whole run; `note` says on what it was measured, `interval` is its 95 % interval."""

    name: str
    value: float
    higher_is_better: bool = True
    note: str = ""
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curve:
    """One chart: every series is a list of (x, y)."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Region:
    """A part of a frame that a word looks at: its frame by the time in seconds, left, top, right and bottom from 0 to 1 of
    the frame, and its share of the attention over regions."""

    time: float
    box: tuple[float, float, float, float]
    weight: float


@dataclass(frozen=True)
class Clip:
    """One video of the gallery.

    `frames` are small WebP, JPEG or PNG images, all of one size, `frame_times` their seconds. `attention` is
    (words, weights), weights being words x positions, which are spread evenly over the video if it is a `timeline`, else
    are rows of several features. `regions` are those that each word looks at most. `key_time` is the second of the frame
    that a refocusing encoder chose. `words` are what the tagger found, each with its probability."""

    video_id: str
    split: str
    caption: str
    log_prob: float | None = None
    references: Sequence[str] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    frames: Sequence[bytes] = ()
    frame_times: Sequence[float] = ()
    attention: tuple[Sequence[str], Sequence[Sequence[float]]] | None = None
    timeline: bool = True
    regions: Sequence[Sequence[Region]] = ()
    key_time: float | None = None
    words: Sequence[tuple[str, float]] = ()


Verdict = Literal["told apart", "one of two", "mixed up", "same caption"]


@dataclass(frozen=True)
class DuplicateClips:
    """Two captioned videos that are much alike. `verdict`: whether each caption fits its own video better than its twin's."""

    first: Clip
    second: Clip
    distance: float
    verdict: Verdict


@dataclass(frozen=True)
class StageLine:
    """One stage of the run: `state` is "ran" if the run did it, "reused" if an earlier one had; `seconds` is what it cost
    whoever did it; `note` a few figures."""

    name: str
    state: str
    seconds: float | None
    items: int | None
    key: str
    made_at: str = ""
    note: str = ""


@dataclass(frozen=True)
class ReportPage:
    """Everything on the page. `story` says in sentences what was run; `facts` are (label, value); `alarms` are what must not
    be overlooked, `warnings` what should be known; `problems` are (item, kind, reason, where); `training_duplicates` are
    (split, pair) of a split's videos and training videos, the closest first; `not_shown` says what could not be drawn."""

    title: str
    recipe_name: str
    about: str
    made_at: str
    story: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    alarms: Sequence[str] = ()
    warnings: Sequence[str] = ()
    scores: Sequence[Score] = ()
    curves: Sequence[Curve] = ()
    masking: Curve | None = None
    clips: Sequence[Clip] = ()
    not_shown: Sequence[str] = ()
    twins: Sequence[DuplicateClips] = ()
    training_duplicates: Sequence[tuple[str, NearDuplicates]] = ()
    problems: Sequence[tuple[str, str, str, str]] = ()
    stages: Sequence[StageLine] = ()
    recipe_yaml: str = ""
    published: Sequence[Published] = ()
    published_note: str = ""
