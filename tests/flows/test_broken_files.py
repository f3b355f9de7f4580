"""Good videos among all kinds of broken ones: the good are extracted, each bad one is listed in words, nothing else is
opened. Quickly without Prefect, and in full through the command."""

from __future__ import annotations

import csv
import json
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import plan_pipeline
from storage.features.store import FeatureStore
from storage.workspace import Workspace
from tasks.framework.quarantine import gather_problems
from tests.flows.command import command, environment_of
from tests.flows.toy_place import TOY, executed, recipe_on
from tests.storage.broken_files import Broken, write_broken_files, write_odd_entries
from tests.storage.canaries import canary
from tests.storage.clips import make_clip

ONLY_LISTED = {"outside_root", "broken_link", "no_video"}
"""What the reader of folders lists without a quarantine: features from elsewhere may stand in for these videos."""


@dataclass(frozen=True)
class Mixture:
    """A data folder: names of the good videos, and what to expect of all the others."""

    folder: Path
    good: list[str]
    bad: dict[str, Broken]

    @property
    def usable(self) -> list[str]:
        return [*self.good, *(name for name, broken in self.bad.items() if not broken.kind)]


@contextmanager
def mixture(root: Path, good: int) -> Iterator[Mixture]:
    """The folder, under watch: whatever the bad files point to must not have been touched at the end."""
    folder, elsewhere = root / "data", root / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    with canary(make_clip(elsewhere / "secret.ts", 20)) as bird:
        names = good_clips(folder, good)
        bad = write_broken_files(folder, bird) | write_odd_entries(folder, bird)
        splits = ["train", "train", "train", "val", "test"]
        with (folder / "captions.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["video", "caption", "split"])
            for n, name in enumerate([*names, *bad]):
                table.writerow([name, "numbers in black and white", splits[n % 5]])
        bird.touched()
        yield Mixture(folder, names, bad)
        assert bird.touched() == []


def good_clips(folder: Path, count: int) -> list[str]:
    """Copies of a few clips, each with bytes of its own behind the film."""
    films = [make_clip(folder / f".{n}.mp4", 12 + n, options={"g": "6"}) for n in range(4)]
    names = [f"good{n:03}.mp4" for n in range(count)]
    for n, name in enumerate(names):
        (folder / name).write_bytes(films[n % 4].read_bytes() + struct.pack(">I4sI", 12, b"free", n))
    for film in films:
        film.unlink()
    return names


def check_rows(mixed: Mixture, workspace: Path) -> None:
    """Every store has a row of every usable video, and no other."""
    stores = list((workspace / "features").glob("*/*"))
    assert stores
    for store in stores:
        rows = FeatureStore.open(store).view().table()["video_id"].to_pylist()
        assert set(rows) >= {Path(name).stem for name in mixed.usable} and len(rows) == len(mixed.usable)


def check_list(mixed: Mixture, problems: Iterable[dict[str, Any]]) -> None:
    """Every bad file is listed, with a kind and words, and no good one is."""
    found: dict[str, list[dict[str, Any]]] = {}
    for problem in problems:
        for name in {problem["item"], problem["where"]}:
            found.setdefault(name, []).append(problem)
    for name, broken in mixed.bad.items():
        listed = found.get(name, []) + (found.get(Path(name).stem, []) if broken.kind == "no_video" else [])
        if broken.kind:
            fitting = [p for p in listed if p["kind"] == broken.kind and broken.words in p["reason"]]
            assert fitting, (name, broken, listed)
            assert broken.kind in ONLY_LISTED or fitting[0]["quarantined"], fitting
        else:
            assert not any(p["quarantined"] for p in listed), listed
            assert any(p["kind"] == "damaged" for p in listed) == broken.damaged, (name, listed)
    assert not any(p["quarantined"] for name in mixed.good for p in found.get(name, []))


def test_a_few_good_videos_among_every_kind_of_broken_file(tmp_path: Path) -> None:
    with mixture(tmp_path, good=10) as mixed:
        recipe = recipe_on(mixed.folder, runtime__decoders=2)
        workspace = Workspace.open(tmp_path / "w")
        plan = plan_pipeline(recipe, workspace, until="extract_features")
        assert "extract_features" in executed(plan)
    problems = gather_problems(workspace, [step.ref for step in plan.steps])
    check_rows(mixed, tmp_path / "w")
    check_list(mixed, [asdict(problem) for problem in problems])


@pytest.mark.slow
def test_the_command_extracts_a_hundred_good_videos_among_every_kind_of_broken_file(tmp_path: Path) -> None:
    with mixture(tmp_path, good=100) as mixed:
        arguments = ["extract", TOY, "--data", mixed.folder, "-w", tmp_path / "w", "-s", "runtime.decoders=2", "--json"]
        done = subprocess.run(
            command(*arguments), env=environment_of(tmp_path / "prefect"), capture_output=True, text=True, timeout=540
        )
    assert done.returncode == 3, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    check_rows(mixed, tmp_path / "w")
    check_list(mixed, json.loads(done.stdout)["problems"])
