"""What the pages show, as plain values: `report` and `compare_runs` fill them in, `rendering.py` makes HTML of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from storage.neighbours import NearDuplicates
from tasks.reporting.charts import COLOURS
from tasks.reporting.published_scores import PublishedScores

Box = tuple[float, float, float, float]
"""left, top, right and bottom, from 0 to 1 of the frame"""


@dataclass(frozen=True)
class Score:
    """One metric of the whole run; `note` says on what it was measured, `interval` is its 95 % interval."""

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
    """A part of a frame that a word attends to: the frame's time in seconds, the box, the share of the attention."""

    time: float
    box: Box
    weight: float


@dataclass(frozen=True)
class CellAttention:
    """How much each word attends to each cell of square grids, row by row: weights (words, frames, cells), frames at `times`.

    `seen` is the part in the middle of a frame that the grid covers, (width, height) in short sides of the frame; None: all."""

    weights: np.ndarray
    times: Sequence[float]
    seen: tuple[float, float] | None = None


@dataclass(frozen=True)
class ReportClip:
    """One video of the gallery.

    `frames` are small WebP, JPEG or PNG images, all of one size, `frame_times` their seconds. `attention` is
    (words, weights), weights being words x positions, which are spread evenly over the video if it is a `timeline`, else
    are rows of several features. `regions` are those that each word attends to most, `cells` the weights of all cells where
    frames are grids. `key_time` is the second of the frame that a refocusing encoder chose, `first_caption` what it said
    before. `words` are what the tagger found, each with its probability; `classes` the likeliest classes by feature."""

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
    cells: CellAttention | None = None
    key_time: float | None = None
    first_caption: str = ""
    words: Sequence[tuple[str, float]] = ()
    classes: Mapping[str, Sequence[tuple[str, float]]] = field(default_factory=dict)


Verdict = Literal["told apart", "one of two", "mixed up", "same caption"]


@dataclass(frozen=True)
class DuplicateClips:
    """Two near duplicates; `verdict`: whether each caption fits its own video better than the other one."""

    first: ReportClip
    second: ReportClip
    distance: float
    verdict: Verdict


@dataclass(frozen=True)
class StageLine:
    """One stage: `state` is "ran" if this run did it, "reused" if an earlier one had; `seconds` is what it cost then."""

    name: str
    state: str
    seconds: float | None
    items: int | None
    key: str
    made_at: str = ""
    note: str = ""


@dataclass(frozen=True)
class ReportPage:
    """Everything on the page. `summary` says in sentences what was run; `metadata` are (label, value);
    `critical_warnings` must not be overlooked; `problems` are (item, kind, reason, where); `training_duplicates` are
    (split, pair) of a split's videos and training videos, the closest first; `not_shown` says what could not be drawn."""

    title: str
    recipe_name: str
    about: str
    made_at: str
    summary: Sequence[str] = ()
    metadata: Sequence[tuple[str, str]] = ()
    critical_warnings: Sequence[str] = ()
    warnings: Sequence[str] = ()
    scores: Sequence[Score] = ()
    curves: Sequence[Curve] = ()
    masking: list[Curve] = field(default_factory=list)
    clips: Sequence[ReportClip] = ()
    not_shown: Sequence[str] = ()
    near_duplicates: Sequence[DuplicateClips] = ()
    training_duplicates: Sequence[tuple[str, NearDuplicates]] = ()
    problems: Sequence[tuple[str, str, str, str]] = ()
    stages: Sequence[StageLine] = ()
    recipe_yaml: str = ""
    published: Sequence[PublishedScores] = ()
    published_note: str = ""


@dataclass(frozen=True)
class RunColumn:
    """One run: its letter on the page, what it is, its scores by name, and what must not be overlooked about it."""

    label: str
    title: str
    run_id: str
    made_at: str
    captioner: str
    videos: str
    scores: Mapping[str, Score]
    other_metrics: Mapping[str, str] = field(default_factory=dict)
    critical_warnings: Sequence[str] = ()


@dataclass(frozen=True)
class ScoreDifference:
    """A run's score minus the first run's on the same videos; its 95 % interval, and how often chance alone turns its sign,
    where there are enough videos for them."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out zero."""
        return (self.low or 0) > 0 or (self.high or 0) < 0


@dataclass(frozen=True)
class RunDifference:
    """The paired differences of one run from the first, score by score; or why they cannot be computed."""

    label: str
    against: str
    scores: Sequence[ScoreDifference] = ()
    why_not: str = ""

    @property
    def has_intervals(self) -> bool:
        return any(score.p is not None for score in self.scores)


@dataclass(frozen=True)
class RunCaption:
    """One run's caption of a video; None: it did not caption it."""

    label: str
    caption: str | None
    cider: float | None = None
    best: bool = False


@dataclass(frozen=True)
class ComparedClip:
    """One video with each run's caption. `spread` is the best run's CIDEr minus the worst's,
    `gain` the last's minus the first's."""

    video_id: str
    split: str
    captions: Sequence[RunCaption]
    references: Sequence[str] = ()
    frames: Sequence[bytes] = ()
    frame_times: Sequence[float] = ()
    spread: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class ComparisonPage:
    """Everything on the page. `settings` are (name, value in each run) of the settings that differ; None where a recipe
    has no such setting."""

    title: str
    runs: Sequence[RunColumn]
    differences: Sequence[RunDifference] = ()
    settings: Sequence[tuple[str, Sequence[str | None]]] = ()
    curves: Sequence[Curve] = ()
    clips: Sequence[ComparedClip] = ()
    notes: Sequence[str] = ()

    @property
    def has_intervals(self) -> bool:
        return any(score.interval for run in self.runs for score in run.scores.values())

    @property
    def colours(self) -> dict[str, int]:
        """label -> the number of its colour, which its curves have too"""
        return {run.label: n % COLOURS for n, run in enumerate(self.runs)}
