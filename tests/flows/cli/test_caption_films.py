"""Subtitles of long videos: valid files, cuts where the film has them, and memory that does not grow with the film."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.flows.conftest import Longtake
from tests.flows.toy_place import Place
from tests.storage.films import FPS, film, write_film


def test_subtitles_follow_the_shots_of_a_film(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    srt, webvtt = pytest.importorskip("srt"), pytest.importorskip("webvtt")
    path = write_film(tmp_path / "film.mp4", film([3, 2, 4]), FPS)
    call = ("caption", path, "-w", place.workspace.root)
    cues = list(srt.parse(longtake(*call, "--format", "srt").out, ignore_errors=False))
    times = [(cue.start, cue.end) for cue in cues]
    seconds = [timedelta(seconds=n) for n in (0, 3, 5, 9)]
    assert times == list(pairwise(seconds)) and all(cue.content for cue in cues)
    saved = longtake(*call, "--format", "vtt", "--output", tmp_path / "subtitles")
    assert saved.code == 0 and "nothing had to be extracted" in saved.err
    vtt = webvtt.read(tmp_path / "subtitles" / "film.vtt").captions
    assert [cue.text for cue in vtt] == [cue.content for cue in cues]
    shots = longtake(*call, "--shots", "--json").json["captions"]
    assert [row["caption"] for row in shots] == [cue.content for cue in cues]
    assert [(row["start"], row["end"]) for row in shots] == [(0, 3), (3, 5), (5, 9)]


def peak(command: list[str]) -> float:
    """Run a command; the most memory, in MB, that it and its children had together."""
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    most = 0
    while process.poll() is None:
        most = max(most, sum(_memory(pid) for pid in _family(process.pid)))
        time.sleep(0.2)
    assert process.returncode == 0
    return most / 1024


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _family(int(child)))]


def _memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@pytest.mark.slow
def test_ten_minutes_take_hardly_more_memory_than_one(place: Place, tmp_path: Path) -> None:
    srt = pytest.importorskip("srt")
    draw = np.random.default_rng(0)
    lengths = {"one": 1, "ten": 10}
    used = {}
    for name, minutes in lengths.items():
        shots: list[int] = []
        while sum(shots) < 60 * minutes:
            shots.append(int(draw.integers(2, 10)))
        path = write_film(tmp_path / f"{name}.mp4", film(shots), FPS)
        command = [sys.executable, "-m", "flows.cli", "caption", str(path), "-w", str(place.workspace.root)]
        used[name] = peak([*command, "--format", "srt", "--output", str(tmp_path / f"{name}.srt")])
        cues = list(srt.parse((tmp_path / f"{name}.srt").read_text(), ignore_errors=False))
        starts = {round(cue.start.total_seconds()) for cue in cues}
        assert starts == {0, *np.cumsum(shots)[:-1].tolist()}, "a cue for every shot, and none else"
    print(used)
    assert used["ten"] < 1.35 * used["one"]
