"""Self-contained HTML files of the pages: the report of a run, and the comparison of several.

Layout lives in templates/, what the page of 'longtake serve' shares in look/; all end up inside the one file, which sends no
request anywhere (its own Content-Security-Policy forbids it). The first page of clips stands in the document, so that it can be
read without JavaScript and before a large file has loaded; the others wait as text in data blocks, <script type="text/template">,
until they are shown. 3,000 clips in 57 MB then open in 0.9 s of CPU time; as <template> elements, which are parsed, in 1.8 s."""

import base64
import hashlib
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.reporting.attention_strip import attention_strip, frame_strip
from tasks.reporting.charts import line_chart
from tasks.reporting.formatting import FILTERS, finite
from tasks.reporting.pages import ComparisonPage, Curve, ReportClip, ReportPage, Score

CLIPS_PER_PAGE = 24
REFERENCES_SHOWN = 3
PROBLEMS_SHOWN = 50
HEADLINES = ("CIDEr", "BLEU-4", "METEOR", "ROUGE-L", "SPICE")
_SHOWCASE = 3  # clips each of the best, the most ordinary and the worst
_FEW_FRAMES = 4  # of a clip that is shown in little room
_TEMPLATES = Path(__file__).parent / "templates"
_LOOK = Path(__file__).parent / "look"
_STYLES = (_LOOK / "look.css", _TEMPLATES / "pages.css")
_SCRIPTS = (_LOOK / "theme.js", _LOOK / "attention_strip.js", _TEMPLATES / "pages.js")


def render_report(page: ReportPage) -> str:
    """The page of one run as one HTML document. The same page gives the same text."""
    # the score that best and worst are about: CIDEr where there is one, else the first score any clip has
    names = list(dict.fromkeys(name for clip in page.clips for name in clip.scores))
    ranked_by = "CIDEr" if "CIDEr" in names else next(iter(names), "")
    ordered = _most_ordinary_first(page.clips, ranked_by)
    ascending = any(score.name == ranked_by and not score.higher_is_better for score in page.scores)
    seconds = [finite(stage.seconds) or 0.0 for stage in page.stages]
    slowest = max(seconds, default=0.0) or 1.0
    saved = [cost for stage, cost in zip(page.stages, seconds, strict=True) if stage.state == "reused"]
    headlines = [score for score in page.scores if score.name in HEADLINES] or list(page.scores)
    return _render(
        "report.html.j2",
        page=page,
        curves=_charts(page.curves),
        masking=_charts(page.masking),
        headlines=[(score, _scale(score, page)) for score in headlines],
        other_scores=[score for score in page.scores if score not in headlines],
        score_names=_score_names(page),
        own={score.name: score for score in page.scores},
        clips=[attention_strip(clip) | {"rank": finite(clip.scores.get(ranked_by))} for clip in ordered],
        showcase=_showcase(ordered, ranked_by, ascending),
        ranked_by=ranked_by,
        best="asc" if ascending else "desc",
        splits=sorted({clip.split for clip in page.clips}),
        near_duplicates=[
            (pair, [frame_strip(clip, _FEW_FRAMES) for clip in (pair.first, pair.second)]) for pair in page.near_duplicates
        ],
        verdicts=Counter(pair.verdict for pair in page.near_duplicates).most_common(),
        problem_kinds=Counter(kind for _, kind, _, _ in page.problems).most_common(),
        stages=[(stage, cost / slowest) for stage, cost in zip(page.stages, seconds, strict=True)],
        spent=sum(seconds) - sum(saved),
        saved=sum(saved),
        reused=len(saved),
    )


def render_comparison(page: ComparisonPage) -> str:
    """Several runs side by side as one HTML document."""
    names = list(dict.fromkeys(name for run in page.runs for name in run.scores))
    return _render(
        "comparison.html.j2",
        page=page,
        names=names,
        spans={name: _span([run.scores[name] for run in page.runs if name in run.scores]) for name in names},
        other_metrics=list(dict.fromkeys(name for run in page.runs for name in run.other_metrics)),
        shared_settings=[(name, values) for name, values in page.settings if None not in values],
        other_settings=[(name, values) for name, values in page.settings if None in values],
        curves=_charts(page.curves),
        clips=[(clip, frame_strip(clip)) for clip in page.clips],
    )


def _render(template: str, **values: Any) -> str:
    style, script = ("".join(path.read_text(encoding="utf-8") for path in paths) for paths in (_STYLES, _SCRIPTS))
    # only this very script may run, even if some text had slipped through unescaped
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = _environment().get_template(template).render(style=style, script=script, script_hash=script_hash, **values)
    # a file name that is not Unicode arrives as lone surrogates, which no file in UTF-8 can hold
    return html.encode("utf-8", "replace").decode("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(FILTERS)
    environment.globals.update(clips_per_page=CLIPS_PER_PAGE, references_shown=REFERENCES_SHOWN, problems_shown=PROBLEMS_SHOWN)
    return environment


def _charts(curves: Sequence[Curve]) -> list[str]:
    return [line_chart(curve.title, curve.x_label, curve.y_label, curve.series) for curve in curves]


def _most_ordinary_first(clips: Sequence[ReportClip], ranked_by: str) -> list[ReportClip]:
    """Nearest to the median first, so that a report opens on what the captioner usually does, not on its best day."""
    scores = {id(clip): finite(clip.scores.get(ranked_by)) for clip in clips}
    known = [score for score in scores.values() if score is not None]
    median = statistics.median(known) if known else 0.0

    def order(clip: ReportClip) -> tuple[float, list[tuple[int, str]], str]:
        score = scores[id(clip)]
        numbered = [(int(n or 0), word) for word, n in re.findall(r"([^0-9]+)|([0-9]+)", clip.video_id)]
        return math.inf if score is None else abs(score - median), numbered, clip.video_id

    return sorted(clips, key=order)


def _showcase(ordered: Sequence[ReportClip], ranked_by: str, ascending: bool) -> list[tuple[str, list[dict[str, Any]]]]:
    """A few of the best, the most ordinary and the worst; none if there are so few clips that they would be the same."""
    scored = [clip for clip in ordered if finite(clip.scores.get(ranked_by)) is not None]
    if len(scored) < 3 * _SHOWCASE:
        return []
    ranked = sorted(scored, key=lambda clip: clip.scores[ranked_by], reverse=not ascending)
    chosen = {"Best": ranked[:_SHOWCASE], "Most ordinary": scored[:_SHOWCASE], "Worst": ranked[-_SHOWCASE:][::-1]}
    return [
        (title, [frame_strip(clip, _FEW_FRAMES + 1) | {"rank": clip.scores[ranked_by]} for clip in clips])
        for title, clips in chosen.items()
    ]


def _score_names(page: ReportPage) -> list[str]:
    """Columns of the comparison with papers: our scores that they report too, in our order, then those that only they do."""
    theirs = list(dict.fromkeys(name for row in page.published for name in row.scores))
    ours = [score.name for score in page.scores if score.name in theirs]
    return ours + [name for name in theirs if name not in ours]


def _scale(score: Score, page: ReportPage) -> dict[str, Any] | None:
    """Where a score, its interval and the papers' scores lie on a line from 0: shares of its length."""
    if not math.isfinite(score.value) or score.value < 0:
        return None
    theirs = [(row.name, row.scores[score.name]) for row in page.published if score.name in row.scores]
    low, high = score.interval or (score.value, score.value)
    top = _round_up(max([1.0, high, score.value, *(value for _, value in theirs)]))
    ticks = [(name, value, value / top) for name, value in theirs]
    return {"low": max(low, 0) / top, "high": high / top, "value": score.value / top, "ticks": ticks}


def _span(scores: Sequence[Score]) -> tuple[float, float]:
    """The range that shows all these scores with their intervals, a little wider."""
    edges = [edge for score in scores for edge in (score.value, *(score.interval or ())) if math.isfinite(edge)]
    low, high = (min(edges), max(edges)) if edges else (0.0, 1.0)
    room = max(0.06 * (high - low), 0.5)
    return low - room, high + room


def _round_up(value: float) -> float:
    """A round number that is not below the value: 1, 2, 5 times a power of ten, or 1.5 or 3."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next((nice for nice in (1, 1.5, 2, 3, 5) if nice * power >= value), 10)
