"""SPICE up to the call of Java, the real jar's own complaint without its parser, and the way back from an answer."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from models.metrics import java as java_module
from models.metrics.java import JavaFailed, NoJava, find_java, packaged_jar
from models.metrics.spice import CORENLP_JARS, SpiceScores, spice
from tests.models.metrics.fake_java import fake_java

SAID = {"b": "a café", "a": "two\u2028dogs"}
TRUTH = {"a": ["two dogs play", "dogs"], "b": ["a small café"]}


def hollow_jars(folder: Path, *names: str) -> Path:
    """A folder of jars with nothing in them."""
    folder.mkdir()
    for name in names:
        with zipfile.ZipFile(folder / name, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    return folder


@pytest.fixture
def listening_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Java 11 that notes how it was called, keeps its input, and writes the answer that lies beside it."""
    java = fake_java(tmp_path / "jdk", 'openjdk version "11.0.2"')
    java.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -version ]; then echo \'openjdk version "11.0.2"\' >&2; exit 0; fi\n'
        'here=$(dirname "$0")\n'
        'printf "%s\\n" "$@" > "$here/arguments"; pwd > "$here/folder"\n'
        'while [ $# -gt 0 ]; do case "$1" in *captions.json) cp "$1" "$here/input";; -out) answer="$2";; esac; shift; done\n'
        'cp "$here/answer" "$answer"\n'
    )
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    return java.parent


def test_captions_go_out_and_scores_come_back_by_files_in_a_temporary_folder(listening_java: Path, tmp_path: Path) -> None:
    colours = {"b": 0.5, "a": None}  # where neither side names a colour there is no score of colours
    scores = (("b", 0.5), ("a", 0.25))
    answer = [
        {"image_id": id, "scores": {"All": {"f": f}, "Color": {"f": colours[id]}, "Object": {"f": 2 * f}}} for id, f in scores
    ]
    (listening_java / "answer").write_text(json.dumps(answer))
    jars = hollow_jars(tmp_path / "Core NLP", *CORENLP_JARS)
    package = packaged_jar("spice", "spice-1.0.jar").parent
    before = sorted(package.rglob("*"))
    assert spice(SAID, TRUTH, jars) == SpiceScores(0.375, {"a": 0.25, "b": 0.5}, {"Object": 0.75, "Color": 0.5})
    assert sorted(package.rglob("*")) == before
    assert json.loads((listening_java / "input").read_text("ascii")) == [
        {"image_id": "a", "test": "two dogs", "refs": TRUTH["a"]},
        {"image_id": "b", "test": "a café", "refs": TRUTH["b"]},
    ]
    arguments = (listening_java / "arguments").read_text().split("\n")
    class_path = arguments[arguments.index("-cp") + 1].split(os.pathsep)
    assert {str(jars / name) for name in CORENLP_JARS} < set(class_path)
    assert "edu.anu.spice.SpiceScorer" in arguments and "-subset" in arguments and "-Duser.language=en" in arguments
    folder = Path((listening_java / "folder").read_text().strip())
    assert folder.name.startswith("longtake-spice-") and not folder.exists()


@pytest.mark.parametrize("answer", ["", "[]", '[{"image_id": "a", "scores": {"All": {"f": null}}}]'])
def test_an_answer_that_makes_no_sense_is_a_failure(listening_java: Path, tmp_path: Path, answer: str) -> None:
    (listening_java / "answer").write_text(answer)
    with pytest.raises(JavaFailed, match="cannot be understood"):
        spice(SAID, TRUTH, hollow_jars(tmp_path / "jars", *CORENLP_JARS))


def test_a_java_that_does_not_end_is_stopped(listening_java: Path, tmp_path: Path) -> None:
    java = listening_java / "java"
    java.write_text(java.read_text().replace("here=", "exec sleep 60\nhere="))
    with pytest.raises(JavaFailed, match=r"longer than 0\.3 s"):
        spice(SAID, TRUTH, hollow_jars(tmp_path / "jars", *CORENLP_JARS), time_limit=0.3)


def test_missing_jars_are_named(tmp_path: Path) -> None:
    with pytest.raises(JavaFailed, match=r"has no stanford-corenlp-3\.6\.0-models\.jar;"):
        spice(SAID, TRUTH, hollow_jars(tmp_path / "jars", CORENLP_JARS[0]))
    with pytest.raises(JavaFailed, match=r"no stanford-corenlp-3\.6\.0\.jar and no stanford-corenlp-3\.6\.0-models"):
        spice(SAID, TRUTH, tmp_path / "nowhere")


def test_a_java_without_javascript_is_refused_before_an_hour_of_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path / "jdk", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    with pytest.raises(JavaFailed, match="Java 17 has no JavaScript engine"):
        spice(SAID, TRUTH, hollow_jars(tmp_path / "jars", *CORENLP_JARS))


def test_without_its_parser_the_real_jar_says_what_it_misses(tmp_path: Path) -> None:
    try:
        find_java()
    except NoJava as error:
        pytest.skip(str(error))
    jars = hollow_jars(tmp_path / "ho llow", *CORENLP_JARS, "nashorn-core.jar")
    with pytest.raises(JavaFailed, match=r"ended with code 1: .*edu[./]stanford[./]nlp"):
        spice(SAID, TRUTH, jars)


def test_no_captions_are_an_error(tmp_path: Path) -> None:
    assert java_module.one_line("a\r\nb") == "a b"
    with pytest.raises(ValueError, match="no captions"):
        spice({}, {}, tmp_path)
