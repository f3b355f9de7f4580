"""METEOR 1.5 by the jar inside pycocoevalcap: one Java process for as long as it is needed.

Corpus METEOR is computed from the summed statistics of all captions; it is not the mean of the captions' scores. Texts must be
tokenised already, as for the other scores. Loading takes Java some seconds and up to 2 GB, nearly all of it for the table of
paraphrases: `start` it as early as possible, and open `shared_meteor` around several scorings, so that it loads once for all:

    with shared_meteor() as meteor:
        meteor.start()
        ...
        scores = meteor.score(hypotheses, references)"""

from __future__ import annotations

import math
import queue
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from subprocess import DEVNULL, PIPE

import numpy as np
from numpy.typing import NDArray

from models.metrics.java import JavaFailed, java_command, java_environment, one_line, packaged_jar

CHUNK = 500  # captions sent before their scores are asked for: what a restart repeats at most
STATISTICS = 23  # numbers that Java counts for each caption


@dataclass(frozen=True)
class MeteorScores:
    """METEOR of the corpus and of each video, 0 to 1; statistics (N, 23) in the order of the sorted ids."""

    corpus: float
    per_video: dict[str, float]
    statistics: NDArray[np.float64]


class _Died(Exception):
    """The process is gone; what was asked can be asked again."""


class Meteor:
    """A METEOR process; a context manager. Threads may share it; several may run at once."""

    def __init__(self, time_limit: float = 300.0):
        """time_limit: seconds to wait for any one reply, the loading included"""
        self._time_limit, self._lock = time_limit, threading.Lock()
        self._process: _Process | None = None
        self._closed = False

    def __enter__(self) -> Meteor:
        with self._lock:
            self._running()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Load in the background. Where Java does not start, `score` tries again and says why."""
        with suppress(JavaFailed), self._lock:
            self._running()

    def close(self) -> None:
        """For good; a thread that still scores gets a JavaFailed."""
        self._closed = True
        self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()

    @property
    def pid(self) -> int | None:
        """The process's number while it runs."""
        return self._process.pid if self._process else None

    def score(self, hypotheses: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> MeteorScores:
        """video id -> caption, video id -> references -> scores and the statistics they are computed from."""
        if not hypotheses:
            raise ValueError("there are no captions to score")
        ids = sorted(hypotheses)
        questions = [_question(hypotheses[id], references.get(id, ()), f"'{id}'") for id in ids]
        with self._lock:
            lines = [line for chunk in _chunks(questions) for line in self._ask(chunk, len(chunk))]
            replies = self._ask([_evaluation(lines)], len(ids) + 1)
        *each, corpus = map(_number, replies)
        return MeteorScores(corpus, dict(zip(ids, each, strict=True)), _parsed(lines))

    def segment_scores(self, pairs: Iterable[tuple[str, Sequence[str]]]) -> Iterator[float]:
        """(caption, its references) -> its METEOR, in order, as they come: what leave-one-out weights need."""
        questions = (_question(text, references, f"caption {n}") for n, (text, references) in enumerate(pairs))
        for chunk in _chunks(questions):
            with self._lock:
                statistics = self._ask(chunk, len(chunk))
                replies = self._ask([_evaluation(statistics)], len(chunk) + 1)
            yield from map(_number, replies[:-1])

    def leave_one_out(self, videos: Iterable[Sequence[str]]) -> list[float]:
        """videos -> captions -> METEOR of each against the others of its video, one after another; NaN where there are none.

        METEOR takes the best reference, so of equal references one is enough, and equal questions are asked once: a
        thousand equal captions cost as much as two."""
        questions = [question for captions in videos for question in _against_others(captions)]
        asked = list(dict.fromkeys(question for question in questions if question[1]))
        scores = dict(zip(asked, self.segment_scores(asked), strict=True))
        return [scores.get(question, math.nan) for question in questions]

    def _running(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._time_limit)
        process = self._process
        if self._closed or process is None:  # looked at last: another thread may close it at any moment
            self._kill()
            raise JavaFailed("METEOR was closed while it worked")
        return process

    def _ask(self, lines: Sequence[str], replies: int) -> list[str]:
        """Lines in, so many lines out. A process that died on the way is replaced once."""
        with suppress(_Died):
            return self._ask_once(lines, replies)
        try:
            return self._ask_once(lines, replies)
        except _Died as error:
            advice = "it needs 2 GB of memory: close other programs"
            raise JavaFailed(f"METEOR's Java process died twice ({error}); {advice}") from error

    def _ask_once(self, lines: Sequence[str], replies: int) -> list[str]:
        try:
            return self._running().ask(lines, replies)
        except BaseException:  # replies still under way would answer the next question
            self._kill()
            raise


_OPEN: list[Meteor] = []  # the shared one, once for everybody who has it open
_OPENING = threading.Lock()


@contextmanager
def shared_meteor() -> Iterator[Meteor]:
    """This process's one Meteor: everybody who opens it has the same, and Java ends when the last has closed it."""
    with _OPENING:
        meteor = _OPEN[0] if _OPEN else Meteor()
        _OPEN.append(meteor)
    try:
        yield meteor
    finally:
        with _OPENING:
            _OPEN.pop()
            if not _OPEN:
                meteor.close()


class _Process:
    """Java, and a thread that reads its replies, so that waiting for them can have an end."""

    def __init__(self, time_limit: float):
        jar, folder, environment = packaged_jar("meteor", "meteor-1.5.jar"), tempfile.gettempdir(), java_environment()
        command = java_command(jar, "-", "-", "-stdio", "-l", "en", "-norm", memory="2G")
        self._java = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd=folder, env=environment)
        self._time_limit, self.pid = time_limit, self._java.pid
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="meteor-replies", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._java.stdout is not None
        for line in self._java.stdout:
            self._replies.put(line.decode("utf-8", "replace").strip())
        self._replies.put(None)

    def _write(self, lines: Sequence[str]) -> None:
        assert self._java.stdin is not None
        with suppress(OSError, ValueError):  # the reader notices the death and tells
            for line in lines:
                self._java.stdin.write(line.encode() + b"\n")
            self._java.stdin.flush()

    def ask(self, lines: Sequence[str], replies: int) -> list[str]:
        # Both pipes can be full at once: one thread must write while another reads.
        writer = threading.Thread(target=self._write, args=(lines,), name="meteor-questions", daemon=True)
        writer.start()
        received: list[str] = []
        while len(received) < replies:
            try:
                line = self._replies.get(timeout=self._time_limit)
            except queue.Empty:
                advice = "give it a longer time limit or a faster machine"
                raise JavaFailed(f"METEOR said nothing for {self._time_limit:g} s; {advice}") from None
            if line is None:
                raise _Died(f"exit code {self._java.wait()}")
            received.append(line)
        writer.join()
        return received

    def kill(self) -> None:
        self._java.kill()
        self._java.wait()
        self._reader.join()
        for pipe in (self._java.stdin, self._java.stdout):
            with suppress(OSError):  # what was not sent yet has no receiver
                if pipe:
                    pipe.close()


def _chunks(items: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk


def _clean(text: str) -> str:
    """One line without METEOR's separator."""
    text = one_line(text)
    while "|||" in text:
        text = text.replace("|||", "")
    return text.replace("  ", " ")


def _against_others(captions: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each caption with the distinct others, sorted; those without a word are no references."""
    cleaned = [_clean(caption) for caption in captions]
    counts = Counter(text for text in cleaned if text.strip())
    different = sorted(counts)
    for text in cleaned:
        yield text, tuple(other for other in different if other != text or counts[text] > 1)


def _question(caption: str, references: Sequence[str], name: str) -> str:
    """Empty references included, as pycocoevalcap asks: where nothing matches, the first one's length counts. METEOR takes the
    best reference, the first of the best ones: a repeated one changes nothing and is asked once."""
    if not any(map(str.strip, references)):
        raise ValueError(f"{name} has no reference to score against")
    return " ||| ".join(("SCORE", *dict.fromkeys(map(_clean, references)), _clean(caption)))


def _evaluation(statistics: Sequence[str]) -> str:
    return " ||| ".join(("EVAL", *statistics))


def _number(reply: str) -> float:
    try:
        return float(reply)
    except ValueError:
        raise JavaFailed(f"METEOR answered '{reply[:80]}' instead of a number; please report the captions") from None


def _parsed(lines: Sequence[str]) -> NDArray[np.float64]:
    try:
        table = np.array([line.split() for line in lines], np.float64)
    except ValueError:
        table = np.empty((0, 0))
    if table.shape != (len(lines), STATISTICS):
        raise JavaFailed(f"METEOR did not count {STATISTICS} numbers per caption; please report the captions")
    return table
