"""Dead rows: found only where every kept run is finished, dropped without touching what is read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from storage.features.store import FeatureStore
from storage.runs import RunRecord, save_run
from tasks.extraction.dead_rows import find_dead_rows
from tasks.framework.stage import StageRun
from tests.tasks.toy_run import ToyRun


def record(job: StageRun, id: str, state: str = "done") -> RunRecord:
    stores = tuple(source.store for source in job.prepared.values())
    stages = {"extract_features": ("extract_features", job.ref.key)}
    run = RunRecord(id, "toy", "demo", str(job.data), {}, stages, stores, "", state)
    save_run(job.workspace, run)
    return run


def test_rows_of_a_removed_video_are_found_and_dropped(toy: ToyRun, tmp_path: Path) -> None:
    root = Path(shutil.copytree(toy.data, tmp_path / "copy"))
    mine = ToyRun(toy.alone, root)
    first = mine.features()
    record(first, "run-1")
    assert find_dead_rows(first.workspace) == []

    removed = sorted((root / "videos").glob("test*.mp4"))[0]
    removed.unlink()
    second = mine.features()
    run = record(second, "run-2")
    (dead,) = find_dead_rows(first.workspace)
    assert dead.count == 1

    unfinished = {"extract_features": ("extract_features", "0" * 32)}
    running = replace(run, id="run-3", stages=unfinished, state="running")
    save_run(first.workspace, running)
    assert find_dead_rows(first.workspace) == [], "a run that is still extracting keeps its store untouched"
    save_run(first.workspace, replace(running, stages=run.stages, state="done"))

    dead.drop()
    view = FeatureStore.open(dead.store.path).view()
    assert len(view) == 17 and removed.stem not in view.lengths()
    assert second.find_completion() is not None, "what is kept is still all there"
    assert find_dead_rows(first.workspace) == []
