"""Finding neighbours: exact by pooled features, resumed block by block to the same bytes, stale when it must be.

python -m tests.tasks.test_find_neighbours WORKSPACE carries the stage out slowly, to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.neighbours import Nearest, NearestItems
from storage.errors import BadInput, MissingFeatures
from storage.features.store import FeatureStore
from storage.files.atomic import write_json, write_parquet
from storage.neighbours import Neighbours
from storage.records import ArtifactRef
from storage.workspace import Workspace
from tasks import find_neighbours as module
from tasks.find_neighbours import NeighbourOptions, _of_other_sources, find_neighbours, pool
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import ProgressBar, progress_bar
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageRun
from tests import ROOT
from tests.tasks.toy_run import ToyRun

TRAIN, TEST, TAIL = 90, 7, (2, 5)
EVERY = [*(f"train{n}" for n in range(TRAIN)), *(f"test{n}" for n in range(TEST))]
WITHOUT = ("train4", "train40", "test3")
"""videos that have no row, or one without steps"""


def steps_of(id: str) -> np.ndarray:
    """[L, 2, 5] float16; every tenth video is the same as another."""
    number = EVERY.index(id)
    random = np.random.default_rng(3 if number % 10 == 0 else number)
    return random.normal(size=(1 + number % 4 * (number % 10 > 0), *TAIL)).astype(np.float16)


def prepare(root: Path) -> None:
    """A workspace as cataloguing and extraction leave it."""
    workspace = Workspace.open(root)
    store = FeatureStore.create(workspace.feature_store("demo", "scene"), provenance={"extractor_key": "net-1"})
    rows: dict[str, list[str]] = {"feature": [], "id": [], "key": []}
    with store.writer() as writer:
        for id in EVERY:
            if id != "train4":
                steps = steps_of(id)
                writer.add(id, "k", steps[:0] if id in WITHOUT else steps)
                for column, value in zip(rows.values(), ("scene", id, "k"), strict=True):
                    column.append(value)
    folder = workspace.folder("extract_features", "f")
    write_parquet(folder / "rows.parquet", pa.table(rows))
    about = {"store": "demo/scene", "size": TAIL[-1], "key": "net-1"}
    write_json(folder / "features.json", {"scene": about})
    videos: dict[str, list] = {"id": EVERY, "split": [id.rstrip("0123456789") for id in EVERY]}
    videos |= {name: [None] * len(EVERY) for name in ("source", "start", "end")}
    write_parquet(workspace.folder("catalogue", "c") / "videos.parquet", pa.table(videos))


def job_in(root: Path, features: str = "f", videos: str = "v", **options) -> StageRun:
    """The stage in a prepared workspace; `features` and `videos` are the keys of its inputs."""
    inputs = {
        "videos": ArtifactRef("catalogue", "artifacts/catalogue/c", videos),
        "features": ArtifactRef("extract_features", "artifacts/extract_features/f", features),
    }
    asked = NeighbourOptions(feature="scene", **options)
    return find_neighbours.bind(Workspace.open(root), root, Runtime(device="cpu"), asked, inputs)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    prepare(tmp_path / "workspace")
    return tmp_path / "workspace"


def made(job: StageRun) -> Neighbours:
    job.execute()
    return Neighbours.open(job.folder)


def pooled(ids: list[str]) -> np.ndarray:
    return np.stack([steps_of(id).astype(np.float64).mean(axis=(0, 1)) for id in ids])


def expected(queries: list[str], k: int) -> list[list[tuple[str, float]]]:
    items = [id for id in EVERY if id.startswith("train") and id not in WITHOUT]
    vectors, found = pooled(items), []
    for query in queries:
        distances = np.sqrt(((vectors - pooled([query])) ** 2).sum(1))
        order = [n for n in np.argsort(distances, kind="stable") if items[n] != query]
        found.append([(items[n], distances[n]) for n in order[:k]])
    return found


def test_each_training_video_gets_the_nearest_others_by_its_mean_over_time(root: Path) -> None:
    table = made(job_in(root, k=3))
    ids = [id for id in EVERY if id.startswith("train") and id not in WITHOUT]
    assert table.ids("train") == ids == table.table["video_id"].to_pylist()
    for id, wanted in zip(ids, expected(ids, 3), strict=True):
        names, distances = zip(*table.of(id), strict=True)
        assert list(names) == [name for name, _ in wanted]
        assert distances == pytest.approx([distance for _, distance in wanted], rel=1e-12)
    assert table.of("train20")[:2] == [("train0", 0.0), ("train10", 0.0)], "equal ones by number"
    metadata = table.metadata
    assert (metadata.feature, metadata.feature_key) == ("scene", "net-1")
    assert (metadata.metric, metadata.k, metadata.items) == ("euclidean", 3, 88)


def test_videos_of_other_splits_find_their_nearest_training_videos(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 4)
    table = made(job_in(root, k=2, queries=("test", "train")))
    ids = [id for id in EVERY if id.startswith("test") and id not in WITHOUT]
    assert table.ids("test") == ids and len(table.ids("train")) == 88
    assert [[name for name, _ in table.of(id)] for id in ids] == [[name for name, _ in e] for e in expected(ids, 2)]
    assert table.table.num_rows == made(job_in(root, k=2)).table.num_rows + len(ids)
    assert made(job_in(root, k=2, queries=("test",))).ids("train") == []


def test_a_video_without_the_feature_is_left_out_and_listed(root: Path) -> None:
    job = job_in(root, queries=("train", "test"))
    job.execute()
    listed = pq.read_table(job.folder / "quarantine.parquet").to_pylist()
    assert {row["item"] for row in listed} == set(WITHOUT)
    assert {(row["kind"], row["quarantined"]) for row in listed} == {("no_neighbours", False)}
    assert "no 'scene' features" in listed[0]["reason"]
    done = job.find_completion()
    assert done is not None and done.summary == {"videos": 94, "among": 88, "left_out": 3} and done.ref.count == 94
    assert set(done.files) == {"neighbours.parquet", "quarantine.parquet"}


def test_no_training_video_with_the_feature_is_an_error_that_says_so(root: Path) -> None:
    path = Workspace.open(root).folder("extract_features", "f") / "rows.parquet"
    table = pq.read_table(path)
    write_parquet(path, table.filter(pa.array([id.startswith("test") for id in table["id"].to_pylist()])))
    with pytest.raises(MissingFeatures, match="no training video has 'scene' features"):
        job_in(root).execute()


def test_vectors_stay_in_float32_only_while_nothing_is_lost(root: Path) -> None:
    workspace = Workspace.open(root)
    access = FeatureAccess.open(workspace, workspace.folder("extract_features", "f"), ("scene",))
    exact = pool(access, "scene", ["train0", "train10"])
    assert exact.vectors.dtype == np.float32 and np.array_equal(exact.vectors, pooled(exact.ids))
    many = pool(access, "scene", EVERY)
    assert many.vectors.dtype == np.float64 and np.array_equal(many.vectors, pooled(many.ids))


def test_features_that_turned_to_nan_on_the_disk_are_an_error_that_names_the_video(root: Path) -> None:
    chunks = [path for path in (root / "features").glob("**/data/*") if path.name != "zarr.json" and path.is_file()]
    assert chunks
    for path in chunks:
        path.write_bytes(np.full(path.stat().st_size // 2, np.nan, np.float16).tobytes())
    with pytest.raises(BadInput, match=r"'scene' features of train0 hold NaN.*features verify"):
        job_in(root).execute()


class _Stopped(Exception):
    """Raised in place of a kill."""


@contextmanager
def watching(stop_after: int = 1000, rows: int = 16, sleep: float = 0.0) -> Iterator[list[int]]:
    """Blocks of `rows` rows; gives the first row of each block that is computed, and stops after so many."""
    computed: list[int] = []
    real = NearestItems.of_items

    def noting(self: NearestItems, start: int, stop: int) -> Nearest:
        if len(computed) == stop_after:
            raise _Stopped
        computed.append(start)
        time.sleep(sleep)
        return real(self, start, stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", rows)
        patch.setattr(NearestItems, "of_items", noting)
        yield computed


def test_only_missing_blocks_are_computed_after_a_stop(root: Path) -> None:
    job = job_in(root)
    with watching() as computed:
        job.execute()
    whole = (job.folder / "neighbours.parquet").read_bytes()
    assert computed == [0, 16, 32, 48, 64, 80]
    job.workspace.discard(job.stage.name, job.ref.key)
    with watching(stop_after=3) as computed, pytest.raises(_Stopped):
        job.execute()
    assert job.find_completion() is None and computed == [0, 16, 32]
    (job.folder / "blocks" / "rows-train-00000016-00000032.parquet").unlink()
    with watching() as computed:
        job.execute()
    assert computed == [16, 48, 64, 80]
    assert (job.folder / "neighbours.parquet").read_bytes() == whole


def test_blocks_that_a_run_on_other_rows_left_are_not_taken(root: Path) -> None:
    job, rows = job_in(root), Workspace.open(root).folder("extract_features", "f") / "rows.parquet"
    every = pq.read_table(rows)
    write_parquet(rows, every.filter(pa.array([id != "train80" for id in every["id"].to_pylist()])))
    with watching(stop_after=3), pytest.raises(_Stopped):
        job.execute()
    write_parquet(rows, every)
    with watching() as computed:
        table = made(job)
    assert computed == [0, 16, 32, 48, 64, 80]
    assert "train80" in [name for name, _ in made(job_in(root, k=88)).of("train0")]
    assert len(table) == 88


def test_progress_is_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[tuple[str, int, int]] = []

    @contextmanager
    def watched(label: str, total: int, unit: str) -> Iterator[ProgressBar]:
        with progress_bar(label, total, unit) as shown:
            yield shown
            counts.append((label, shown.count, total))

    monkeypatch.setattr(module, "progress_bar", watched)
    job_in(root).execute()
    assert counts == [("averaging features", 90, 90), ("finding neighbours", 88, 88)]


def _slowly(root: Path) -> None:
    with watching(rows=8, sleep=0.1):
        job_in(root).execute()


@pytest.fixture
def process(root: Path) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "tests.tasks.test_find_neighbours", str(root)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(command, cwd=ROOT, env=environment)
    yield started
    started.kill()
    started.wait()


def test_a_killed_run_goes_on_with_its_blocks_and_ends_in_the_same_bytes(
    root: Path, process: subprocess.Popen, tmp_path: Path
) -> None:
    prepare(tmp_path / "other")
    undisturbed = job_in(tmp_path / "other")
    undisturbed.execute()
    blocks, deadline = job_in(root).folder / "blocks", time.monotonic() + 60
    while len(list(blocks.glob("rows-*.parquet"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = list(blocks.glob("rows-*.parquet"))
    assert job_in(root).find_completion() is None and 3 <= len(kept) < 11

    resumed = job_in(root)
    with watching(rows=8) as computed:
        resumed.execute()
    assert computed == list(range(8 * len(kept), 88, 8))
    for name in ("neighbours.parquet", "quarantine.parquet"):
        assert (resumed.folder / name).read_bytes() == (undisturbed.folder / name).read_bytes()


def test_the_table_is_stale_when_its_feature_or_a_choice_changes_and_else_not(root: Path) -> None:
    job_in(root).execute()
    assert job_in(root).find_completion() is not None
    assert job_in(root, metric="euclidean", k=5).find_completion() is not None, "what is chosen anyway"
    changed = (
        job_in(root, features="made in another way"),
        job_in(root, videos="other ones"),
        job_in(root, k=2),
        job_in(root, metric="cosine"),
        job_in(root, queries=("train", "val")),
    )
    assert [job.find_completion() for job in changed] == [None] * 5 and len({job.ref.key for job in changed}) == 5


def test_the_stage_follows_extraction_on_real_clips(toy: ToyRun) -> None:
    features, videos = toy.features().ref, toy.catalogue().ref
    inputs = {"videos": videos.part("videos/train"), "features": features.part("scene/train")}
    job = toy.alone(find_neighbours, NeighbourOptions(feature="scene", k=20, metric="cosine"), toy.data, **inputs)
    table = Neighbours.open(job.folder)
    assert len(table) == 10 and all(len(table.of(id)) == 9 for id in table.ids("train")), "all the others"
    assert all(0 <= distance <= 2 for id in table.ids("train") for _, distance in table.of(id))


if __name__ == "__main__":
    _slowly(Path(sys.argv[1]))


def test_videos_of_the_same_source_are_no_neighbours() -> None:
    nearest = Nearest(np.array([[1, 2, 3], [0, 3, 2]]), np.array([[0.1, 0.2, 0.3], [0.1, 0.4, 0.5]]))
    found = _of_other_sources(nearest, ["film", "other"], ["film", "film", "other", "third"], 2)
    assert found.indices.tolist() == [[2, 3], [0, 3]] and found.distances.tolist() == [[0.2, 0.3], [0.1, 0.4]]


def test_a_pattern_that_names_no_source_is_refused() -> None:
    for pattern, said in (("^vid", "no group"), ("(", "no regular expression")):
        with pytest.raises(ValueError, match=said):
            NeighbourOptions(feature="scene", source_pattern=pattern)
