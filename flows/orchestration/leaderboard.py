"""The leaderboard of a data set as Markdown: a chart of the scores run by run, and the runs by their CIDEr, the best first."""

import re
from base64 import b64encode
from collections.abc import Callable, Sequence

from storage.files.sanitising import visible
from storage.runs import RunRecord

_ROWS, _POINTS = 50, 100
_SCORES = ("CIDEr", "METEOR", "BLEU-4")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 220, 48, 16, 24, 28
_GREY, _LINE, _NEWEST = "#8a8f98", "#4c8dff", "#f2a33c"  # to be read on dark and on light pages


def leaderboard(runs: Sequence[RunRecord], newest: RunRecord, link: Callable[[RunRecord], str]) -> str:
    """`runs` are those of one data set, newest first, with `newest` among them; `link` gives the address of a report or nothing.
    Of the runs of a recipe with the very same results, one is listed."""
    different: dict[object, RunRecord] = {}
    for run in (newest, *runs):
        if "CIDEr" in run.scores:
            different.setdefault((run.recipe_name, run.stages.get("evaluate", run.id)), run)
    scored = sorted(different.values(), key=lambda run: (-run.scores["CIDEr"], run.id))
    lines = [f"![CIDEr, run by run]({_chart(sorted(scored, key=lambda run: run.id)[-_POINTS:], newest)})", ""]
    shown = [score for score in _SCORES if any(score in run.scores for run in scored)]
    lines += ["| | run | " + " | ".join(shown) + " | name | settings | finished (UTC) | recipe | note |"]
    lines += ["|--:|---|" + "--:|" * len(shown) + "---|" * 5]
    lines += [_row(place, run, shown, run.id == newest.id, link(run)) for place, run in enumerate(scored[:_ROWS], 1)]
    if len(scored) > _ROWS:
        lines += ["", f"{len(scored) - _ROWS} more, with less CIDEr: `longtake status` lists the newest."]
    if failed := sum(run.state == "failed" for run in runs):
        lines += ["", f"Not listed: {failed} that failed."]
    return "\n".join(lines)


def _row(place: int, run: RunRecord, shown: Sequence[str], is_newest: bool, link: str) -> str:
    name = f"[{run.short_id}]({link})" if link else run.short_id
    scores = [f"{100 * run.scores[score]:.1f}" if score in run.scores else "" for score in shown]
    texts = (run.name, " ".join(run.settings), run.finished_at[:16].replace("T", " "), run.recipe_name, run.note)
    cells = (str(place), f"{name} ← newest" if is_newest else name, *scores, *map(plain_markdown, texts))
    return f"| {' | '.join(cells)} |"


def plain_markdown(text: str) -> str:
    """Untrusted text as one line that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&:.@-])", r"\\\1", " ".join(visible(text).split()))


def _chart(runs: Sequence[RunRecord], newest: RunRecord) -> str:
    """CIDEr of every run in the order of time, and the best so far as a line, as the address of an SVG picture."""
    values = [100 * run.scores["CIDEr"] for run in runs]
    top = max(*values, 1.0) * 1.1
    places = [
        (_LEFT + (n + 0.5) * (_WIDTH - _LEFT - _RIGHT) / len(values), _HEIGHT - _BOTTOM - v / top * (_HEIGHT - _TOP - _BOTTOM))
        for n, v in enumerate(values)
    ]
    floor = _HEIGHT - _BOTTOM
    parts = [f'<path d="M{_LEFT} {_TOP}V{floor}H{_WIDTH - _RIGHT}" fill="none" stroke="{_GREY}"/>']
    parts += [
        _text(_LEFT - 6, floor, "0", "end"),
        _text(_LEFT, _TOP - 8, "CIDEr of each run; the line is the best so far", "start"),
    ]
    parts += [_text(_LEFT, _HEIGHT - 8, "oldest", "start"), _text(_WIDTH - _RIGHT, _HEIGHT - 8, "newest", "end")]
    best, line = places[0][1], f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for x, y in places[1:]:
        best = min(best, y)
        line += f"H{x:.1f}V{best:.1f}"
    parts.append(f'<path d="{line}" fill="none" stroke="{_LINE}" stroke-opacity=".6"/>')
    for (x, y), run, value in zip(places, runs, values, strict=True):
        latest = run.id == newest.id
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if latest else 4}" fill="{_NEWEST if latest else _LINE}"/>')
        if latest or value == max(values):
            parts.append(_text(x, y - 9, f"{value:.1f}", "middle"))
    style = f'font-family="sans-serif" font-size="12" fill="{_GREY}"'
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" {style}>{"".join(parts)}</svg>'
    return f"data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
