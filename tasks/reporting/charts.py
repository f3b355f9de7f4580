"""Line charts as inline SVG, so that a report needs no library and no network.

A chart survives what training produces: NaN and infinity break the line, one point is a dot, a constant series gets room above
and below, a hundred thousand steps are thinned without losing their spikes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tasks.reporting.formatting import plain_number

Point = tuple[float, float]

WIDTH, HEIGHT = 480, 264
LEFT, RIGHT, TOP, BOTTOM = 60, 458, 28, 222  # the plot inside the picture; the rest is for labels
COLOURS = 8
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # distinguishable in print and by the colour-blind too
MARKED_POINTS = 40  # up to here each point gets a dot with its values as a tooltip
LARGEST = 1e300  # beyond it a difference of two numbers overflows; treated like infinity
SMALLEST = 1e-300  # below it a difference cannot be divided into ticks


def line_chart(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]]) -> str:
    """A <figure> with its caption, the chart and a legend that says in words where each series ends."""
    tidy = {name: sorted(_drawable(points), key=lambda point: point[0]) for name, points in series.items()}
    finite = [point for points in tidy.values() for point in points if math.isfinite(point[1])]
    head = f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
    if not finite:
        return f'{head}<p class="quiet">No points were recorded.</p></figure>'

    axes = _fit_axes(finite)
    body, legend, described = _draw_axes(axes, x_label, y_label), "", ""
    for number, (name, points) in enumerate(tidy.items()):
        body += _series(axes, number, name, points)
        words = _in_words(points)
        described += f". {name}: {words}"
        swatch = f'<svg class="swatch" viewBox="0 0 24 8" aria-hidden="true">{_line(number, "M0 4H24")}</svg>'
        legend += f"<li>{swatch}<b>{escape(name)}</b> <span>{escape(words)}</span></li>"
    label = escape(title + described)
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{body}</svg>'
    return f'{head}{picture}<ul class="legend">{legend}</ul></figure>'


@dataclass(frozen=True)
class _Axes:
    """The ranges that a chart shows and the distance of their ticks."""

    x: tuple[float, float]
    y: tuple[float, float]
    x_step: float
    y_step: float

    def to_svg(self, x: float, y: float) -> tuple[str, str]:
        """A point in SVG coordinates."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return f"{LEFT + across * (RIGHT - LEFT):.1f}", f"{BOTTOM - up * (BOTTOM - TOP):.1f}"


def _fit_axes(finite: list[Point]) -> _Axes:
    x = _room(min(x for x, _ in finite), max(x for x, _ in finite))
    low, high = _room(min(y for _, y in finite), max(y for _, y in finite))
    x_step, y_step = _step(*x, 6), _step(low, high, 5)
    if all(x.is_integer() for x, _ in finite):  # half an epoch is not a tick
        x_step = max(x_step, 1.0)
    return _Axes(x, (math.floor(low / y_step) * y_step, math.ceil(high / y_step) * y_step), x_step, y_step)


def _drawable(points: Sequence[Point]) -> list[Point]:
    """The points with a finite x; a y that cannot be drawn becomes NaN, a gap."""
    usable = [(float(x), float(y)) for x, y in points if math.isfinite(x) and abs(x) < LARGEST]
    return [(x, y if abs(y) < LARGEST else math.nan) for x, y in usable]


def _room(low: float, high: float) -> tuple[float, float]:
    """The range itself, or some room around a single value (also around two that differ by rounding only)."""
    size = max(abs(low), abs(high))
    if high - low > max(1e-9 * size, SMALLEST):
        return low, high
    pad = size * 0.1 if size > SMALLEST else 1.0
    return low - pad, high + pad


def _step(low: float, high: float, wanted: int) -> float:
    """A round distance (1, 2 or 5 times a power of ten) that gives about `wanted` ticks."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next((nice for nice in (1, 2, 5) if nice * power >= rough), 10)


def _ticks(low: float, high: float, step: float) -> list[tuple[float, str]]:
    """The values at which an axis is marked, with their texts."""
    slack = 1e-6  # so that a bound which is a tick stays one after rounding
    numbers = range(math.ceil(low / step - slack), math.floor(high / step + slack) + 1)
    return [(n * step, _tick_text(n * step, step)) for n in numbers]


def _tick_text(value: float, step: float) -> str:
    """As many decimals as the step needs; 3.4e-4 where that would not fit beside the axis."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    text = f"{value:,.{decimals}f}"
    if len(text) > 6:
        digits, exponent = f"{value:.2e}".split("e")
        text = f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}" if value else "0"
    return text.replace("-", "−")


def _draw_axes(axes: _Axes, x_label: str, y_label: str) -> str:
    """Grid lines with their numbers and the names of both axes."""
    drawn = ""
    for value, text in _ticks(*axes.y, axes.y_step):
        _, y = axes.to_svg(axes.x[0], value)
        drawn += f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>'
        drawn += f'<text x="{LEFT - 7}" y="{y}" dy=".35em" text-anchor="end">{text}</text>'
    for value, text in _ticks(*axes.x, axes.x_step):
        x, _ = axes.to_svg(value, axes.y[0])
        drawn += f'<path class="grid" d="M{x} {BOTTOM}v4"/>'
        drawn += f'<text x="{x}" y="{BOTTOM + 17}" text-anchor="middle">{text}</text>'
    drawn += f'<text class="axis" x="0" y="13">{escape(y_label)}</text>'
    return drawn + f'<text class="axis" x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>'


def _line(number: int, path: str) -> str:
    """A path in the look of the `number`-th series."""
    dashed = f' stroke-dasharray="{dash}"' if (dash := DASHES[number % len(DASHES)]) else ""
    return f'<path class="series s{number % COLOURS}"{dashed} d="{path}"/>'


def _series(axes: _Axes, number: int, name: str, points: list[Point]) -> str:
    """One line per unbroken run of points; a single point is a dot."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    path = "".join("M" + "L".join(" ".join(axes.to_svg(*p)) for p in _thinned(run)) for run in runs if len(run) > 1)
    drawn = _line(number, path) if path else ""
    all_marked = sum(map(len, runs)) <= MARKED_POINTS
    for x, y in (point for run in runs if all_marked or len(run) == 1 for point in run):
        left, top = axes.to_svg(x, y)
        tip = escape(f"{name}: {plain_number(y)} at {plain_number(x)}")
        drawn += f'<circle class="dot s{number % COLOURS}" cx="{left}" cy="{top}" r="3"><title>{tip}</title></circle>'
    return drawn


def _thinned(points: list[Point]) -> list[Point]:
    """At most four points for each pixel column: first, lowest, highest, last. Spikes stay."""
    columns = RIGHT - LEFT
    if len(points) <= 2 * columns:
        return points
    kept: list[Point] = []
    for column in range(columns):
        bucket = points[column * len(points) // columns : (column + 1) * len(points) // columns]
        ends = {bucket[0], bucket[-1], min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        kept.extend(sorted(ends))
    return kept


def _in_words(points: list[Point]) -> str:
    finite = [point for point in points if math.isfinite(point[1])]
    if not finite:
        return "no finite value"
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    words = f"ends at {plain_number(finite[-1][1])}"
    if high > low:
        words += f", between {plain_number(low)} and {plain_number(high)}"
    gaps = len(points) - len(finite)
    return words + (f", {gaps} not finite" if gaps else "")
