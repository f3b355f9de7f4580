"""Captions in files that people exchange: COCO results and annotations, JSON lines, and plain mappings.

predictions   [{"image_id": 1, "caption": "..."}]            one caption an item
              {"video_id": "vid1", "caption": "..."}         JSON lines (what Longtake writes)
              {"vid1": "..."}
references    {"annotations": [{"image_id": 1, "caption": "..."}], "images": [...]}
              the list alone, JSON lines, or {"vid1": ["...", "..."]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import BadInput

_ID_KEYS = ("video_id", "image_id", "id", "video", "clip")
_TEXT_KEYS = ("caption", "text", "sentence")


def read_predictions(path: Path) -> dict[str, str]:
    """id -> caption. An id with two captions is an error: which one counts?"""
    found: dict[str, str] = {}
    for id, text, where in _rows(path):
        if id in found:
            raise BadInput(f"{path}, {where}: a second caption for '{id}'; a predictions file has one caption an item")
        found[id] = text
    if not found:
        raise BadInput(f"{path} holds no captions; expected COCO results, JSON lines, or an object of id: caption")
    return found


def read_reference_file(path: Path) -> dict[str, list[str]]:
    """id -> its captions."""
    found: dict[str, list[str]] = {}
    for id, text, _ in _rows(path):
        found.setdefault(id, []).append(text)
    if not found:
        raise BadInput(
            f"{path} holds no captions; expected COCO annotations, JSON lines, or an object of id: [captions]"
        )
    return found


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """(id, caption, where in the file) of every entry."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; give a file of captions") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it") from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as whole:
        yield from _lines(path, text, whole)
        return
    if isinstance(data, dict) and isinstance(data.get("annotations"), list):
        data = data["annotations"]
    if isinstance(data, list):
        for n, row in enumerate(data):
            yield _entry(row, path, f"entry {n}")
    elif isinstance(data, dict) and _key_of(data, _ID_KEYS) and _key_of(data, _TEXT_KEYS):
        yield _entry(data, path, "line 1")
    elif isinstance(data, dict):
        for id, value in data.items():
            for caption in value if isinstance(value, list) else [value]:
                yield str(id), _text(caption, path, f"'{id}'"), f"'{id}'"
    else:
        raise BadInput(f"{path} is JSON, but neither a list nor an object of captions")


def _lines(path: Path, text: str, whole: json.JSONDecodeError) -> Iterator[tuple[str, str, str]]:
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    for n, line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            # Where not even the first line is JSON, the message about the whole file is the better one.
            wrong, line_number = (whole, whole.lineno) if n == lines[0][0] else (error, n)
            place = f"line {line_number}, column {wrong.colno}"
            raise BadInput(f"{path}, {place}: {wrong.msg}; expected JSON or JSON lines") from error
        yield _entry(row, path, f"line {n}")


def _entry(row: Any, path: Path, where: str) -> tuple[str, str, str]:
    id_key = _key_of(row, _ID_KEYS) if isinstance(row, dict) else None
    text_key = _key_of(row, _TEXT_KEYS) if isinstance(row, dict) else None
    if id_key is None or text_key is None:
        raise BadInput(f"{path}, {where}: expected an object with {' or '.join(_ID_KEYS[:2])} and caption")
    return str(row[id_key]), _text(row[text_key], path, where), where


def _key_of(row: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in row), None)


def _text(value: Any, path: Path, where: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{path}, {where}: a caption must be text, not {type(value).__name__}")
    return value
