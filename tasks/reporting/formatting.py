"""Numbers, durations and times as people write them, for charts and templates."""

import math
from datetime import datetime


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def plain_number(value: float | None) -> str:
    """About three digits: 0.493, 49.3, 1,204. None and non-finite numbers give a dash."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1e7 or 0 < size < 5e-4:
        return f"{value:.2e}"
    decimals = 0 if size >= 100 and float(value).is_integer() else 3 if size < 1 else 2 if size < 10 else 1
    return f"{value:,.{decimals}f}".replace("-", "−")


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


def readable_time(iso: str) -> str:
    try:
        moment = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".rstrip()


def _percent(share: float) -> int:
    return round(100 * min(max(share, 0.0), 1.0)) if math.isfinite(share) else 0


def _tenths(value: float | None) -> str:
    """A score on the scale of tables: 48.3; nobody wants to read 2.40e-10."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.1f}"


FILTERS = {
    "number": plain_number,
    "count": lambda number: "–" if number is None else f"{number:,}",
    "percent": _percent,
    "duration": readable_duration,
    "signed": lambda value: f"{round(value, 1) + 0.0:+,.1f}".replace("+0.0", "0.0").replace("-", "−"),
    "tenths": _tenths,
    "moment": readable_time,
}
"""name in templates -> function"""
