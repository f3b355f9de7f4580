"""SPICE by the jar inside pycocoevalcap, with the CoreNLP 3.6.0 jars of a folder that the user has.

CoreNLP and its models (half a gigabyte) are not part of any package, so SPICE stays optional: whatever stops it is a
`JavaFailed` whose text says why. The jar writes its answer with Java's JavaScript engine, which Java lost in version 15; a
later Java needs the jars of Nashorn (nashorn-core and the asm ones it asks for) in the same folder."""

import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.metrics.java import JavaFailed, java_command, java_environment, java_version, one_line, packaged_jar

CORENLP_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_LAST_WITH_JAVASCRIPT, _FIRST_CLOSED = 14, 16  # versions of Java
_OPENED = ("java.lang", "java.util", "java.math", "java.net", "java.text")
_COMPLAINT = re.compile(r"(?m)^(?:Caused by: |Exception in thread \S+ )?((?:[a-z]\w*\.)+\w*(?:Exception|Error)\b.*)")


SUB_SCORES = ("Object", "Relation", "Attribute", "Color", "Size", "Cardinality")


@dataclass(frozen=True)
class SpiceScores:
    """SPICE of the corpus (a mean) and of each video, 0 to 1; and its parts by name (G2L, Fig. 7), each the mean over the videos
    in which the part occurs at all."""

    corpus: float
    per_video: dict[str, float]
    parts: dict[str, float]


def spice(
    hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]], jars: Path, time_limit: float = 7200.0
) -> SpiceScores:
    """video id -> caption, video id -> references -> scores.

    jars: the folder with CORENLP_JARS; every other jar in it is put on the class path too. time_limit in seconds."""
    if not hypotheses:
        raise ValueError("there are no captions to score")
    ids = sorted(hypotheses)
    lines = {id: [one_line(text) for text in (hypotheses[id], *references[id])] for id in ids}
    items = [{"image_id": id, "test": test, "refs": refs} for id, (test, *refs) in lines.items()]
    with tempfile.TemporaryDirectory(prefix="longtake-spice-") as folder:
        asked, answered = Path(folder) / "captions.json", Path(folder) / "scores.json"
        asked.write_text(json.dumps(items), encoding="ascii")  # only escapes survive any locale
        _run(_command(jars, asked, answered), Path(folder), time_limit)
        each = _read(answered, ids)
    whole = {id: scores["All"] for id, scores in each.items()}
    found = {name: [scores[name] for scores in each.values() if math.isfinite(scores.get(name, math.nan))] for name in SUB_SCORES}
    return SpiceScores(sum(whole.values()) / len(whole), whole, {name: sum(x) / len(x) for name, x in found.items() if x})


def _command(jars: Path, asked: Path, answered: Path) -> list[str]:
    jar = packaged_jar("spice", "spice-1.0.jar")
    given = sorted(path.absolute() for path in jars.glob("*.jar"))
    missing = [name for name in CORENLP_JARS if name not in {path.name for path in given}]
    if missing:
        origin = "they are part of Stanford CoreNLP 3.6.0 (stanford-corenlp-full-2015-12-09.zip)"
        raise JavaFailed(f"the folder {jars} has no {' and no '.join(missing)}; {origin}")
    if java_version() > _LAST_WITH_JAVASCRIPT and not any(path.name.startswith("nashorn") for path in given):
        raise JavaFailed(
            f"Java {java_version()} has no JavaScript engine, which SPICE's jar writes its answer with; set JAVA_HOME to a "
            f"Java 8 to {_LAST_WITH_JAVASCRIPT}, or put the jars of nashorn-core and of asm into {jars}"
        )
    more = [*given, *sorted((jar.parent / "lib").glob("*.jar"))]
    if any(os.pathsep in str(path) for path in (jar, *more)):
        raise JavaFailed(f"Java takes no jars from folders with '{os.pathsep}' in their name, as in {jars}; move them")
    arguments = (str(asked), "-out", str(answered), "-subset", "-silent")
    command = java_command(jar, *arguments, memory="8G", main_class="edu.anu.spice.SpiceScorer", more_jars=more)
    if java_version() >= _FIRST_CLOSED:
        command[1:1] = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    return command


def _run(command: Sequence[str], folder: Path, time_limit: float) -> None:
    """Run to the end. What Java says goes to a file: a pipe that nobody reads would stop it."""
    output, environment = folder / "output.txt", java_environment() | {"TMPDIR": str(folder)}
    with output.open("wb") as file:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        try:
            done = subprocess.run(command, **pipes, cwd=folder, env=environment, timeout=time_limit, check=False)
        except subprocess.TimeoutExpired as error:
            raise JavaFailed(f"SPICE took longer than {time_limit:g} s; score fewer captions") from error
    if done.returncode:
        text = output.read_text(encoding="utf-8", errors="replace").strip()
        named = _COMPLAINT.findall(text)  # the root of what went wrong is the last exception named, else the last line
        why = (named[-1] if named else text.rpartition("\n")[2] or "it said nothing")[:300]
        raise JavaFailed(f"SPICE's Java program ended with code {done.returncode}: {why}")


def _read(path: Path, ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """video id -> "All" and the parts -> F-score; a part that neither caption nor references have is NaN."""
    try:
        rows = json.loads(path.read_bytes())
        each = {row["image_id"]: {name: _number(part["f"]) for name, part in row["scores"].items()} for row in rows}
        if any(not math.isfinite(each[id]["All"]) for id in ids):
            raise ValueError("a caption has no score")
        return {id: each[id] for id in ids}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JavaFailed(f"SPICE's answer cannot be understood ({error!r}); please report the captions") from error


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
