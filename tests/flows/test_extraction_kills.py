"""An extraction that is killed again and again ends with the store of one that was left in peace."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from storage.datasets.demo import DemoOptions, draw_world
from storage.features.store import FeatureStore
from tests.flows.command import command, run_longtake

THREE = Path(__file__).with_name("three.yaml")
WORLD = DemoOptions(seed=5, train=160, val=20, test=20, size=48, captions=2)
SETTINGS = [f"dataset.{name}={getattr(WORLD, name)}" for name in ("seed", "train", "val", "test", "size", "captions")]
KILLS = 20
pytestmark = pytest.mark.slow


def stores(workspace: Path) -> dict[str, FeatureStore]:
    made = sorted(workspace.glob("features/*/*/zarr.json"))  # a folder without it is not a store yet
    return {path.parent.name: FeatureStore.open(path.parent) for path in made}


def rows_there(workspace: Path) -> dict[str, int]:
    return {name: len(store.view()) for name, store in stores(workspace).items()}


def test_twenty_kills_leave_the_same_store_and_lose_nothing_finished(environment: dict[str, str], tmp_path: Path) -> None:
    world = tmp_path / "world"
    draw_world(world, WORLD, workers=2)
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    peaceful, disturbed = tmp_path / "peaceful", tmp_path / "disturbed"
    run_longtake(environment, "extract", THREE, "--data", world, "-w", peaceful, *options)
    assert set(rows_there(peaceful).values()) == {200}

    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    arguments = command("extract", THREE, "--data", world, "-w", disturbed, *options)
    hits, before = 0, {}
    for _ in range(KILLS):
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(disturbed.glob("artifacts/extract_features/*")):
            time.sleep(0.01)
        running = sum(rows_there(disturbed).values())
        deadline = time.monotonic() + draw.uniform(6, 12)  # most of it is the start of the command itself
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        after = rows_there(disturbed)
        assert all(after[name] >= count for name, count in before.items()), "what was finished stays"
        assert sum(after.values()) >= running
        before = after
    assert hits >= KILLS // 2, f"only {hits} kills hit a running command"

    owed = {name: 200 - count for name, count in before.items()}
    done = run_longtake(environment, "extract", THREE, "--data", world, "-w", disturbed, *options, "--json")
    assert json.loads(done.stdout)["run"]["state"] == "done"
    made = [json.loads(path.read_bytes()) for path in disturbed.glob("artifacts/extract_features/*/done.json")]
    extracted = made[0]["summary"]["extracted"]
    assert extracted == {name.rpartition("-")[0]: count for name, count in owed.items() if count}
    for name, store in stores(disturbed).items():
        assert store.verify() == []
        assert store.digest() == stores(peaceful)[name].digest()
        rows = Counter((id, key) for segment in store.view().segments for id, key in zip(segment.ids, segment.keys, strict=True))
        assert set(rows.values()) == {1}, "a row that was published is never extracted again"
