"""What bookkeeping costs: a run that finds nothing to do, at 1,000, 10,000 and 100,000 videos.

The catalogue is synthetic and its features are present, so all that is measured is reading annotations, looking at files,
comparing keys and starting up. Rival in the same run: hashing every file again, which is what a tool without fingerprints
does to know that nothing changed (our files are tiny, so the true cost of that is far higher)."""

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from measuring import arguments, timed

from flows.pipeline import plan_pipeline
from flows.recipe import load_recipe
from storage.catalogue import snapshot_dataset
from storage.datasets import read_dataset
from storage.features.store import FeatureStore
from storage.files.file_cache import CachedProbe, FileCache
from storage.files.hashing import digest_file
from storage.workspace import Workspace
from tasks.catalogue import PROBE_VERSION

RECIPE = """
name: bookkeeping
dataset: {kind: folder, name: synthetic}
sampling: {frames: {kind: uniform, frames: 8}}
features: {look: {kind: backbone, net: "timm:test_resnet", weights: random}}
text: {min_count: 1}
captioner: {kind: sa_lstm, features: [look]}
"""
PROBE = {
    "frames": 48, "width": 320, "height": 240, "fps": 24.0, "duration": 2.0, "rotation": 0, "codec": "h264",
    "container": "mp4", "has_audio": False, "start": 0.0, "damaged": False, "is_image": False, "reader": "pyav",
}  # fmt: skip


def build(folder: Path, videos: int) -> tuple[Path, Path, Path]:
    """A data folder, a recipe and a workspace in which everything up to the features is done."""
    data, recipe, root = folder / "data", folder / "bookkeeping.yaml", folder / "workspace"
    (data / "videos").mkdir(parents=True)
    recipe.write_text(RECIPE)
    old = time.time() - 3600
    with (data / "captions.jsonl").open("w") as file:
        for n in range(videos):
            path = data / "videos" / f"v{n:06}.mp4"
            path.write_bytes(b"synthetic %d" % n)
            os.utime(path, (old, old))
            for text in ("a ball rolls", "something moves"):
                file.write(json.dumps({"video": path.stem, "caption": f"{text} {n % 97}"}) + "\n")
    workspace = Workspace.open(root)
    loaded = load_recipe(str(recipe), (), data)
    snapshot = snapshot_dataset(read_dataset(loaded.dataset, data), FileCache(workspace.file_cache_path))
    probes = dict.fromkeys(snapshot.contents.values(), CachedProbe(PROBE, np.arange(48) / 24))
    FileCache(workspace.file_cache_path).note_probes(probes, PROBE_VERSION)
    plan = plan_pipeline(loaded, workspace, until="extract_features")
    (source,) = plan.steps[-1].prepared.values()
    store = FeatureStore.create(workspace.features / source.store, provenance={"extractor_key": source.key})
    with store.writer(publish_seconds=1e9) as writer:
        row = np.zeros((8, 32), np.float16)
        for id, key in snapshot.record_keys.items():
            writer.add(id, key, row)
    for step in plan.steps:
        step.execute()
    return data, recipe, root


def no_op(data: Path, recipe: Path, root: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of the command that finds nothing to do."""
    arguments = ["run", recipe, "--data", data, "-w", root, "--until", "extract_features"]
    began = time.monotonic()
    command = [sys.executable, "-m", "flows.cli", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    printed, complaints = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status or "Nothing to do" not in printed:
        sys.exit(f"the command did not end well:\n{printed}\n{complaints}")
    return time.monotonic() - began, usage.ru_maxrss / 1024


def plan_again(data: Path, recipe: Path, root: Path) -> None:
    plan = plan_pipeline(load_recipe(str(recipe), (), data), Workspace.open(root), until="extract_features")
    assert not plan.to_do


def main() -> None:
    counts = arguments(__doc__, videos=[1_000, 10_000, 100_000]).videos
    print(f"{'videos':>8} {'no-op run':>10} {'of it planning':>15} {'us/video':>11} {'peak MB':>8}", end=" ")
    print(f"{'hashing all again':>18}")
    base = None
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            data, recipe, root = build(Path(folder), count)
            seconds, megabytes = no_op(data, recipe, root)
            planning = timed(partial(plan_again, data, recipe, root)).wall
            again = timed(lambda: [digest_file(path) for path in (data / "videos").iterdir()]).wall  # noqa: B023
        base = base or seconds
        columns = f"{count:>8,} {seconds:>8.1f} s {planning:>13.2f} s {1e6 * planning / count:>11.0f} {megabytes:>8.0f}"
        print(f"{columns} {again:>16.2f} s   ({seconds / base:.1f} x the time of {counts[0]:,})")


if __name__ == "__main__":
    main()
