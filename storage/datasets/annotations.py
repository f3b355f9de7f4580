"""Reading annotation files (JSON, CSV, TSV, JSON lines, Parquet, text) so that every mistake has a file and a line,
and the values in them: captions, splits, segments."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadInput
from storage.records import Split, TimeSpan

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
FOLDERS = (".", "annotations", "annotation", "captions", "Flickr8k_text", "Flicker8k_text")
"""Where annotation files are looked for, below the data folder and in this order."""

Skip = Callable[[int, str], None] | None
_Json = TypeVar("_Json", dict[str, Any], list[Any])
TableRow = tuple[int, dict[str, Any]]
"""The line (or the row of a Parquet file), from 1, and its values by lower-case column name."""

_NOT_TEXT = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
SURROGATE = re.compile(r"[\ud800-\udfff]")
_SPLITS: dict[str, Split] = {"train": "train", "test": "test"}
_SPLITS |= dict.fromkeys(("val", "validate", "validation", "dev"), "val")


def clean_caption(text: str) -> str:
    """The caption on one line: runs of blanks, controls and line or paragraph separators become one space.

    Half a surrogate pair, which JSON can smuggle in and no file can hold, becomes U+FFFD."""
    if text.isprintable():
        return " ".join(text.split())
    return SURROGATE.sub("\ufffd", _NOT_TEXT.sub(" ", text)).strip()


def parse_split(value: Any) -> Split | None:
    """The split that a word of the annotations means ("validate", "validation" and "dev" are val), or None."""
    return _SPLITS.get(value.strip().lower()) if isinstance(value, str) else None


def repair_segment(start: Any, end: Any, duration: Any = None) -> tuple[TimeSpan | None, str]:
    """(start, end) in seconds as a segment inside the video, and what had to be repaired ("" if nothing).

    None if nothing is left: then the second value says why."""
    try:
        first, last = float(start), float(end)
    except (TypeError, ValueError, OverflowError):
        return None, f"start {start!r:.60} and end {end!r:.60} are not both numbers of seconds"
    if not (math.isfinite(first) and math.isfinite(last)):
        return None, f"start {first} and end {last} are not both finite"
    notes = ["start and end were swapped"] if first > last else []
    first, last = min(first, last), max(first, last)
    limit = float(duration) if isinstance(duration, int | float) and 0 < duration < math.inf else math.inf
    inside = (min(max(first, 0.0), limit), min(max(last, 0.0), limit))
    if inside != (first, last):
        notes.append(f"{first:g} to {last:g} s was cut to what the video has, 0 to {limit:g} s")
    if inside[0] >= inside[1]:
        return None, "; ".join([*notes, f"nothing is left of the segment from {first:g} to {last:g} s"])
    return inside, "; ".join(notes)


def find_annotation(root: Path, name: str) -> Path | None:
    """The file of that name in the first of FOLDERS that has it."""
    return next((path for folder in FOLDERS if (path := root / folder / name).is_file()), None)


def no_annotations(kind: str, root: Path, names: Sequence[str]) -> BadInput:
    """The error of a reader that finds none of its files."""
    places = searched_places(root, names)
    return BadInput(f"no {kind} annotations; {places}; put them there or choose another dataset.kind")


def searched_places(root: Path, names: Sequence[str]) -> str:
    """The end of a message about a missing annotation file."""
    places = ", ".join(folder if folder != "." else "the folder itself" for folder in FOLDERS)
    return f"looked for {', '.join(names)} in {root} ({places})"


def read_text(path: Path) -> str:
    """The whole file as UTF-8, a byte order mark removed, line ends untouched."""
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}; check the file and its permissions") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        found = f"byte 0x{data[error.start]:02x} is not UTF-8; expected UTF-8 text, so save the file in that encoding"
        raise BadInput(f"{path}, line {line}, column {column}: {found}") from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, numbered from 1. Only a newline ends a line: U+2028 and its like stay inside."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line and not line.isspace():
            yield number, line.removesuffix("\r")


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """The object that a JSON file holds; `expected` says in words what should be in it."""
    return _parse(dict, read_text(path), path, 1, expected)


def read_json_list(path: Path, expected: str) -> list[Any]:
    """The list that a JSON file holds."""
    return _parse(list, read_text(path), path, 1, expected)


def list_in(data: dict[str, Any], key: str, path: Path, expected: str) -> list[Any]:
    """The list under a key of a JSON object."""
    value = data.get(key)
    if not isinstance(value, list):
        found = f"'{key}' is a JSON {_json_type(value)}" if key in data else f"there is no '{key}'"
        raise BadInput(f"{path}, line 1, column 1: {found}; expected {expected}")
    return value


def read_rows(path: Path, wanted: Collection[str], skip: Skip = None) -> Iterator[TableRow]:
    """The rows of a .csv, .tsv, .jsonl or .parquet file; of a Parquet file only the `wanted` columns are read.

    A row that cannot be parsed is BadInput, or, if `skip` is given, is passed to it (line, reason) and left out."""
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise BadInput(f"{path} is not a table; expected a file that ends in {', '.join(TABLE_SUFFIXES)}")
    if suffix == ".jsonl":
        return _jsonl_rows(path)
    return _parquet_rows(path, wanted) if suffix == ".parquet" else _csv_rows(path, suffix, skip)


def read_header(path: Path) -> list[str]:
    """The lower-case column names of a .csv file, or [] if its first line is not a header."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        line = file.readline(10_000)
    try:
        return [name.strip().lower() for name in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _csv_rows(path: Path, suffix: str, skip: Skip) -> Iterator[TableRow]:
    text = io.StringIO(read_text(path), newline="")
    reader = csv.reader(text, delimiter="\t" if suffix == ".tsv" else ",", strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1  # a quoted field may span lines: name the one where its row begins
        row = None
        try:
            row = next(reader, None)
        except csv.Error as error:
            if "unexpected end" in str(error) or "field limit" in str(error):
                wanted = 'expected a closing quote (write a quote inside a field as "")'
                found = f"{path}, line {line}: a double quote opens a field and never closes it"
                raise BadInput(f"{found}; {wanted}") from error
            reason = f'{error}; expected a field in double quotes to end with its quote (write a quote inside it as "")'
        else:
            if row is None:
                break
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if header is None:
                header = _column_names(row, path)
                continue
            if len(row) == len(header):
                yield line, dict(zip(header, row, strict=True))
                continue
            quoting = "with double quotes around a field that has the separator in it"
            reason = f"{len(row)} columns; expected {len(header)} ({', '.join(header)}), {quoting}"
        if skip is None or header is None:
            raise BadInput(f"{path}, line {line}{f', column {len(row)}' if row else ''}: {reason}")
        skip(line, reason)
    if header is None:
        raise BadInput(f"{path}, line 1, column 1: the file is empty; expected a line with the names of the columns")


def _jsonl_rows(path: Path) -> Iterator[TableRow]:
    for number, line in read_lines(path):
        data = _parse(dict, line, path, number, "one JSON object per line")
        yield number, {name.lower(): value for name, value in data.items()}


def _parquet_rows(path: Path, wanted: Collection[str]) -> Iterator[TableRow]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            found = dict(zip(_column_names(file.schema_arrow.names, path), file.schema_arrow.names, strict=True))
            names = [name for name in found if name in wanted] or list(found)
            for batch in file.iter_batches(columns=[found[name] for name in names]):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: row[found[name]] for name in names}
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path}, after row {number}: {error}; expected a whole Parquet file") from error


def _column_names(names: Sequence[str], path: Path) -> list[str]:
    clean = [name.strip().lower() for name in names]
    twice = sorted({name for name in clean if clean.count(name) > 1})
    if twice:
        raise BadInput(f"{path}, line 1: the column '{twice[0]}' is there twice; expected every name once")
    return clean


def _parse(kind: type[_Json], text: str, path: Path, line: int, expected: str) -> _Json:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line + error.lineno - 1}, column {error.colno}"
        raise BadInput(f"{path}, {at}: {error.msg}; expected {expected}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise BadInput(f"{path}, line {line}, column 1: {error}; expected {expected}") from error
    if not isinstance(data, kind):
        raise BadInput(f"{path}, line {line}, column 1: found a JSON {_json_type(data)}; expected {expected}")
    return data


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
