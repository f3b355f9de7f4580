"""In a narrow terminal: what a person must copy is neither cut nor broken, and a long line has no blanks at its end."""

from __future__ import annotations

import pytest
from rich.table import Table

from flows.cli.printing import print_table
from flows.doctor import Finding
from tests.flows.conftest import Longtake

LONG = "a-recipe-of-a-long-name.with-a-variant-and-its-hash-0123ab.s0"
PATH = "/a/folder/whose/name/is/longer/than/what/is/left/of/a/line/java-runtime/bin/java"


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_table_cuts_no_name_and_wraps_prose_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("run", "recipe", "state", "about", box=None, padding=(0, 2, 0, 0))
    table.add_row("0e7b41", LONG, "done", "words that say what it is, of which there are many")
    print_table(table, "about")
    lines = capsys.readouterr().out.splitlines()
    assert LONG in lines[1] and "…" not in "".join(lines)
    assert len(lines) > 3, "the words are wrapped"
    assert all(line == line.rstrip() for line in lines)
    assert " ".join(" ".join(line[len(lines[0]) - len("about") :] for line in lines[1:]).split()).endswith("there are many")


def test_addresses_of_weights_are_whole(longtake: Longtake) -> None:
    answer = longtake("weights", "list")
    assert "https://github.com/harritaylor/torchvggish/releases/download/v0.1/vggish-10086976.pth\n" in answer.out
    assert "resnext101_32x8d " in answer.out and "…" not in answer.out


def test_the_doctor_prints_paths_whole(longtake: Longtake, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding("Java", f"what computes METEOR and reads paraphrases is the one found at {PATH}")
    monkeypatch.setattr("flows.doctor.run_checks", lambda workspace: [found])
    lines = longtake("doctor").out.splitlines()
    assert f"         {PATH}" in lines and lines[0].endswith("is the one found at")
