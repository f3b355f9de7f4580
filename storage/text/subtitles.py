"""Captions with their times as subtitle files: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SPACES = re.compile(r"\s+")
_SHORTEST_MS = 1  # a cue must end after it begins


@dataclass(frozen=True)
class Cue:
    """What is said from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str


def render_srt(cues: Iterable[Cue]) -> str:
    """SubRip: numbered cues, milliseconds after a comma. It has no escapes; one line of text is always plain text but for
    angle brackets, which players take for tags: they become typographic ones."""
    blocks = []
    for number, (start, end, text) in enumerate(_normalised(cues), 1):
        escaped = text.replace("<", "‹").replace(">", "›")
        blocks.append(f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{escaped}\n")
    return "\n".join(blocks)


def render_vtt(cues: Iterable[Cue]) -> str:
    """WebVTT: text with &, < and > escaped."""
    blocks = ["WEBVTT\n"]
    for start, end, text in _normalised(cues):
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{_clock(start, '.')} --> {_clock(end, '.')}\n{escaped}\n")
    return "\n".join(blocks)


def _normalised(cues: Iterable[Cue]) -> Iterable[tuple[int, int, str]]:
    """Cues in whole milliseconds and on one line each; one without words is left out, as no player would show it."""
    for cue in cues:
        text = _SPACES.sub(" ", cue.text).strip()
        if text:
            start = max(0, round(1000 * cue.start))
            yield start, max(start + _SHORTEST_MS, round(1000 * cue.end)), text


def _clock(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"
