"""Does VRE look at the event? The share of key frames inside the event that was drawn, against that of the middle frame.

    python benches/key_frames.py WORKSPACE [RUN]

RUN is a run's id or its recipe's name; without it, the newest run that found key frames (a recipe with a 'key_frames' section on
the demo world, whose truth.jsonl knows the frames of each event). 'any frame' is what a choice by chance would give. A frame
counts as inside from the event's first to its last frame, by the time that it was taken at."""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from storage.datasets.demo import DemoOptions
from storage.records import SPLITS
from storage.results import read_jsonl
from storage.runs import RunRecord, load_runs
from storage.workspace import Workspace
from tasks.find_key_frames import KEY_FRAMES
from tasks.framework.feature_access import FeatureAccess

STAGE = "find_key_frames"


class Shares(NamedTuple):
    """Of a split's videos: how many, and the share whose key frame, middle frame or any frame lies inside the event."""

    videos: int
    key: float
    middle: float
    any: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("run", nargs="?", help="id or recipe name of a run")
    options = parser.parse_args()
    workspace = Workspace.open(options.workspace)
    run = chosen_run(workspace, options.run)
    print(f"{run.id} ({run.title})\n{'split':<8}{'videos':>8}{'key frame':>12}{'middle':>10}{'any frame':>12}")
    for split, found in shares(workspace, run).items():
        print(f"{split:<8}{found.videos:>8}{found.key:>12.1%}{found.middle:>10.1%}{found.any:>12.1%}")


def chosen_run(workspace: Workspace, name: str | None) -> RunRecord:
    """The newest run of that id or recipe that found key frames."""
    runs = [run for run in load_runs(workspace) if STAGE in run.stages and workspace.done(*run.stages[STAGE])]
    wanted = [run for run in runs if name in (None, run.id, run.recipe_name)]
    if not wanted:
        raise SystemExit(
            f"no run {name or ''} in {workspace.root} found key frames; 'longtake demo demo-vre --set key_frames={{}}' does"
        )
    return wanted[0]


def shares(workspace: Workspace, run: RunRecord) -> dict[str, Shares]:
    """split -> what lies inside the event"""
    fps = DemoOptions.model_validate(run.recipe["dataset"]).fps
    temporal = run.recipe["captioner"]["temporal"]
    access = FeatureAccess.open(workspace, workspace.folder(*run.stages[STAGE]), (temporal, KEY_FRAMES))
    found: dict[str, list[tuple[bool, bool, float]]] = {split: [] for split in SPLITS}
    for row in read_jsonl(Path(run.data) / "truth.jsonl"):
        if not access.usable([id := row["video"]]):
            continue
        times = access.views[temporal].pts(id, access.rows[temporal][id])
        if times is None:
            raise SystemExit(f"the '{temporal}' features of {id} have no times; extract them from the videos")
        frames = np.round(times * fps)
        inside = (frames >= row["start"]) & (frames < row["end"])  # the end is behind the event's last frame
        key = int(access.views[KEY_FRAMES].read(id, access.rows[KEY_FRAMES][id])[0, 0])
        found[row["split"]].append((bool(inside[key]), bool(inside[len(inside) // 2]), float(inside.mean())))
    return {split: Shares(len(rows), *np.mean(rows, axis=0).tolist()) for split, rows in found.items() if rows}


if __name__ == "__main__":
    main()
