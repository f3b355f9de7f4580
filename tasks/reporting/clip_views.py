"""What the templates need of a clip beyond its own fields: frames as data: URIs, bars of attention, places of boxes, order."""

from __future__ import annotations

import base64
import math
import re
import statistics
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Protocol

from PIL import Image, UnidentifiedImageError

from storage.errors import BadInput
from tasks.reporting.page import Clip, Region

SHOWCASE = 3  # clips each of the best, the most ordinary and the worst
FEW_FRAMES = 4  # of a clip that is shown in little room
_MIME_TYPES = {"JPEG": "image/jpeg", "WEBP": "image/webp", "PNG": "image/png"}


class Filmed(Protocol):
    """Whatever has an id and frames."""

    @property
    def video_id(self) -> str: ...
    @property
    def frames(self) -> Sequence[bytes]: ...
    @property
    def frame_times(self) -> Sequence[float]: ...


def film_view(clip: Filmed, most: int | None = None) -> dict[str, Any]:
    """The frames with their times, and their size; at most `most` of them, evenly chosen."""
    size, sources = _frame_sources(clip)
    times = [f"{time:.1f} s" if math.isfinite(time) else "" for time in clip.frame_times]
    frames = [(source, times[n] if n < len(times) else "") for n, source in enumerate(sources)]
    if most is not None and len(frames) > most:
        frames = [frames[(2 * n + 1) * len(frames) // (2 * most)] for n in range(most)]
    return {"clip": clip, "size": size, "frames": frames, "key": None, "bars": [], "timeline": False}


def clip_view(clip: Clip, ranked_by: str) -> dict[str, Any]:
    """Everything that the card of a clip shows."""
    view = film_view(clip) | {
        "rank": finite(clip.scores.get(ranked_by)),
        "key": _nearest(clip.frame_times, clip.key_time) if clip.key_time is not None else None,
        "caption_words": [],
        "other_words": [],
    }
    if clip.attention is None or not clip.attention[1]:
        return view
    words, weights = clip.attention
    # thousandths, so that thousands of clips stay small; bars are drawn relative to the tallest one of the clip
    rows = [[round(1000 * weight) if math.isfinite(weight) else 0 for weight in row] for row in weights]
    boxes = [_boxes(clip, regions) for regions in clip.regions]
    pairs = [
        (word, " ".join(map(str, row)), boxes[n] if n < len(boxes) else "")
        for n, (word, row) in enumerate(zip(words, rows, strict=False))
    ]
    spoken = clip.caption.split()
    follows = [word for word, _, _ in pairs[: len(spoken)]] == spoken  # a closing <eos> may come after the caption
    columns = max(map(len, rows))
    mean = [round(sum(row[n] for row in rows if n < len(row)) / len(rows)) for n in range(columns)]
    tallest = max((weight for row in rows for weight in row), default=0) or 1
    view["caption_words" if follows else "other_words"] = pairs[: len(spoken)] if follows else pairs
    view["bars"] = [(weight, weight / tallest) for weight in mean]
    view["tallest"] = tallest
    view["timeline"] = clip.timeline and columns >= len(clip.frames)
    return view


def _boxes(clip: Clip, regions: Sequence[Region]) -> str:
    """Frame, left, top, width and height in percent, share in percent: of every region, on the frame nearest in time."""
    told = []
    for region in regions:
        left, top, right, bottom = (round(100 * min(max(edge, 0.0), 1.0)) for edge in region.box)
        frame = _nearest(clip.frame_times, region.time)
        if frame is not None and right > left and bottom > top:
            told.append(f"{frame} {left} {top} {right - left} {bottom - top} {round(100 * region.weight)}")
    return ",".join(told)


def _nearest(times: Sequence[float], moment: float) -> int | None:
    known = [(abs(time - moment), n) for n, time in enumerate(times) if math.isfinite(time)]
    return min(known)[1] if known else None


def ranking_score(clips: Sequence[Clip]) -> str:
    """The score that best and worst are about: CIDEr where there is one, else the first score any clip has."""
    names = list(dict.fromkeys(name for clip in clips for name in clip.scores))
    return "CIDEr" if "CIDEr" in names else names[0] if names else ""


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def most_ordinary_first(clips: Sequence[Clip], ranked_by: str) -> list[Clip]:
    """Nearest to the median first, so that a report opens on what the captioner usually does, not on its best day."""
    values = [value for clip in clips if (value := finite(clip.scores.get(ranked_by))) is not None]
    median = statistics.median(values) if values else 0.0

    def order(clip: Clip) -> tuple[float, list[tuple[int, str]], str]:
        value = finite(clip.scores.get(ranked_by))
        distance = math.inf if value is None else abs(value - median)
        return (
            distance,
            [(int(n or 0), word) for word, n in re.findall(r"([^0-9]+)|([0-9]+)", clip.video_id)],
            clip.video_id,
        )

    return sorted(clips, key=order)


def showcase(ordinary: Sequence[Clip], ranked_by: str, ascending: bool) -> list[tuple[str, list[dict[str, Any]]]]:
    """A few of the best, the most ordinary and the worst; none if there are so few clips that they would be the same."""
    scored = [clip for clip in ordinary if finite(clip.scores.get(ranked_by)) is not None]
    if len(scored) < 3 * SHOWCASE:
        return []
    ranked = sorted(scored, key=lambda clip: clip.scores[ranked_by], reverse=not ascending)
    chosen = (("Best", ranked[:SHOWCASE]), ("Most ordinary", scored[:SHOWCASE]), ("Worst", ranked[-SHOWCASE:][::-1]))
    return [
        (title, [film_view(clip, FEW_FRAMES + 1) | {"rank": clip.scores[ranked_by]} for clip in clips])
        for title, clips in chosen
    ]


def _frame_sources(clip: Filmed) -> tuple[tuple[int, int], list[str]]:
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
