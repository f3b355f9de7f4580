"""The results of a run: captions as JSON lines, scores as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import StorageError

FEW = 30
"""below so many videos, scores have no interval and differences no significance that means anything"""


@dataclass(frozen=True)
class CaptionRow:
    """One line of captions.jsonl: the best caption of a video. attention: words x rows of the features, or None."""

    video_id: str
    caption: str
    log_prob: float
    attention: list[list[float]] | None = None


def read_captions(folder: Path) -> list[CaptionRow]:
    path = folder / "captions.jsonl"
    try:
        return [CaptionRow(**row) for row in read_jsonl(path)]
    except TypeError as error:
        raise StorageError(f"cannot read {path}: {error}; run with '--force caption'") from error


def read_scores(folder: Path) -> dict[str, Any]:
    """scores.json of an evaluation. A score that is null there, because it was not computed, is left out of "corpus";
    "not_computed" has the reason. So are the intervals of few videos."""
    path = folder / "scores.json"
    try:
        scores = json.loads(path.read_bytes())
        known = {name: value for name, value in scores["corpus"].items() if value is not None}
        if scores["videos"] < FEW:
            scores = {name: value for name, value in scores.items() if not name.endswith("intervals")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"cannot read {path}: {error}; run with '--force evaluate'") from error
    return scores | {"corpus": known}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, ValueError) as error:
        remedy = "run again with --force for the stage that wrote it"
        raise StorageError(f"cannot read {path}: {error}; {remedy}") from error
