"""What one report shows, and how it becomes one self-contained HTML file.

The dataclasses are plain values that a stage fills in; `render_report` turns them into the text of the page. Layout
lives in templates/report.html.j2, looks in report.css, behaviour in report.js; all three end up inside the one file,
which sends no request anywhere (its own Content-Security-Policy forbids it).

Every clip is written as the same markup. The first page of them stands in the document, so that the report can be read
without JavaScript and before a large file has finished loading; the others wait in <template> elements, where a browser
neither lays them out nor decodes their frames until they are looked at. Opening a file of 3,000 clips then costs no
more than reading its bytes; as one JSON blob it took half as long again.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, UnidentifiedImageError

from storage.errors import BadInput
from storage.neighbours import Twins
from tasks.charts import line_chart, plain_number

CLIPS_A_PAGE = 24
REFERENCES_SHOWN = 3
PROBLEMS_SHOWN = 50

_MIME_TYPES = {"JPEG": "image/jpeg", "WEBP": "image/webp", "PNG": "image/png"}


@dataclass(frozen=True)
class Score:
    """One number about the whole run; `note` says on what it was measured."""

    name: str
    value: float
    higher_is_better: bool = True
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """One chart: every series is a list of (x, y)."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Clip:
    """One video of the gallery.

    `frames` are small JPEG, WebP or PNG images, all of one size, `frame_times` their seconds. `attention` is
    (words, weights), weights being words x positions; with as many positions as frames they share columns, otherwise
    the bars span the strip. `words` are what the tagger found, each with its probability."""

    video_id: str
    split: str
    caption: str
    log_prob: float | None = None
    references: Sequence[str] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    frames: Sequence[bytes] = ()
    frame_times: Sequence[float] = ()
    attention: tuple[Sequence[str], Sequence[Sequence[float]]] | None = None
    words: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True)
class StageLine:
    """One stage of the run: `state` is a word such as "ran", "cached" or "failed"; `seconds` its cost this time."""

    name: str
    state: str
    seconds: float | None
    items: int | None
    key: str


@dataclass(frozen=True)
class Published:
    """A row of the table beside our scores: what others reported on the same data."""

    name: str
    scores: Mapping[str, float]
    source: str = ""


@dataclass(frozen=True)
class ReportPage:
    """Everything on the page. `facts` are (label, value); `problems` are (item, kind, reason, where);
    `twins` are (split, pair), the closest pairs first."""

    title: str
    recipe_name: str
    about: str
    made_at: str
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    scores: Sequence[Score] = ()
    curves: Sequence[Curve] = ()
    clips: Sequence[Clip] = ()
    twins: Sequence[tuple[str, Twins]] = ()
    problems: Sequence[tuple[str, str, str, str]] = ()
    stages: Sequence[StageLine] = ()
    recipe_yaml: str = ""
    published: Sequence[Published] = ()


def render_report(page: ReportPage) -> str:
    """The page as one HTML document. The same page gives the same text."""
    templates = _templates()
    style, script = _source("report.css"), _source("report.js")
    ranked_by = _ranking_score(page.clips)
    clips = [_clip_view(clip, ranked_by) for clip in _most_ordinary_first(page.clips, ranked_by)]
    seconds = [_finite(stage.seconds) or 0.0 for stage in page.stages]
    slowest = max(seconds, default=0.0) or 1.0
    html = templates.get_template("report.html.j2").render(
        page=page,
        made_at=_readable_time(page.made_at),
        style=style,
        script=script,
        # only this very script may run, even if some text had slipped through unescaped
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        curves=[line_chart(c.title, c.x_label, c.y_label, c.series) for c in page.curves],
        score_names=_score_names(page),
        clips=clips,
        ranked_by=ranked_by,
        ascending=any(score.name == ranked_by and not score.higher_is_better for score in page.scores),
        splits=sorted({clip.split for clip in page.clips}),
        clips_a_page=CLIPS_A_PAGE,
        references_shown=REFERENCES_SHOWN,
        problem_kinds=Counter(kind for _, kind, _, _ in page.problems).most_common(),
        problems_shown=PROBLEMS_SHOWN,
        stages=[(stage, cost / slowest) for stage, cost in zip(page.stages, seconds, strict=True)],
        total_seconds=sum(seconds),
        cached=sum(stage.state == "cached" for stage in page.stages),
    )
    # a file name that is not Unicode arrives as lone surrogates, which no file in UTF-8 can hold
    return html.encode("utf-8", "replace").decode("utf-8")


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=plain_number, count=_count, percent=_percent, duration=readable_duration)
    return environment


def _source(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def readable_duration(seconds: float | None) -> str:
    """0.42 s, 12 s, 3 min 05 s, 2 h 07 min; a dash when it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds >= 0.01 else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _count(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _percent(share: float) -> int:
    return round(100 * min(max(share, 0.0), 1.0)) if math.isfinite(share) else 0


def _readable_time(iso: str) -> str:
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".rstrip()


def _score_names(page: ReportPage) -> list[str]:
    """Columns of the comparison: our scores in our order, then those that only others report."""
    names = [score.name for score in page.scores]
    return list(dict.fromkeys(names + [name for row in page.published for name in row.scores]))


def _ranking_score(clips: Sequence[Clip]) -> str:
    """The score that best and worst are about: CIDEr where there is one, else the first score any clip has."""
    names = list(dict.fromkeys(name for clip in clips for name in clip.scores))
    return "CIDEr" if "CIDEr" in names else names[0] if names else ""


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _most_ordinary_first(clips: Sequence[Clip], ranked_by: str) -> list[Clip]:
    """Nearest to the median first, so that a report opens on what the captioner usually does, not on its best day."""
    values = [value for clip in clips if (value := _finite(clip.scores.get(ranked_by))) is not None]
    median = statistics.median(values) if values else 0.0

    def order(clip: Clip) -> tuple[float, list[tuple[int, str]], str]:
        value = _finite(clip.scores.get(ranked_by))
        distance = math.inf if value is None else abs(value - median)
        return (
            distance,
            [(int(n or 0), word) for word, n in re.findall(r"([^0-9]+)|([0-9]+)", clip.video_id)],
            clip.video_id,
        )

    return sorted(clips, key=order)


def _clip_view(clip: Clip, ranked_by: str) -> dict[str, object]:
    """What the template needs of one clip beyond its own fields."""
    size, sources = _frame_sources(clip)
    times = [f"{time:.1f} s" if math.isfinite(time) else "" for time in clip.frame_times]
    view: dict[str, object] = {
        "clip": clip,
        "rank": _finite(clip.scores.get(ranked_by)),
        "size": size,
        "frames": [(source, times[n] if n < len(times) else "") for n, source in enumerate(sources)],
        "caption_words": [],
        "other_words": [],
        "bars": [],
        "aligned": False,
    }
    if clip.attention is None or not clip.attention[1]:
        return view
    words, weights = clip.attention
    # thousandths, so that thousands of clips stay small; bars are drawn relative to the tallest one of the clip
    rows = [[round(1000 * weight) if math.isfinite(weight) else 0 for weight in row] for row in weights]
    pairs = [(word, " ".join(map(str, row))) for word, row in zip(words, rows, strict=False)]
    spoken = clip.caption.split()
    follows = [word for word, _ in pairs[: len(spoken)]] == spoken  # a closing <eos> may come after the caption
    columns = max(map(len, rows))
    mean = [round(sum(row[n] for row in rows if n < len(row)) / len(rows)) for n in range(columns)]
    tallest = max((weight for row in rows for weight in row), default=0) or 1
    view["caption_words" if follows else "other_words"] = pairs[: len(spoken)] if follows else pairs
    view["bars"] = [(weight, weight / tallest) for weight in mean]
    view["tallest"] = tallest
    view["aligned"] = columns == len(sources)
    return view


def _frame_sources(clip: Clip) -> tuple[tuple[int, int], list[str]]:
    """The size of a frame and each frame as a data: URI."""
    size = (0, 0)
    sources = []
    for n, frame in enumerate(clip.frames):
        try:
            with Image.open(BytesIO(frame), formats=tuple(_MIME_TYPES)) as image:
                size = size if n else image.size
                mime = _MIME_TYPES[str(image.format)]
        except (UnidentifiedImageError, OSError) as error:
            raise BadInput(
                f"frame {n} of clip '{clip.video_id}' is no JPEG, WebP or PNG image ({len(frame)} bytes: "
                f"{frame[:8]!r}); a report wants encoded thumbnails"
            ) from error
        sources.append(f"data:{mime};base64,{base64.b64encode(frame).decode()}")
    return size, sources
