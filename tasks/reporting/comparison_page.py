"""What the comparison of several runs shows, as plain values: `compare_runs` fills them in, `rendering.py` makes HTML of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.reporting.charts import COLOURS
from tasks.reporting.report_page import Curve, Score


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
    """A run's score minus the first run's on the same videos, its 95 % interval, and how often chance alone turns its sign."""

    name: str
    value: float
    low: float
    high: float
    p: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class RunDifference:
    """The paired differences of one run from the first, score by score; or why they cannot be computed."""

    label: str
    against: str
    scores: Sequence[ScoreDifference] = ()
    why_not: str = ""


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
    def colours(self) -> dict[str, int]:
        """label -> the number of its colour, which its curves have too"""
        return {run.label: n % COLOURS for n, run in enumerate(self.runs)}
