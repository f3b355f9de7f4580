"""The process that captions: one model in memory, one upload at a time, a line of JSON for each.

It is not the server's process, so that whatever an upload causes (a crash, no memory, no end) ends here; the server starts
another one."""

import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from flows.caption import VideoCaptioner
from storage.errors import BadMedia, LongtakeError, UsageError
from tasks.inference.thumbnails import thumbnails

_MOST_FRAMES = 24
_FRAMES = 12


def main(workspace: str, run: str | None) -> None:
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
    send(metadata | {"trained_at": record.finished_at})
    for line in sys.stdin:
        send(answer(captioner, **json.loads(line)))


def answer(captioner: VideoCaptioner, path: str, n_best: int, frames: bool) -> dict[str, Any]:
    """The answer to one upload, or {"refused": reason}."""
    began = time.monotonic()
    try:
        found = captioner.caption([path], n_best=n_best, keep_tables=False)
        if found.problems:
            return {"refused": found.problems[0].reason}
        (clip,) = found.clips
        wanted = len(clip.times) if clip.times and len(clip.times) <= _MOST_FRAMES else _FRAMES
        images = thumbnails(Path(path), wanted, captioner.trained.runtime) if frames else []
    except BadMedia as bad:
        return {"refused": bad.reason.replace(path, "the file")}
    except LongtakeError as error:
        return {"failed": str(error)}
    return {
        "caption": clip.caption.caption,
        "n_best": [{"caption": row.caption, "log_prob": row.log_prob, "attention": row.attention} for row in clip.best],
        "times": clip.times,
        "duration": clip.segment[1],
        "frames": [{"time": image.time, "image": _data_url(image.jpeg)} for image in images],
        "seconds": round(time.monotonic() - began, 3),
    }


def _data_url(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
