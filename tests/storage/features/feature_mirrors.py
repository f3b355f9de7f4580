"""Stores and their remote copies, and a process that pushes, pulls or writes until it is done or killed.

python -m tests.storage.features.feature_mirrors push|pull|write URL LOCAL
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from storage.features.object_store import ObjectStore
from storage.features.s3_sync import Mirror, RemoteFeatures
from storage.features.store import FeatureStore
from tests import ROOT
from tests.storage.features.feature_rows import features, make

NAME = "world/resnet"


def mirror(url: str, store: FeatureStore | Path) -> Mirror:
    return RemoteFeatures(url).mirror(NAME, store if isinstance(store, Path) else store.path)


def remote_segments(url: str) -> list[str]:
    """Those with an index."""
    paths = (entry.path for entry in ObjectStore(url).below(f"{NAME}/"))
    return sorted(path.split("/")[2] for path in paths if path.endswith("/index.parquet"))


def start(action: str, url: str, local: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.storage.features.feature_mirrors", action, url, str(local)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def _write(there: Mirror, local: Path) -> None:
    there.pull()
    store = make(local)
    fresh = store.view().fresh({f"v{n}": "k" for n in range(100)})
    with store.writer(publish_seconds=0, published=there.push_segment) as writer:
        for n in range(100):
            if f"v{n}" not in fresh:
                writer.add(f"v{n}", "k", features(n), pts=np.arange(1 + n % 5) / 4)
    there.push()


if __name__ == "__main__":
    action, where, folder = sys.argv[1:]
    pair = mirror(where, Path(folder))
    print("ready", flush=True)
    if action == "write":
        _write(pair, Path(folder))
    else:
        getattr(pair, action)(lambda done, total: time.sleep(0.01))  # slow enough to be killed in the middle
