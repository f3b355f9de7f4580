"""The attention strip of a clip: its frames side by side, a bar per attention position below them, boxes over them. These are
the values that templates/attention_strip.html.j2 draws; look/attention_strip.js changes them when a word is pointed at."""

import base64
import math
import string
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from storage.errors import BadInput
from tasks.reporting.pages import ComparedClip, Region, ReportClip

_LEVELS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
_MIME_TYPES = {"JPEG": "image/jpeg", "WEBP": "image/webp", "PNG": "image/png"}


def frame_strip(clip: ReportClip | ComparedClip, most: int | None = None) -> dict[str, Any]:
    """The strip without attention: frames as data: URIs with their times; at most `most` of them, evenly chosen."""
    size, sources = _data_uris(clip)
    times = [f"{time:.1f} s" if math.isfinite(time) else "" for time in clip.frame_times] + [""] * len(sources)
    frames = list(zip(sources, times, strict=False))
    if most is not None and len(frames) > most:
        frames = [frames[(2 * n + 1) * len(frames) // (2 * most)] for n in range(most)]
    return {"clip": clip, "size": size, "frames": frames, "key": None, "bars": [], "heat": None, "timeline": False}


def attention_strip(clip: ReportClip) -> dict[str, Any]:
    """The strip with its key frame, its bars (the mean over all words), and the weights and boxes of each word."""
    strip = frame_strip(clip) | {"caption_words": [], "other_words": []}
    strip["key"] = _nearest_frame(clip, clip.key_time) if clip.key_time is not None else None
    if clip.attention is None or not clip.attention[1]:
        return strip
    words, weights = clip.attention
    strip["heat"] = _seen_part(clip, strip["size"]) if clip.cells is not None and clip.frames else None
    # thousandths, so that thousands of clips stay small; bars are drawn relative to the tallest one of the clip
    rows = [[round(1000 * weight) if math.isfinite(weight) else 0 for weight in row] for row in weights]
    boxes = [_boxes(clip, regions) for regions in clip.regions] + [""] * len(words)
    heat = _heat(clip) + [""] * len(words)
    joined = [" ".join(map(str, row)) for row in rows]
    drawn = list(zip(words, joined, boxes, heat, strict=False))
    caption = clip.caption.split()
    follows = [word for word, *_ in drawn[: len(caption)]] == caption  # a closing <eos> may come after the caption
    columns = max(map(len, rows))
    mean = [round(sum(row[n] for row in rows if n < len(row)) / len(rows)) for n in range(columns)]
    tallest = max((weight for row in rows for weight in row), default=0) or 1
    strip["caption_words" if follows else "other_words"] = drawn[: len(caption)] if follows else drawn
    strip["bars"] = [] if strip["heat"] and columns == 1 else [(weight, weight / tallest) for weight in mean]
    strip["tallest"] = tallest
    strip["timeline"] = clip.timeline and columns >= len(clip.frames)
    return strip


def _boxes(clip: ReportClip, regions: Sequence[Region]) -> str:
    """Frame, left, top, width, height and weight in percent: of every region, on the frame nearest in time."""
    boxes = []
    for region in regions:
        left, top, right, bottom = (round(100 * min(max(edge, 0.0), 1.0)) for edge in region.box)
        frame = _nearest_frame(clip, region.time)
        if frame is not None and right > left and bottom > top:
            boxes.append(f"{frame} {left} {top} {right - left} {bottom - top} {round(100 * region.weight)}")
    return ",".join(boxes)


def _heat(clip: ReportClip) -> list[str]:
    """For each word the attention over the cells of every shown frame, frames separated by commas, a character per cell; a frame
    of the grid is added to the shown frame that is nearest in time. The brightest cell of a word is always "/"."""
    if clip.cells is None:
        return []
    shown = [_nearest_frame(clip, time) for time in clip.cells.times]
    drawn = []
    for word in clip.cells.weights:
        frames = np.zeros((len(clip.frames), word.shape[1]))
        for frame, weights in zip(shown, word, strict=False):
            if frame is not None:
                frames[frame] += np.nan_to_num(weights)
        levels = np.rint(frames / (frames.max(initial=0) or 1) * (len(_LEVELS) - 1)).astype(int)
        drawn.append(",".join("".join(_LEVELS[level] for level in row) if row.any() else "" for row in levels))
    return drawn


def _seen_part(clip: ReportClip, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Left, top, width and height of the part of a frame that the grid covers, in percent."""
    seen = clip.cells.seen if clip.cells is not None else None
    if seen is None:
        return 0, 0, 100, 100
    width, height = (min(1.0, part * min(size) / side) for part, side in zip(seen, size, strict=True))
    return 50 * (1 - width), 50 * (1 - height), 100 * width, 100 * height


def _nearest_frame(clip: ReportClip, seconds: float) -> int | None:
    distances = [(abs(time - seconds), n) for n, time in enumerate(clip.frame_times) if math.isfinite(time)]
    return min(distances)[1] if distances else None


def _data_uris(clip: ReportClip | ComparedClip) -> tuple[tuple[int, int], list[str]]:
    """The size of a frame and each frame as a data: URI."""
    size, sources = (0, 0), []
    for n, frame in enumerate(clip.frames):
        try:
            with Image.open(BytesIO(frame), formats=tuple(_MIME_TYPES)) as image:
                size = size if n else image.size
                mime = _MIME_TYPES[str(image.format)]
        except (UnidentifiedImageError, OSError) as error:
            found = f"is no JPEG, WebP or PNG image ({len(frame)} bytes: {frame[:8]!r})"
            raise BadInput(f"frame {n} of clip '{clip.video_id}' {found}; a report wants encoded thumbnails") from error
        sources.append(f"data:{mime};base64,{base64.b64encode(frame).decode()}")
    return size, sources
