"""What a pipeline made, as one hash for each result, and where two of them differ."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from storage.features.s3_sync import RemoteFeatures
from storage.features.store import FeatureStore
from storage.files.atomic import TEMP_MARK
from storage.files.hashing import digest, digest_file
from storage.workspace import read_done

SAY_TIMES = {"done.json", "report.html"}
"""say when and how long each stage worked; the rest of each is compared"""
TIMES = re.compile(rb'<time .*?</time>|<section id="stages".*?</section>', re.DOTALL)
"""what a report says of times: when it was made, and its table of stages"""
Results = dict[str, str]
"""name of a result -> hash of its content"""


def results(workspace: Path) -> Results:
    """Everything in a workspace that must not depend on faults: every file of every stage, what each done-marker says but
    for times, and all rows of all features, each compared with its checksum."""
    found: Results = {}
    for folder in sorted(workspace.glob("artifacts/*/*")):
        name = str(folder.relative_to(workspace / "artifacts"))
        done = read_done(folder)
        if done is None:
            found[name] = "not finished"
            continue
        sizes = {file: size for file, size in done.files.items() if file not in SAY_TIMES}
        found[name] = digest(done.ref.to_json(), done.ingredients, sorted(done.files), sizes)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != "done.json" and TEMP_MARK not in path.name:
                found[f"{name}/{path.relative_to(folder)}"] = _page(path) if path.name in SAY_TIMES else digest_file(path)
    for store in feature_stores(workspace):
        found[f"features/{store.path.parent.name}/{store.path.name}"] = _rows(store)
    return found


def results_of_bucket(url: str) -> Results:
    """The feature stores in a bucket, as another machine would get them."""
    found: Results = {}
    remote = RemoteFeatures(url)
    with TemporaryDirectory() as folder:
        for name in remote.names():
            remote.mirror(name, Path(folder) / name).pull()
            found[f"features/{name}"] = _rows(FeatureStore.open(Path(folder) / name))
    return found


def _page(path: Path) -> str:
    return hashlib.sha256(TIMES.sub(b"", path.read_bytes())).hexdigest()


def _rows(store: FeatureStore) -> str:
    return "; ".join(map(str, store.verify())) or f"{len(store.view())} rows, {store.digest()}"


def feature_stores(workspace: Path) -> list[FeatureStore]:
    return [FeatureStore.open(path.parent) for path in sorted(workspace.glob("features/*/*/zarr.json"))]


def rows_of(workspace: Path) -> Counter[tuple[str, str, str]]:
    """(store, video, key of the video) -> how often that row is there."""
    return Counter(
        (store.path.name, id, key)
        for store in feature_stores(workspace)
        for segment in store.view().segments
        for id, key in zip(segment.ids, segment.keys, strict=True)
    )


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One line for each result that is missing, unexpected or another one."""
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name}: lost")
        elif name not in expected:
            lines.append(f"{name}: not in the undisturbed run ({found[name]})")
        elif found[name] != expected[name]:
            lines.append(f"{name}: {found[name]} instead of {expected[name]}")
    return lines
