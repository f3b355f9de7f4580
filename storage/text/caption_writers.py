"""Captions of files as text that people, spreadsheets, programs and video players read."""

import csv
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Literal

from storage.files.sanitising import no_formula, no_formula_path, visible

Format = Literal["text", "jsonl", "csv", "coco", "srt", "vtt"]


@dataclass(frozen=True)
class ScoredCaption:
    """A caption and its log-probability."""

    caption: str
    log_prob: float


@dataclass(frozen=True)
class CaptionLine:
    """The caption of a file, or of its part from `start` to `end` seconds; `n_best` if more than one was asked for."""

    file: str
    start: float
    end: float
    whole: bool
    caption: str
    log_prob: float
    n_best: tuple[ScoredCaption, ...] = ()


def render_text(lines: Sequence[CaptionLine]) -> str:
    """One line per clip, for people; the n best captions below it, the likeliest first."""
    text = []
    for line in lines:
        label = line.file if line.whole else f"{line.file} [{clock(line.start)}-{clock(line.end)}]"
        text.append(f"{_one_line(label)}: {_one_line(line.caption)}\n")
        for n, scored in enumerate(line.n_best, 1):
            text.append(f"    {n}. {_one_line(scored.caption)}  ({scored.log_prob:.2f})\n")
    return "".join(text)


def render_jsonl(lines: Sequence[CaptionLine]) -> str:
    return "".join(json.dumps(as_row(line), ensure_ascii=False) + "\n" for line in lines)


def render_csv(lines: Sequence[CaptionLine]) -> str:
    """One row per caption; rank 1 is the caption, then come the others, the likeliest first. No cell is a formula, which a
    spreadsheet would compute."""
    out = StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["file", "start", "end", "rank", "caption", "log_prob"])
    for line in lines:
        best = line.n_best or (ScoredCaption(line.caption, line.log_prob),)
        for rank, scored in enumerate(sorted(best, key=lambda scored: scored.caption != line.caption), 1):
            place = [no_formula_path(line.file), f"{line.start:.3f}", f"{line.end:.3f}"]
            table.writerow([*place, rank, no_formula(scored.caption), f"{scored.log_prob:.4f}"])
    return out.getvalue()


def render_coco(lines: Sequence[CaptionLine]) -> str:
    """The results file of COCO's evaluation server: a list of image_id and caption."""
    return json.dumps([{"image_id": image_id(line.file), "caption": line.caption} for line in lines], ensure_ascii=False) + "\n"


def image_id(file: str) -> int | str:
    """The number that COCO gives an image, from its file name or id ("COCO_val2014_000000000139.jpg", "139"); of any other file
    the name without its ending."""
    stem = file.rpartition("/")[2]
    stem = stem.rpartition(".")[0] or stem
    found = re.fullmatch(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,18})", stem)
    return int(found[1]) if found else stem


def _one_line(text: str) -> str:
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def as_row(line: CaptionLine) -> dict[str, object]:
    """One object of JSON lines."""
    row = asdict(line) | {"start": round(line.start, 3), "end": round(line.end, 3)}
    if not line.n_best:
        del row["n_best"]
    return row


def render_srt(lines: Sequence[CaptionLine]) -> str:
    """SubRip: numbered cues, milliseconds after a comma. It has no escapes; one line of text is always plain text but for
    angle brackets, which players take for tags: they become typographic ones."""
    blocks = []
    for number, (start, end, text) in enumerate(_cues(lines), 1):
        escaped = text.replace("<", "‹").replace(">", "›")
        blocks.append(f"{number}\n{_subtitle_clock(start, ',')} --> {_subtitle_clock(end, ',')}\n{escaped}\n")
    return "\n".join(blocks)


def render_vtt(lines: Sequence[CaptionLine]) -> str:
    """WebVTT: text with &, < and > escaped."""
    blocks = ["WEBVTT\n"]
    for start, end, text in _cues(lines):
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{_subtitle_clock(start, '.')} --> {_subtitle_clock(end, '.')}\n{escaped}\n")
    return "\n".join(blocks)


def _cues(lines: Iterable[CaptionLine]) -> Iterable[tuple[int, int, str]]:
    """(start, end, text) in whole milliseconds, on one line; without words, which no player would show, none."""
    for line in lines:
        if text := " ".join(line.caption.split()):
            start = max(0, round(1000 * line.start))
            yield start, max(start + 1, round(1000 * line.end)), text  # a cue must end after it begins


def _subtitle_clock(milliseconds: int, point: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{rest:03}"


RENDERERS = {
    "text": render_text,
    "jsonl": render_jsonl,
    "csv": render_csv,
    "coco": render_coco,
    "srt": render_srt,
    "vtt": render_vtt,
}
SUBTITLES = ("srt", "vtt")
"""formats with one file per video"""


def clock(seconds: float) -> str:
    """75.25 -> 1:15.2"""
    tenths = int(10 * seconds + 1e-6)
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    shown = f"{minutes:02}" if hours else f"{minutes}"
    return f"{f'{hours}:' if hours else ''}{shown}:{rest // 10:02}.{rest % 10}"
