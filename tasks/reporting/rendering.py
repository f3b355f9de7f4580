"""How the pages become self-contained HTML files: the report of a run, and the comparison of several.

Layout lives in templates/*.j2, looks in pages.css, behaviour in pages.js; all end up inside the one file, which sends no
request anywhere (its own Content-Security-Policy forbids it).

Every clip is written as the same markup. The first page of them stands in the document, so that the page can be read
without JavaScript and before a large file has finished loading; the others wait as text in data blocks, <script
type="text/template">, until they are looked at. Of 3,000 clips in 57 MB, Chromium needs 0.9 s of CPU time to open; with the
same markup in <template> elements, which it parses, 1.8 s.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.reporting.charts import line_chart, plain_number
from tasks.reporting.clip_views import FEW_FRAMES, clip_view, film_view, most_ordinary_first, ranking_score, showcase
from tasks.reporting.comparison_page import ComparisonPage
from tasks.reporting.page import Curve, ReportPage, Score

CLIPS_A_PAGE = 24
REFERENCES_SHOWN = 3
PROBLEMS_SHOWN = 50
HEADLINES = ("CIDEr", "BLEU-4", "METEOR", "ROUGE-L", "SPICE")


def render_report(page: ReportPage) -> str:
    """The page of one run as one HTML document. The same page gives the same text."""
    ranked_by = ranking_score(page.clips)
    ordered = most_ordinary_first(page.clips, ranked_by)
    down = any(score.name == ranked_by and not score.higher_is_better for score in page.scores)
    seconds = [stage.seconds if stage.seconds and math.isfinite(stage.seconds) else 0.0 for stage in page.stages]
    slowest = max(seconds, default=0.0) or 1.0
    headlines = [score for score in page.scores if score.name in HEADLINES] or list(page.scores)
    return _render(
        "report.html.j2",
        page=page,
        made_at=_readable_time(page.made_at),
        curves=_charts(page.curves),
        masking=_charts([page.masking] if page.masking else []),
        headlines=[(score, _scale(score, page)) for score in headlines],
        other_scores=[score for score in page.scores if score not in headlines],
        score_names=_score_names(page),
        own={score.name: score for score in page.scores},
        clips=[clip_view(clip, ranked_by) for clip in ordered],
        showcase=showcase(ordered, ranked_by, down),
        ranked_by=ranked_by,
        best="asc" if down else "desc",
        splits=sorted({clip.split for clip in page.clips}),
        twins=[(pair, *(film_view(clip, FEW_FRAMES) for clip in (pair.first, pair.second))) for pair in page.twins],
        verdicts=Counter(pair.verdict for pair in page.twins).most_common(),
        problem_kinds=Counter(kind for _, kind, _, _ in page.problems).most_common(),
        stages=[(stage, cost / slowest) for stage, cost in zip(page.stages, seconds, strict=True)],
        spent=sum(cost for stage, cost in zip(page.stages, seconds, strict=True) if stage.state != "reused"),
        saved=sum(cost for stage, cost in zip(page.stages, seconds, strict=True) if stage.state == "reused"),
        reused=sum(stage.state == "reused" for stage in page.stages),
    )


def render_comparison(page: ComparisonPage) -> str:
    """Several runs side by side as one HTML document."""
    names = list(dict.fromkeys(name for run in page.runs for name in run.scores))
    return _render(
        "comparison.html.j2",
        page=page,
        names=names,
        spans={name: _span([run.scores[name] for run in page.runs if name in run.scores]) for name in names},
        curves=_charts(page.curves),
        made_at={run.label: _readable_time(run.made_at) for run in page.runs},
        clips=[(clip, film_view(clip)) for clip in page.clips],
    )


def _render(template: str, **values: Any) -> str:
    style, script = _source("pages.css"), _source("pages.js")
    # only this very script may run, even if some text had slipped through unescaped
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = {"style": style, "script": script, "script_hash": script_hash}
    html = _templates().get_template(template).render(**sources, **values)
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
    environment.filters.update(signed=_signed, tenths=_tenths, moment=_readable_time)
    environment.globals.update(
        clips_a_page=CLIPS_A_PAGE, references_shown=REFERENCES_SHOWN, problems_shown=PROBLEMS_SHOWN
    )
    return environment


def _source(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _charts(curves: Sequence[Curve]) -> list[str]:
    return [line_chart(curve.title, curve.x_label, curve.y_label, curve.series) for curve in curves]


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


def _tenths(value: float | None) -> str:
    """A score of one clip: 48.3; nobody wants to read 2.40e-10."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.1f}"


def _signed(value: float) -> str:
    return f"+{plain_number(value)}" if value > 0 else plain_number(value)


def _readable_time(iso: str) -> str:
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".rstrip()


def _score_names(page: ReportPage) -> list[str]:
    """Columns of the comparison with papers: our scores that they report too, in our order, then those that only they do."""
    theirs = list(dict.fromkeys(name for row in page.published for name in row.scores))
    ours = [score.name for score in page.scores if score.name in theirs]
    return ours + [name for name in theirs if name not in ours]


def _scale(score: Score, page: ReportPage) -> dict[str, Any] | None:
    """Where a score, its interval and the papers' figures lie on a line from 0: shares of its length."""
    if not math.isfinite(score.value) or score.value < 0:
        return None
    theirs = [(row.name, row.scores[score.name]) for row in page.published if score.name in row.scores]
    low, high = score.interval or (score.value, score.value)
    top = _round_top(max([high, score.value, *(value for _, value in theirs)]))
    ticks = [(name, value, value / top) for name, value in theirs]
    return {"top": top, "low": max(low, 0) / top, "high": high / top, "value": score.value / top, "ticks": ticks}


def _span(scores: Sequence[Score]) -> tuple[float, float]:
    """The range that shows all these scores with their intervals, a little wider."""
    edges = [edge for score in scores for edge in (score.value, *(score.interval or ())) if math.isfinite(edge)]
    low, high = (min(edges), max(edges)) if edges else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _round_top(value: float) -> float:
    """A round number that is not below the value: 1, 2, 5 times a power of ten, or 1.5 or 3."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return power * next((nice for nice in (1, 1.5, 2, 3, 5) if nice * power >= value), 10)
