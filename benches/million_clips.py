"""A million clips on paper: what a clip, a row and a task run cost is measured here and now, the rest is arithmetic.

    python benches/million_clips.py [--clips 1000000] [--quick] [--history ~/.prefect/prefect.db]

Measured in seconds of computing (CPU time), which other work on the machine changes little: probing and decoding a clip of 15 s
(320 x 240, one pass for both nets), ResNet-101 on 28 frames and r3d_18 on 8 clips of 16 frames, a training step of SA-LSTM, exact
neighbours, the plan of a run that finds nothing to do, bytes and files of the feature store, and rows and bytes of Prefect's
database by two runs made here, or in a prefect.db that several runs have filled (--history). --quick measures by fewer clips.
Everything in ASSUMED is not measured: speeds of a GPU, of a disk, and prices."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from bookkeeping import build as build_bookkeeping
from extraction import draw, feature, seeded_net, videos
from measuring import arguments, filled_store, sa_lstm_training, timed

from flows.pipeline import plan_pipeline
from flows.recipe import load_recipe
from models.neighbours import NearestItems
from storage.media.frame_sampling import Clips, Uniform
from storage.media.frame_stream import DecodeJob, gather, stream_frames
from storage.media.probe import probe
from storage.workspace import Workspace

NETS = {"objects": ("resnet101", Uniform(frames=28)), "actions": ("r3d_18", Clips(positions=8, length=16))}
TINY = Path(__file__).parents[1] / "tests" / "flows" / "tiny.yaml"
CAPTIONS, EPOCHS, SHARD = 5, 10, 1000
ASSUMED = {
    "objects a GPU does in a second (frames, float16)": 2000.0,
    "actions a GPU does in a second (clips of 16 frames, float16)": 400.0,
    "training steps of 64 videos a GPU does in a second": 20.0,
    "exact neighbours on a GPU (float32 operations a second)": 1.0e13,
    "price of a machine with one GPU and 8 cores (dollars an hour)": 1.20,
    "price of a core (dollars an hour)": 0.04,
    "price of object storage (dollars a GB and month)": 0.023,
    "bytes of a source clip": 2.0e6,
}


def cost(work: Callable[[], object], times: int = 1) -> float:
    """CPU seconds of one call, after one that is not counted."""
    work()
    return timed(lambda: [work() for _ in range(times)]).cpu / times


def measure(folder: Path, quick: bool, history: Path | None) -> dict[str, float]:
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    data = draw(folder / "data", 2 if quick else 4, 15.0)
    paths = videos(data)
    found["probe a clip (s)"] = cost(lambda: [probe(path) for path in paths]) / len(paths)
    nets = {name: seeded_net(feature(net, "")) for name, (net, _) in NETS.items()}
    requests = {name: net.request(NETS[name][1], "bench") for name, net in nets.items()}
    jobs = [DecodeJob(path, requests, None, probe(path)) for path in paths]
    decoding = cost(lambda: [gather(stream_frames(job)) for job in jobs])
    found["decode a clip, one pass for both nets (s)"] = decoding / len(jobs)
    frames = gather(stream_frames(jobs[0]))
    for name, net in nets.items():
        items = torch.from_numpy(frames[name].images[:8])
        found[f"{name}: {NETS[name][0]}, an item (s)"] = cost(lambda net=net, items=items: net(items)) / len(items)
    found |= stored(folder / "store", {"objects": (28, 2048), "actions": (8, 512)})
    found["train a step of 64 videos (s)"] = training_step(folder / "train")
    items = np.random.default_rng(0).random((4000, 512), dtype=np.float32)
    found["exact neighbours of 1,000 among 4,000 (s)"] = cost(lambda: NearestItems(items, 5).of_items(0, 1000))
    found |= planned(folder / "plan", 1000 if quick else 20_000)
    found |= recorded(folder / "prefect", folder / "world") if history is None else kept(history)
    return found


def stored(path: Path, shapes: dict[str, tuple[int, int]], rows: int = 500) -> dict[str, float]:
    """Bytes of a clip in the store, and files of a thousand clips."""
    for name, shape in shapes.items():
        filled_store(path / name, (np.zeros(shape, np.float16) for _ in range(rows)), publish_seconds=1e9)
    files = [file for file in path.rglob("*") if file.is_file()]
    nbytes = sum(file.stat().st_size for file in files)
    return {"bytes of a clip's features": nbytes / rows, "files of 1,000 clips": 1000 * len(files) / rows}


def training_step(path: Path) -> float:
    random = np.random.default_rng(1)
    store = filled_store(path, (random.standard_normal((28, 2048)).astype(np.float16) for _ in range(256)))
    _, training = sa_lstm_training(store.view(), 64)
    next(training)
    return timed(lambda: next(training)).cpu


def planned(folder: Path, count: int) -> dict[str, float]:
    """What it costs to see that nothing changed, a clip: a stat, and reading tables."""
    folder.mkdir()
    data, recipe, root = build_bookkeeping(folder, count)
    loaded, space = load_recipe(str(recipe), (), data), Workspace.open(root)
    seconds = cost(lambda: plan_pipeline(loaded, space, until="extract_features"))
    return {"plan with nothing to do, 100,000 clips (s)": 1e5 * seconds / count}


def recorded(home: Path, data: Path) -> dict[str, float]:
    """Rows and bytes that a run leaves in Prefect's database per task run: the second of two runs."""
    from storage.datasets.demo import DemoOptions, draw_world

    draw_world(data, DemoOptions(seed=1, train=10, val=4, test=4, size=48, captions=4), workers=1)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment = {**clean, "PREFECT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    sizes = []
    for n in range(2):
        command = [sys.executable, "-m", "flows.cli", "run", str(TINY), "--data", str(data), "-w", str(home / "w")]
        command += ["--set", f"text.max_words={12 + n}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the run did not end well:\n{done.stderr}")
        sizes.append(database(home / "prefect.db"))
    return per_task_run(*(after - before for before, after in zip(*sizes, strict=True)), runs=1)


def kept(history: Path) -> dict[str, float]:
    """The same of a database that whole runs of the pipeline have filled: rows and bytes of everything in it."""
    tasks, rows, nbytes = database(history)
    with sqlite3.connect(history) as open_:
        (runs,) = open_.execute("select count(*) from flow_run").fetchone()
    return per_task_run(tasks, rows, nbytes, runs)


def per_task_run(tasks: int, rows: int, nbytes: int, runs: int) -> dict[str, float]:
    each = {"database rows per task run": rows / tasks, "database bytes per task run": nbytes / tasks}
    return {"task runs of a pipeline": tasks / runs} | each


def database(path: Path) -> tuple[int, int, int]:
    """Task runs, rows of all tables, bytes in use."""
    with sqlite3.connect(path) as open_:
        tables = [row[0] for row in open_.execute("select name from sqlite_master where type = 'table'")]
        rows = sum(open_.execute(f'select count(*) from "{table}"').fetchone()[0] for table in tables)  # noqa: S608
        (tasks,) = open_.execute("select count(*) from task_run").fetchone()
        pragmas = ("page_count", "freelist_count", "page_size")
        pages, free, size = (open_.execute(f"pragma {name}").fetchone()[0] for name in pragmas)
    return tasks, rows, (pages - free) * size


def estimate(clips: int, m: dict[str, float]) -> list[tuple[str, str, str]]:
    """(what, on cores alone, with GPUs): hours of cores or GPUs, dollars, bytes, rows."""
    frames, windows, steps = 28 * clips, 8 * clips, clips * CAPTIONS * EPOCHS / 64
    decoding = clips * (m["probe a clip (s)"] + m["decode a clip, one pass for both nets (s)"]) / 3600
    core_hours = {
        "objects": frames * m["objects: resnet101, an item (s)"] / 3600,
        "actions": windows * m["actions: r3d_18, an item (s)"] / 3600,
        "training": steps * m["train a step of 64 videos (s)"] / 3600,
        "neighbours": (clips / 1000) * (clips / 4000) * m["exact neighbours of 1,000 among 4,000 (s)"] / 3600,
    }
    gpu_hours = {
        "objects": frames / ASSUMED["objects a GPU does in a second (frames, float16)"] / 3600,
        "actions": windows / ASSUMED["actions a GPU does in a second (clips of 16 frames, float16)"] / 3600,
        "training": steps / ASSUMED["training steps of 64 videos a GPU does in a second"] / 3600,
        "neighbours": 2.0 * clips**2 * 512 / ASSUMED["exact neighbours on a GPU (float32 operations a second)"] / 3600,
    }
    nets = gpu_hours["objects"] + gpu_hours["actions"]
    extraction = max(decoding / 8, nets)
    waits = "the 8 cores that decode" if decoding / 8 > nets else "the GPU"
    machines = extraction + gpu_hours["training"] + gpu_hours["neighbours"]
    cores = decoding + sum(core_hours.values())
    core_price = ASSUMED["price of a core (dollars an hour)"]
    gpu_price = ASSUMED["price of a machine with one GPU and 8 cores (dollars an hour)"]
    in_all = f"{machines:,.0f} machine hours, ${machines * gpu_price:,.0f}"
    task_runs = clips / SHARD + m["task runs of a pipeline"]
    rows, megabytes = task_runs * m["database rows per task run"], task_runs * m["database bytes per task run"] / 1e6
    features = clips * m["bytes of a clip's features"]
    storage = (features + clips * ASSUMED["bytes of a source clip"]) / 1e9
    monthly = storage * ASSUMED["price of object storage (dollars a GB and month)"]

    def hours(what: str, name: str, decimals: int = 1) -> tuple[str, str, str]:
        return what, f"{core_hours[name]:,.0f} core hours", f"{gpu_hours[name]:,.{decimals}f} GPU hours"

    return [
        ("probe and decode", f"{decoding:,.0f} core hours", f"{decoding / 8:,.0f} h on the 8 cores of a machine"),
        hours("ResNet-101, 28 frames", "objects"),
        hours("r3d_18, 8 clips of 16", "actions"),
        ("extraction on one machine", "", f"{extraction:,.0f} h; what it waits for: {waits}"),
        hours(f"SA-LSTM, {EPOCHS} epochs, {CAPTIONS} captions per clip", "training"),
        hours("exact neighbours", "neighbours", 2),
        ("computing in all", f"{cores:,.0f} core hours, ${cores * core_price:,.0f}", in_all),
        ("features", f"{features / 1e9:,.0f} GB in {clips / 1000 * m['files of 1,000 clips']:,.0f} files", ""),
        ("features and sources on object storage", f"{storage / 1000:,.1f} TB, ${monthly:,.0f} a month", ""),
        (f"task runs with runtime.shard={SHARD}", f"{task_runs:,.0f}", ""),
        ("the same with 64 videos per shard", f"{clips / 64 + m['task runs of a pipeline']:,.0f}", ""),
        ("database", f"{rows:,.0f} rows, {megabytes:,.0f} MB", ""),
        ("a scan that finds no changes", f"{clips / 1e5 * m['plan with nothing to do, 100,000 clips (s)']:,.0f} s", ""),
    ]


def main() -> None:
    chosen = arguments(__doc__, clips=1_000_000, quick=False, history="")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), chosen.quick, Path(chosen.history) if chosen.history else None)
    print(f"Measured (CPU time of one core), in {time.monotonic() - began:.0f} s:\n")
    print("| | |\n|---|---|")
    for name, value in measured.items():
        print(f"| {name} | {value:,.3g} |" if value < 1000 else f"| {name} | {value:,.0f} |")
    print("\nAssumed, not measured:\n\n| | |\n|---|---|")
    for name, value in ASSUMED.items():
        print(f"| {name} | {value:,.6g} |")
    print(f"\n{chosen.clips:,} clips of 15 s:\n\n| | cores alone | with one GPU per machine |\n|---|---|---|")
    for row in estimate(chosen.clips, measured):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
