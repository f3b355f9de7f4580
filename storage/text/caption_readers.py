"""Captions in files that people exchange: COCO results and annotations, JSON lines, plain mappings, CSV; plain or gzipped.

predictions   [{"image_id": 1, "caption": "..."}]            one caption per item
              {"video_id": "vid1", "caption": "..."}         JSON lines (what Longtake writes)
              {"vid1": "..."}
references    {"annotations": [{"image_id": 1, "caption": "..."}], "images": [...]}
              the list alone, JSON lines, {"video_id": "vid1", "captions": ["...", "..."]}, or {"vid1": ["...", "..."]}

both          CSV or TSV with a column video (or file) and one caption, as 'longtake caption --format csv' writes it and as a data
              folder has it; of several ranks the first counts

Ids are compared as text, so 7, 7.0 and "7" are one item; of a file the name without folder and ending counts. Keys that are not
known are passed over."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from storage.datasets.dataset import is_media
from storage.errors import BadInput

_ID_KEYS = ("video_id", "image_id", "id", "video", "clip", "file", "file_name")
_FILE_KEYS = ("file", "file_name")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_TEXT_KEYS = ("caption", "captions", "text", "sentence")


def read_predictions(path: Path) -> dict[str, str]:
    """id -> caption. An id with two captions is an error: which one counts?"""
    found: dict[str, str] = {}
    for id, text, where in _rows(path):
        if id in found:
            raise BadInput(f"{path}, {where}: a second caption for '{id}'; a predictions file has one caption per item")
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
        wanted = "COCO annotations, JSON lines, or an object of id: [captions]"
        raise BadInput(f"{path} holds no captions; expected {wanted}")
    return found


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """(id, caption, where in the file) of every caption."""
    text = _read(path)
    if separator := _SEPARATORS.get(Path(path.name.removesuffix(".gz")).suffix.lower()):
        yield from _table_rows(path, text, separator)
        return
    try:
        data = _parse(text, path, "")
    except json.JSONDecodeError as whole:
        yield from _lines(path, text, whole)
        return
    if isinstance(data, dict) and isinstance(data.get("annotations"), list):
        data = data["annotations"]
    if isinstance(data, list):
        for n, row in enumerate(data):
            yield from _entry(row, path, f"entry {n}")
    elif _key_of(data, _ID_KEYS) and _key_of(data, _TEXT_KEYS):
        yield from _entry(data, path, "line 1")
    elif isinstance(data, dict):
        for id, value in data.items():
            yield from _captions(id, value, path, f"'{id}'")
    else:
        raise BadInput(f"{path} is JSON, but neither a list nor an object of captions")


def _table_rows(path: Path, text: str, separator: str) -> Iterator[tuple[str, str, str]]:
    table = csv.DictReader(StringIO(text, newline=""), delimiter=separator)
    columns = table.fieldnames or ()
    key, caption = (next((name for name in names if name in columns), None) for names in (_ID_KEYS, _TEXT_KEYS))
    if key is None or caption is None:
        wanted = f"one of {', '.join(_ID_KEYS)} and one of {', '.join(_TEXT_KEYS)}"
        raise BadInput(f"{path}, line 1: the columns are {', '.join(columns) or 'none'}; expected {wanted}")
    for row in table:
        if row[key] and (row.get("rank") or "1") == "1":
            yield name_of_file(row[key]), row[caption] or "", f"line {table.line_num}"


def name_of_file(path: str) -> str:
    """The name without its folder and its ending: clips/a.mp4 -> a. An id stays as it is."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return name.rpartition(".")[0] if is_media(name) else name


def _read(path: Path) -> str:
    """The file's text; a byte-order mark at its start is no part of it."""
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path} is a damaged gzip file ({error}); copy it again") from error
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; give a file of captions") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it") from error


def _parse(text: str, path: Path, where: str) -> Any:
    """JSON, in which a key that stands twice in one object is an error: all but the last would be lost."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise BadInput(f"{path}{where}: '{twice}' stands twice in one object; only one of them could count")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError as error:
        raise BadInput(f"{path}{where}: nested too deeply to be captions") from error


def _lines(path: Path, text: str, whole: json.JSONDecodeError) -> Iterator[tuple[str, str, str]]:
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    for n, line in lines:
        try:
            row = _parse(line, path, f", line {n}")
        except json.JSONDecodeError as error:
            # Where not even the first line is JSON, the message about the whole file is the better one.
            wrong, line_number = (whole, whole.lineno) if n == lines[0][0] else (error, n)
            where = f"line {line_number}, column {wrong.colno}"
            raise BadInput(f"{path}, {where}: {wrong.msg}; expected JSON or JSON lines") from error
        yield from _entry(row, path, f"line {n}")


def _entry(row: Any, path: Path, where: str) -> Iterator[tuple[str, str, str]]:
    id_key, text_key = _key_of(row, _ID_KEYS), _key_of(row, _TEXT_KEYS)
    if id_key is None or text_key is None:
        raise BadInput(f"{path}, {where}: expected an object with {' or '.join(_ID_KEYS[:2])} and caption")
    id = _id(row[id_key], path, where)
    yield from _captions(name_of_file(id) if id_key in _FILE_KEYS else id, row[text_key], path, where)


def _captions(id: str, value: Any, path: Path, where: str) -> Iterator[tuple[str, str, str]]:
    for caption in value if isinstance(value, list) else [value]:
        if not isinstance(caption, str):
            remedy = "a list of entries stands alone in its file or under 'annotations'"
            raise BadInput(f"{path}, {where}: a caption must be text, not {_kind(caption)}; {remedy}")
        yield id, caption, where


def _id(value: Any, path: Path, where: str) -> str:
    """Spreadsheets turn 7 into 7.0: that is the same item."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadInput(f"{path}, {where}: an id must be text or a whole number, not {_kind(value)}")
    return str(value)


def _key_of(row: Any, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if isinstance(row, dict) and name in row), None)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
