"""What the comparison of several runs shows, as plain values; `tasks/reporting/rendering.py` makes the page of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.reporting.charts import COLOURS
from tasks.reporting.page import Curve, Score


@dataclass(frozen=True)
class RunColumn:
    """One run: a letter for the page, what it is, its scores by name, and what must not be overlooked about it."""

    label: str
    title: str
    run_id: str
    made_at: str
    captioner: str
    videos: str
    scores: Mapping[str, Score]
    other_figures: Mapping[str, str] = field(default_factory=dict)
    alarms: Sequence[str] = ()


@dataclass(frozen=True)
class PairedScore:
    """One score of two runs on the same videos: theirs minus the first run's, its 95 % interval, how often chance alone
    turns its sign."""

    name: str
    value: float
    low: float
    high: float
    p: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Pairing:
    """What one run has more than the first, score by score; or why that cannot be told."""

    label: str
    against: str
    scores: Sequence[PairedScore] = ()
    why_not: str = ""


@dataclass(frozen=True)
class Told:
    """What one run says of a video; caption None: it did not caption it."""

    label: str
    caption: str | None
    cider: float | None = None
    best: bool = False


@dataclass(frozen=True)
class ComparedClip:
    """One video with what each run says of it. `spread` is how far the best and the worst run are apart in CIDEr, `gain`
    what the last run has more than the first."""

    video_id: str
    split: str
    told: Sequence[Told]
    references: Sequence[str] = ()
    frames: Sequence[bytes] = ()
    frame_times: Sequence[float] = ()
    spread: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class ComparisonPage:
    """Everything on the page. `settings` are (name, value of each run), those that are not the same in all; None where a
    recipe has no such setting."""

    title: str
    runs: Sequence[RunColumn]
    pairings: Sequence[Pairing] = ()
    settings: Sequence[tuple[str, Sequence[str | None]]] = ()
    curves: Sequence[Curve] = ()
    clips: Sequence[ComparedClip] = ()
    notes: Sequence[str] = ()

    @property
    def letters(self) -> dict[str, int]:
        """label -> the number of the colour that its curves have too"""
        return {run.label: n % COLOURS for n, run in enumerate(self.runs)}

    @property
    def shared_settings(self) -> list[tuple[str, Sequence[str | None]]]:
        return [(name, values) for name, values in self.settings if None not in values]

    @property
    def other_settings(self) -> list[tuple[str, Sequence[str | None]]]:
        """Settings that some of the recipes do not have."""
        return [(name, values) for name, values in self.settings if None in values]

    @property
    def figures(self) -> list[str]:
        """The names of the figures beside the scores, those of all runs together."""
        return list(dict.fromkeys(name for run in self.runs for name in run.other_figures))
