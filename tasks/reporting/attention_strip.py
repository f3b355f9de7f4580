"""The attention strip of a clip: its frames side by side, a bar per attention position below them, boxes over them. These are
the values that templates/attention_strip.html.j2 draws; attention_strip.js changes them when a word is pointed at."""

import base64
import math
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from PIL import Image, UnidentifiedImageError

from storage.errors import BadInput
from tasks.reporting.pages import ComparedClip, Region, ReportClip

_MIME_TYPES = {"JPEG": "image/jpeg", "WEBP": "image/webp", "PNG": "image/png"}


def frame_strip(clip: ReportClip | ComparedClip, most: int | None = None) -> dict[str, Any]:
    """The strip without attention: frames as data: URIs with their times; at most `most` of them, evenly chosen."""
    size, sources = _data_uris(clip)
    times = [f"{time:.1f} s" if math.isfinite(time) else "" for time in clip.frame_times] + [""] * len(sources)
    frames = list(zip(sources, times, strict=False))
    if most is not None and len(frames) > most:
        frames = [frames[(2 * n + 1) * len(frames) // (2 * most)] for n in range(most)]
    return {"clip": clip, "size": size, "frames": frames, "key": None, "bars": [], "timeline": False}


def attention_strip(clip: ReportClip) -> dict[str, Any]:
    """The strip with its key frame, its bars (the mean over all words), and the weights and boxes of each word."""
    strip = frame_strip(clip) | {"caption_words": [], "other_words": []}
    strip["key"] = _nearest_frame(clip, clip.key_time) if clip.key_time is not None else None
    if clip.attention is None or not clip.attention[1]:
        return strip
    words, weights = clip.attention
    # thousandths, so that thousands of clips stay small; bars are drawn relative to the tallest one of the clip
    rows = [[round(1000 * weight) if math.isfinite(weight) else 0 for weight in row] for row in weights]
    boxes = [_boxes(clip, regions) for regions in clip.regions] + [""] * len(words)
    drawn = [(word, " ".join(map(str, row)), box) for word, row, box in zip(words, rows, boxes, strict=False)]
    caption = clip.caption.split()
    follows = [word for word, _, _ in drawn[: len(caption)]] == caption  # a closing <eos> may come after the caption
    columns = max(map(len, rows))
    mean = [round(sum(row[n] for row in rows if n < len(row)) / len(rows)) for n in range(columns)]
    tallest = max((weight for row in rows for weight in row), default=0) or 1
    strip["caption_words" if follows else "other_words"] = drawn[: len(caption)] if follows else drawn
    strip["bars"] = [(weight, weight / tallest) for weight in mean]
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
