"""Captions and names of files that try to be something else: markup, commands, formulas, cursor movements, other folders."""

from __future__ import annotations

import csv
import json
import shutil
from io import StringIO
from pathlib import Path

import pytest

from flows.cli.printing import out
from flows.orchestration.artifacts import quarantine_rows
from flows.pipeline import plan_pipeline
from storage.files.sanitising import has_login, visible, without_login
from storage.records import Problem
from storage.text.caption_writers import RENDERERS, CaptionLine
from storage.workspace import Workspace
from tests.flows.conftest import Longtake
from tests.flows.toy_place import Place, executed, recipe_on

CAPTIONS = [
    "<script>document.title='owned'</script> a ball",
    "<img src=x onerror=\"document.title='owned'\">",
    '=HYPERLINK("http://127.0.0.1/","click")',
    "+cmd|' /C calc'!A0",
    "[click](javascript:alert(1)) ![x](http://127.0.0.1/x.png)",
    "{{ 7 * 7 }} {% raw %} {parameters} %(id)s ${HOME} `id` $(id)",
    "\x1b[2J\x1b]0;owned\x07 a ball \x9b31m",
    "--> 00:00:00.000\n\n1\n00:00:00,000 --> 00:00:09,000\nowned",
    "a \u202eballs\u202c \u2028 moves",
]
NAMES = [
    "-rf ~.mp4",
    "--format=srt.mp4",
    "=1+1.mp4",
    "two\nlines.mp4",
    "\x1b[2Jcleared.mp4",
    "con|rm -rf ~;$(touch owned)&`touch owned`.mp4",
    "<img src=x onerror=alert(1)>.mp4",
    "[bold red]loud[link=http:x].mp4",
    "{parameters} {{ 7 * 7 }} %(id)s.mp4",
    "file:concat:http:x.mp4",
    "\u202e4pm.exe.mp4",
    "a....mp4",
    "CON.mp4",
    "*?[a-z].mp4",
    "n" * 251 + ".mp4",
]


def lines() -> list[CaptionLine]:
    return [CaptionLine(f"{text[:5]}.mp4", n, n + 1, True, text, -1.0) for n, text in enumerate(CAPTIONS)]


def test_no_cell_of_a_table_is_a_formula() -> None:
    rows = list(csv.DictReader(StringIO(RENDERERS["csv"](lines()))))
    assert len(rows) == len(CAPTIONS)
    for row, text in zip(rows, CAPTIONS, strict=True):
        assert not row["caption"].startswith(("=", "+", "-", "@", "\t", "\r"))
        assert not row["file"].startswith(("=", "+", "-", "@", "\t", "\r"))
        assert row["caption"].removeprefix("'") == text


def test_text_for_a_terminal_has_nothing_that_a_terminal_obeys() -> None:
    text = RENDERERS["text"](lines())
    assert len(text.splitlines()) == len(CAPTIONS) and all(line.isprintable() for line in text.splitlines())
    assert "\\x1b[2J" in text, "shown instead"


def test_a_console_shows_names_and_does_not_obey_them(capsys: pytest.CaptureFixture[str]) -> None:
    out.file = None  # whatever standard output is now
    for name in NAMES:
        out.print(name, markup=False, soft_wrap=True)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[2Jcleared" in shown


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_a_caption_stays_in_its_cue_and_is_no_tag(form: str) -> None:
    text = RENDERERS[form](lines())
    assert "<script" not in text and "<img" not in text
    stamps = [line for line in text.splitlines() if " --> " in line and line[:2].isdigit()]
    assert len(stamps) == len(CAPTIONS), "no caption made a cue of its own"


def test_lines_of_json_are_one_a_caption() -> None:
    rows = RENDERERS["jsonl"](lines()).split("\n")
    assert [json.loads(row)["caption"] for row in rows if row] == CAPTIONS


def test_the_table_of_the_quarantine_holds_plain_text() -> None:
    rows = quarantine_rows([Problem(name, "crashed", f"[x](javascript:alert(1)) {name}") for name in NAMES])
    assert len(rows) == len(NAMES)
    for row in rows:
        assert "](" not in row["item"] + row["reason"] + row["file"], "no link that the dashboard would make of it"
        assert all(cell.isprintable() for cell in row.values())


def test_addresses_are_shown_without_their_login() -> None:
    assert without_login("https://me:word@host:4200/api?x=1") == "https://host:4200/api?x=1"
    assert has_login("s3://key:secret@bucket/x") and not has_login("s3://bucket/a@b")
    assert visible("a\tb\nc\x07\ud800") == "a\tb\nc\\x07\\ud800"


def everything_below(folder: Path, but: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_relative_to(but)}


def test_files_of_any_name_are_captioned_and_nothing_leaves_its_folder(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    folder.mkdir()
    for n, name in enumerate(NAMES):
        (folder / name).write_bytes(place.clip("test", n % 4).read_bytes())
    before = everything_below(tmp_path, place.workspace.root)
    answer = longtake("caption", folder, "-w", place.workspace.root)
    assert answer.code == 0 and "\x1b" not in answer.out + answer.err and len(answer.out.splitlines()) == len(NAMES)
    rows = [
        json.loads(line) for line in longtake("caption", folder, "-w", place.workspace.root, "--format", "jsonl").out.splitlines()
    ]
    assert {Path(row["file"]).name for row in rows} == set(NAMES), "names are told as they are where a program reads them"
    assert everything_below(tmp_path, place.workspace.root) == before
    answer = longtake("caption", folder, "-w", place.workspace.root, "--format", "srt", "--output", tmp_path / "subtitles")
    written = everything_below(tmp_path, place.workspace.root) - before
    assert {path.parent for path in written} <= {tmp_path, tmp_path / "subtitles"}, answer.err
    assert len(list((tmp_path / "subtitles").iterdir())) == len(NAMES)
    assert not list(tmp_path.rglob("owned*"))


def test_a_data_set_of_hostile_names_and_captions_runs_to_its_report(world: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(world, data, ignore=shutil.ignore_patterns("world.json", "truth.jsonl"))
    rows = [json.loads(line) for line in (data / "captions.jsonl").read_text().splitlines()]
    names = sorted((name for name in NAMES if len(name) < 200), key=lambda name: "<" not in name)
    splits = {row["video"]: row["split"] for row in rows}
    clips = dict(zip(sorted(splits, key=lambda video: splits[video]), names, strict=False))  # those of the test split first
    for n, (video, name) in enumerate(clips.items()):
        (data / "videos" / f"{video}.mp4").rename(data / "videos" / name)
        rows.append({"video": video, "caption": CAPTIONS[n % len(CAPTIONS)], "split": splits[video]})
    for row in rows:
        row["video"] = clips.get(row["video"], row["video"])
    strange = ["../../outside.mp4", "/etc/passwd", "a\0b.mp4", "..", "", "~/x.mp4", "n" * 5000]
    rows += [{"video": name, "caption": "a ball", "split": "train"} for name in strange]
    (data / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    space = Workspace.open(tmp_path / "w")
    before = everything_below(tmp_path, space.root)
    plan = plan_pipeline(recipe_on(data, dataset__name="toy"), space)
    assert executed(plan)[-1] == "report"
    assert everything_below(tmp_path, space.root) == before, "nothing is written but in the workspace"
    report = plan.step("report")
    assert report is not None
    page = (space.root / report.ref.uri / "report.html").read_text()
    assert "<img src=x" not in page and "<script>document" not in page and 'onerror="doc' not in page
    assert "&lt;img src=x onerror" in page, "it is there, as text"
