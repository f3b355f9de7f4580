"""coco-caption's own tokenizer, in Java: what our tokenizer and scores are held against."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from models.metrics.java import JavaFailed, java_command, java_environment, one_line, packaged_jar

PUNCTUATION = frozenset(("''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", *".?!,:;-", "--", "..."))


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
            raise JavaFailed(f"the Java tokenizer took longer than {time_limit:g} s for {len(captions)} captions") from error
    if done.returncode:
        raise JavaFailed(f"the Java tokenizer ended with code {done.returncode}; try again, or another Java by JAVA_HOME")
    lines = done.stdout.decode("utf-8").split("\n")[:-1]
    if len(lines) != len(captions):
        raise JavaFailed(f"the Java tokenizer made {len(lines)} lines of {len(captions)} captions; please report the captions")
    return [[word for word in line.rstrip().split(" ") if word and word not in PUNCTUATION] for line in lines]
