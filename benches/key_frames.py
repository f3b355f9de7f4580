"""Does VRE look at the event? The share of key frames inside the event that was drawn, against that of the middle frame.

    python benches/key_frames.py WORKSPACE [RUN]

RUN is a run's id or its recipe's name; without it, the newest run that found key frames (a recipe with a 'key_frames' section on
the demo world, whose truth.jsonl knows the frames of each event). 'any frame' is what a choice by chance would give. A frame
counts as inside from the event's first to its last frame, by the time that it was taken at.

First, what there is to gain: the loss of the second step (nats per caption) with each frame in turn as the key frame. 'spread' is
its largest minus its smallest value over the frames of a video; 'inside' and 'outside' are its means over those frames; 'best
inside' is the share of videos whose best frame lies inside the event. Where the spread is nothing, no choice can be better."""

import argparse
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from models.captioners.vre.captioner import VreCaptioner
from models.captioners.vre.encoder import RefocusEncoder
from storage.datasets.demo import DemoOptions
from storage.records import SPLITS
from storage.results import read_jsonl
from storage.runs import RunRecord, load_runs
from storage.text.references import References
from storage.workspace import Workspace
from tasks.find_key_frames import KEY_FRAMES
from tasks.framework.feature_access import FeatureAccess
from tasks.training.batches import pad
from tasks.training.loading import captioner_options, load_captioner

STAGE = "find_key_frames"


class Shares(NamedTuple):
    """Of a split's videos: how many, and the share whose key frame, middle frame or any frame lies inside the event."""

    videos: int
    key: float
    middle: float
    any: float


class Spread(NamedTuple):
    """Of a split's videos: how many, and by key frame the loss of step 2, as means over videos; and the share of best frames
    inside."""

    videos: int
    spread: float
    inside: float
    outside: float
    best_inside: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("run", nargs="?", help="id or recipe name of a run")
    options = parser.parse_args()
    workspace = Workspace.open(options.workspace)
    run = chosen_run(workspace, options.run)
    print(f"{run.id} ({run.title})\n{'split':<8}{'videos':>8}{'spread':>12}{'inside':>10}{'outside':>10}{'best inside':>13}")
    for split in ("val", "test"):
        losses = oracle(workspace, run, split)
        print(f"{split:<8}{losses.videos:>8}{losses.spread:>12.4f}{losses.inside:>10.3f}{losses.outside:>10.3f}", end="")
        print(f"{losses.best_inside:>13.1%}")
    print(f"{'split':<8}{'videos':>8}{'key frame':>12}{'middle':>10}{'any frame':>12}")
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
    access = FeatureAccess.open(workspace, workspace.folder(*run.stages[STAGE]), (_temporal(run), KEY_FRAMES))
    found: dict[str, list[tuple[bool, bool, float]]] = {split: [] for split in SPLITS}
    for id, (split, inside) in _events(run, access).items():
        key = int(access.views[KEY_FRAMES].read(id, access.rows[KEY_FRAMES][id])[0, 0])
        found[split].append((bool(inside[key]), bool(inside[len(inside) // 2]), float(inside.mean())))
    return {split: Shares(len(rows), *np.mean(rows, axis=0).tolist()) for split, rows in found.items() if rows}


def oracle(workspace: Workspace, run: RunRecord, split: str) -> Spread:
    """The loss of the captioner that found the key frames, by frame."""
    path = workspace.folder(*run.stages["seed"]) / "captioner.safetensors"
    access = FeatureAccess.for_captioner(workspace, workspace.folder(*run.stages[STAGE]), captioner_options(path))
    references = References(workspace.folder(*run.stages["prepare_text"]))
    captioner = cast(VreCaptioner, load_captioner(path, access, references.vocabulary))
    captions, found = references.token_ids(split), []
    for id, (where, inside) in _events(run, access).items():
        if where != split or not captions.get(id) or inside.all() or not inside.any():
            continue
        with torch.inference_mode():
            features, masks = access.read([id])
            tokens, rows = pad(captions[id]), torch.zeros(len(captions[id]), dtype=torch.int64)
            each = cast(RefocusEncoder, captioner.encoder).around_every_frame(features, masks)[0]  # (K, H)
            memory = captioner.encode(features, masks).select(rows)
            losses = captioner.losses_given(tokens, memory, [o.expand(len(tokens), -1) for o in each]).mean(0).numpy()
        found.append((np.ptp(losses), losses[inside].mean(), losses[~inside].mean(), inside[losses.argmin()]))
    return Spread(len(found), *np.mean(found, axis=0).tolist())


def _temporal(run: RunRecord) -> str:
    return str(run.recipe["captioner"]["temporal"])


def _events(run: RunRecord, access: FeatureAccess) -> dict[str, tuple[str, NDArray[np.bool_]]]:
    """video -> its split, and which of its frames lie inside the event"""
    fps, temporal = DemoOptions.model_validate(run.recipe["dataset"]).fps, _temporal(run)
    found = {}
    for row in read_jsonl(Path(run.data) / "truth.jsonl"):
        if not access.usable([id := row["video"]]):
            continue
        times = access.views[temporal].pts(id, access.rows[temporal][id])
        if times is None:
            raise SystemExit(f"the '{temporal}' features of {id} have no times; extract them from the videos")
        frames = np.round(times * fps)
        found[id] = row["split"], (frames >= row["start"]) & (frames < row["end"])  # the end is behind the event's last frame
    return found


if __name__ == "__main__":
    main()
