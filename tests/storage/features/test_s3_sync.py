"""Feature stores on S3-like storage, against a real S3 server: two machines, conflicts, damage and compaction."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from storage.errors import Mismatch, MissingFeatures, StorageError, TransientError, UsageError
from storage.features import maintenance, object_store
from storage.features import segments as segments_module
from storage.features.importing import import_features, imports
from storage.features.object_store import ObjectStore
from storage.features.s3_sync import RemoteFeatures
from storage.features.segments import segment_names
from storage.features.store import FeatureStore
from tests.chaos.network import Network
from tests.ports import free_port
from tests.storage.features.feature_mirrors import NAME, mirror, remote_segments
from tests.storage.features.feature_rows import D, all_right, features, make


def test_what_one_machine_pushes_another_pulls_and_reads(tmp_path, url, monkeypatch):
    monkeypatch.setattr(segments_module, "CHUNK_BYTES", 7 * D * 2)
    store = make(tmp_path / "a", *range(20))
    make(tmp_path / "a", 30, 31)
    with store.writer() as writer:
        writer.add("silent", "k", np.zeros((0, D)))
    seen: list[tuple[int, int]] = []
    sent = mirror(url, store).push(lambda *counts: seen.append(counts))
    assert (sent.segments, sent.removed) == (3, 0) and seen[-1] == (sent.nbytes, sent.nbytes)
    assert RemoteFeatures(url).names() == [NAME]
    came = mirror(url, tmp_path / "b").pull()
    copy = FeatureStore.open(tmp_path / "b")
    assert came == sent and copy.digest() == store.digest() and copy.provenance == store.provenance
    assert copy.verify() == [] and np.array_equal(copy.view().read("v31"), features(31))
    assert np.array_equal(copy.view().pts("v31"), store.view().pts("v31"))
    assert mirror(url, store).push().segments == mirror(url, copy).pull().segments == 0


def test_at_every_moment_a_segment_is_whole_or_not_there(tmp_path, url, monkeypatch):
    monkeypatch.setattr(segments_module, "CHUNK_BYTES", 3 * D * 2)
    store = make(tmp_path / "a", *range(8))
    make(tmp_path / "a", 8, 9)
    files = {path for path in file_names(store.path) if "/" in path}
    moments = []

    def whole_there(done: int, total: int) -> None:
        there = {entry.path.removeprefix(f"{NAME}/") for entry in ObjectStore(url).below(f"{NAME}/")}
        for name in remote_segments(url):
            assert {path for path in files if path.startswith(name)} <= there
        moments.append(done)

    def whole_here(done: int, total: int) -> None:
        here = file_names(tmp_path / "b")
        for name in segment_names(tmp_path / "b"):
            assert {path for path in files if path.startswith(name)} <= here
        moments.append(done)

    mirror(url, store).push(whole_there)
    mirror(url, tmp_path / "b").pull(whole_here)
    assert len(moments) == 2 * len(files) > 20


def file_names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_two_machines_meet_in_the_middle(tmp_path, url):
    one, two = make(tmp_path / "a", 1, 2), make(tmp_path / "b", 2, 3)
    mirror(url, one).push()
    mirror(url, two).push()
    for store in (one, two):
        mirror(url, store).pull()
        assert set(store.view().lengths()) == {"v1", "v2", "v3"} and all_right(store.view())
    assert one.digest() == two.digest()


def test_no_remote_store_is_nothing_to_pull_and_no_local_one_cannot_be_pushed(tmp_path, url):
    assert mirror(url, tmp_path / "new").pull().segments == 0 and not (tmp_path / "new").exists()
    assert RemoteFeatures(url).names() == []
    with pytest.raises(MissingFeatures, match="no feature store"):
        mirror(url, tmp_path / "new").push()


def test_a_writer_sends_every_segment_as_it_publishes_it(tmp_path, url):
    store = make(tmp_path / "a")
    copy = tmp_path / "b"
    with store.writer(publish_seconds=0, published=mirror(url, store).push_segment) as writer:
        for n in range(3):
            writer.add(f"v{n}", "k", features(n))
            mirror(url, copy).pull()
            assert len(FeatureStore.open(copy).view()) == n + 1  # were the writer lost now, its work is not
    assert remote_segments(url) == segment_names(store.path) and len(remote_segments(url)) == 1
    assert mirror(url, copy).pull().removed == 3
    assert FeatureStore.open(copy).digest() == store.digest() and segment_names(copy) == segment_names(store.path)


def test_a_writer_whose_sending_fails_keeps_the_rows(tmp_path):
    store = make(tmp_path / "a")

    def fails(segment: Path, replaced: object) -> None:
        raise StorageError("no network")

    with pytest.raises(StorageError, match="no network"), store.writer(published=fails) as writer:
        writer.add("v1", "k", features(1))
    assert store.view().fresh({"v1": "k"}) == {"v1"}


def test_another_extractor_under_the_same_name_is_refused(tmp_path, url):
    store = make(tmp_path / "a", 1)
    mirror(url, store).push()
    other = FeatureStore.create(tmp_path / "b", provenance={"extractor_key": "net-2"})
    with other.writer() as writer:
        writer.add("v9", "k", features(9))
    for transfer in (mirror(url, other).push, mirror(url, other).pull):
        with pytest.raises(Mismatch, match=r"net-1.*net-2.*another name or place"):
            transfer()
    assert remote_segments(url) == segment_names(store.path) and set(other.view().lengths()) == {"v9"}


def test_a_segment_of_the_same_name_with_other_content_is_refused(tmp_path, url):
    store = make(tmp_path / "a", 1, 2)
    shutil.copytree(store.path, tmp_path / "b")
    (name,) = segment_names(store.path)
    mirror(url, store).push()
    chunk = tmp_path / "b" / name / "data" / "c.0.0"
    chunk.write_bytes(chunk.read_bytes()[::-1])
    with pytest.raises(Mismatch, match=f"{name}/data/c.0.0 has other content"):
        mirror(url, tmp_path / "b").push_segment(tmp_path / "b" / name)
    mirror(url, tmp_path / "c").pull()
    assert FeatureStore.open(tmp_path / "c").verify() == []


def test_compaction_reaches_the_other_machine_and_loses_nothing(tmp_path, url):
    store, other = make(tmp_path / "a"), tmp_path / "b"
    for n in range(4):
        make(tmp_path / "a", n)
        mirror(url, store).push()
    mirror(url, other).pull()
    make(other, 9)  # not pushed yet
    done = mirror(url, store).compact()
    assert (done.before, done.after) == (4, 1) and remote_segments(url) == segment_names(store.path)
    view = FeatureStore.open(other).view()
    came = mirror(url, other).pull()
    assert (came.segments, came.removed) == (1, 4) and all_right(view)
    assert mirror(url, other).push().segments == 1
    mirror(url, store).pull()
    assert store.digest() == FeatureStore.open(other).digest() and len(store.view()) == 5
    mirror(url, store).compact({f"v{n}": "k" for n in (0, 1, 9)})
    mirror(url, tmp_path / "c").pull()
    assert set(FeatureStore.open(tmp_path / "c").view().lengths()) == {"v0", "v1", "v9"}
    assert len(remote_segments(url)) == 1


def test_compaction_by_two_machines_at_once_keeps_every_row(tmp_path, url):
    one = make(tmp_path / "a", 1)
    make(tmp_path / "a", 2)
    mirror(url, one).push()
    mirror(url, tmp_path / "b").pull()
    two = FeatureStore.open(tmp_path / "b")
    one.compact()
    two.compact()  # the same rows, merged twice
    assert segment_names(one.path) != segment_names(two.path)
    for store in (one, two, one, two):
        mirror(url, store).push()
        mirror(url, store).pull()
    assert len(remote_segments(url)) == 1 and one.digest() == two.digest() and len(one.view()) == 2
    assert segment_names(one.path) == segment_names(two.path) == remote_segments(url)


def test_rows_that_merging_lost_here_come_back_from_there(tmp_path, url):
    store = make(tmp_path / "a", 1, 2)
    digest = store.digest()
    mirror(url, store).push()
    (name,) = segment_names(store.path)
    (store.path / name / "data" / "c.0.0").unlink()
    assert store.drop_bad() == 2 and len(store.view()) == 0
    mirror(url, store).pull()
    assert store.digest() == digest and store.verify() == []


def test_only_names_of_segments_are_ever_fetched(tmp_path, url):
    store = make(tmp_path / "a", 1)
    mirror(url, store).push()
    (name,) = segment_names(store.path)
    for path in ("evil", "evil/index.parquet", f"{name}/data/run.sh", f"{name}/extra/zarr.json", "imports/x/zarr.json"):
        assert ObjectStore(url).create(f"{NAME}/{path}", b"evil")
    mirror(url, tmp_path / "b").pull()
    files = file_names(tmp_path / "b")
    assert files == {"zarr.json", *(f"{name}/{f}" for f in ("zarr.json", "index.parquet", "data/zarr.json", "data/c.0.0"))}


def test_notes_of_imports_travel_along(tmp_path, url):
    np.savez(tmp_path / "given.npz", a=features(1), b=features(2))
    import_features(tmp_path / "a", tmp_path / "given.npz", name="mine")
    mirror(url, tmp_path / "a").push()
    mirror(url, tmp_path / "b").pull()
    assert imports(FeatureStore.open(tmp_path / "b")) == imports(FeatureStore.open(tmp_path / "a")) != []


def test_an_incomplete_remote_segment_is_not_taken_and_goes_with_time(tmp_path, url, monkeypatch):
    store = make(tmp_path / "a", 1)
    mirror(url, store).push()
    (name,) = segment_names(store.path)
    unfinished = name[:-8] + "0" * 8
    ObjectStore(url).create(f"{NAME}/{unfinished}/data/c.0.0", b"half")
    assert mirror(url, tmp_path / "b").pull().segments == 1
    mirror(url, store).compact()
    assert len(ObjectStore(url).below(f"{NAME}/{unfinished}/")) == 1  # its writer may be alive
    monkeypatch.setattr("storage.features.s3_sync._LEFT_BEHIND", object_store.timedelta(0))
    mirror(url, store).compact()
    assert ObjectStore(url).below(f"{NAME}/{unfinished}/") == [] and remote_segments(url) == [name]


def test_a_damaged_remote_store_or_index_is_named(tmp_path, url):
    ObjectStore(url).create(f"{NAME}/zarr.json", b"{}")
    with pytest.raises(StorageError, match="damaged or of no Longtake feature store"):
        mirror(url, make(tmp_path / "a", 1)).push()
    other = f"{url}-other"
    store = make(tmp_path / "b", 1)
    mirror(other, store).push()
    fake = segment_names(store.path)[0][:-8] + "0" * 8
    ObjectStore(other).create(f"{NAME}/{fake}/index.parquet", b"PAR1 no")
    with pytest.raises(StorageError, match=rf"index of segment {fake} .*cannot be read"):
        mirror(other, store).push()


def test_a_place_that_cannot_be_reached_says_what_to_check(tmp_path, url, monkeypatch):
    monkeypatch.setattr(object_store, "RETRY", {"max_retries": 0})
    store = make(tmp_path / "a", 1)
    with pytest.raises(StorageError, match=r"no-such-bucket/x: .*check the bucket's name, AWS_ACCESS_KEY_ID") as caught:
        mirror("s3://no-such-bucket/x", store).push()
    assert not isinstance(caught.value, TransientError), "an answer: trying again does not help"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(TransientError, match="AWS_ENDPOINT_URL, then run the same command"):
        mirror(url, store).pull()
    for wrong in ("ftp://host/x", "bucket/x"):
        with pytest.raises(UsageError, match="give s3://bucket/prefix"):
            RemoteFeatures(wrong)


def test_a_store_that_restarts_is_waited_for(s3_server, url, monkeypatch):
    """Nobody listens for 5 s: longer than a dozen of the client's own tries take."""
    target, (host, port) = ObjectStore(url), ("127.0.0.1", free_port())
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    away = ObjectStore(url)
    back = threading.Timer(5.0, lambda: Network(int(s3_server.rpartition(":")[2]), port))
    back.start()
    assert away.create("a", b"there") and target.get("a") == b"there"


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    # None in sys.modules is what Python has for a module that cannot be imported
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(UsageError, match=r"pip install 'longtake\[s3\]'"):
        RemoteFeatures("s3://bucket/x")


def test_a_plain_folder_will_do_too(tmp_path):
    pytest.importorskip("obstore", reason="obstore is not installed: the extra 's3'")
    url = f"file://{tmp_path}/shared"
    store = make(tmp_path / "a", 1)
    make(tmp_path / "a", 2)
    mirror(url, store).push()
    mirror(url, store).compact()
    mirror(url, tmp_path / "b").pull()
    assert FeatureStore.open(tmp_path / "b").digest() == store.digest() and RemoteFeatures(url).names() == [NAME]
    assert remote_segments(url) == segment_names(store.path)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_removes_superseded_segments_and_when_no_row_is_lost(seed):
    chance = random.Random(seed)
    segments = {
        f"{n:03}": {(f"v{chance.randrange(5)}", "k"): chance.randrange(3) for _ in range(chance.randrange(1, 5))}
        for n in range(12)
    }
    best: dict[tuple[str, str], int] = {}
    for rows in segments.values():
        for row, at in rows.items():
            best[row] = max(at, best.get(row, -1))
    while gone := maintenance.superseded(segments):
        for name in chance.sample(gone, chance.randint(1, len(gone))):  # several at once, by several machines
            del segments[name]
    left: dict[tuple[str, str], int] = {}
    for rows in segments.values():
        for row, at in rows.items():
            left[row] = max(at, left.get(row, -1))
    assert left == best
