"""The process that captions: one model in memory, one upload at a time, a line of JSON for each.

It is not the server's process, so that whatever an upload causes (a crash, no memory, no end) ends here; the server starts
another one."""

import base64
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.caption import VideoCaptioner
from flows.cli.caption_lines import lines_of
from flows.serving.sample import clip_of_test_split
from flows.serving.schemas import TEXT_FORMATS
from storage.errors import BadMedia, LongtakeError, UsageError
from storage.media.shots import ShotOptions
from storage.text.caption_writers import RENDERERS
from tasks.inference.thumbnails import Thumbnail, thumbnails
from tasks.inference.user_files import ClipCaption

_MOST_FRAMES = 24
_FRAMES = 12
_MOST_IMAGES = 240  # of an answer, about 2 MB


def main(workspace: str, run: str | None, own_sample: bool) -> None:
    """Report that the captioner is loaded, or why not; then answer line by line until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not look like an answer

    def send(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        captioner = VideoCaptioner.open(workspace, run)
    except LongtakeError as error:
        send({"error": str(error), "usage": isinstance(error, UsageError)})
        return
    record = captioner.run
    metadata = {"run": record.id, "recipe": record.recipe_name, "dataset": record.dataset}
    send(metadata | {"trained_at": record.finished_at, "sample": clip_of_test_split(captioner) if own_sample else None})
    for line in sys.stdin:
        send(answer(captioner, **json.loads(line)))


def answer(captioner: VideoCaptioner, path: str, name: str, n_best: int, frames: bool, shots: bool) -> dict[str, Any]:
    """The answer to one upload, or {"refused": reason}. `name` is what the visitor calls the file."""
    began = time.monotonic()
    try:
        found = captioner.caption([path], ShotOptions() if shots else None, n_best, keep_tables=False)
        problems = [problem.reason.replace(path, "the file") for problem in found.problems]
        if not found.clips:
            return {"refused": problems[0]}
        parts = [(clip.segment, _frame_count(clip, len(found.clips))) for clip in found.clips]
        images = thumbnails(Path(path), parts, captioner.trained.runtime) if frames else [[] for _ in parts]
    except BadMedia as bad:
        return {"refused": bad.reason.replace(path, "the file")}
    except LongtakeError as error:
        return {"failed": str(error)}
    lines = [replace(line, file=name) for line in lines_of(found, n_best)]
    return {
        "file": name,
        "duration": max(clip.segment[1] for clip in found.clips),
        "clips": [_clip(clip, shown) for clip, shown in zip(found.clips, images, strict=True)],
        "problems": problems,
        "texts": {format: RENDERERS[format](lines) for format in TEXT_FORMATS},
        "seconds": round(time.monotonic() - began, 3),
    }


def _frame_count(clip: ClipCaption, clips: int) -> int:
    """One for each position of attention where they are few; fewer where there are many clips."""
    wanted = len(clip.times) if clip.times and len(clip.times) <= _MOST_FRAMES else _FRAMES
    return max(1, min(wanted, _MOST_IMAGES // clips))


def _clip(clip: ClipCaption, images: Sequence[Thumbnail]) -> dict[str, Any]:
    return {
        "start": clip.segment[0],
        "end": clip.segment[1],
        "caption": clip.caption.caption,
        "n_best": [{"caption": row.caption, "log_prob": row.log_prob, "attention": row.attention} for row in clip.best],
        "times": clip.times,
        "frames": [{"time": image.time, "image": _data_url(image.jpeg)} for image in images],
    }


def _data_url(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
