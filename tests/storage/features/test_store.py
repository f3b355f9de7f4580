"""The feature store: what is written is read back exactly, by us and by plain zarr-python; bad rows are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from storage.errors import BadInput, Mismatch, MissingFeatures, StorageError, UnsafeId
from storage.features import segments as segments_module
from storage.features.segments import segment_names
from storage.features.store import FeatureStore
from tests.storage.features.feature_rows import D, features, make, times


def test_rows_come_back_exactly_whatever_the_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(segments_module, "CHUNK_BYTES", 7 * D * 2)  # seven steps: videos straddle chunks
    store = make(tmp_path / "s", *range(40))
    view = store.view()
    assert len(list(tmp_path.glob("s/*/data/c.*"))) > 10
    for n in range(40):
        assert np.array_equal(view.read(f"v{n}"), features(n))
        assert times(view, n) == [step / 4 for step in range(1 + n % 5)]
    assert view.lengths() == {f"v{n}": 1 + n % 5 for n in range(40)}
    assert (len(store.view()), store.feature_shape, store.dtype) == (40, (D,), np.float16)
    assert store.nbytes >= sum(features(n).nbytes for n in range(40))


def test_a_read_row_is_the_map_itself(tmp_path):
    view = make(tmp_path / "s", 1, 2).view()
    assert np.shares_memory(view.read("v1"), view.read("v1"))
    with pytest.raises(ValueError, match="read-only"):
        view.read("v1")[:] = 0


def test_plain_zarr_python_opens_the_store(tmp_path):
    make(tmp_path / "s", 3, 4)
    group = zarr.open_group(tmp_path / "s", mode="r")
    assert group.attrs["provenance"] == {"extractor_key": "net-1", "name": "resnet"}
    (segment,) = group.group_keys()
    array = group[f"{segment}/data"]
    assert isinstance(array, zarr.Array)
    assert np.array_equal(array[:], np.concatenate([features(3), features(4)]))
    assert array.compressors == () and array.shards is None and np.isnan(array.fill_value)


def test_a_batch_is_padded_and_masked(tmp_path):
    view = make(tmp_path / "s", *range(8)).view()
    batch, mask = view.read_batch(["v3", "v0", "v3"])
    assert batch.shape == (3, 4, D) and batch.dtype == np.float32
    assert mask.tolist() == [[True] * 4, [True, False, False, False], [True] * 4]
    assert np.array_equal(batch[0], features(3)) and np.array_equal(batch[1, 0], features(0)[0])
    assert not batch[1, 1:].any()
    batch, mask = view.read_batch(["v3", "v1"], length=3, dtype="float16")
    assert batch.dtype == np.float16 and mask.sum(1).tolist() == [3, 2]
    assert np.array_equal(batch[0], features(3)[:3])
    assert view.read_batch([])[0].shape == (0, 1, D)


def test_regions_and_empty_rows_are_rows_too(tmp_path):
    store = FeatureStore.create(tmp_path / "s", provenance={"extractor_key": "r"}, feature_shape=(3, 4), dtype="float32")
    regions = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    with store.writer() as writer:
        writer.add("silent", "k", np.zeros((0, 3, 4), np.float32))
        writer.add("v", "k", regions)
        writer.add("mute", "k", np.zeros((0, 3, 4), np.float32))
    with store.writer() as writer:
        writer.add("alone", "k", np.zeros((0, 3, 4), np.float32), pts=[])
    digest = store.digest()
    for _ in range(2):
        view = store.view()
        batch, mask = view.read_batch(["silent", "v", "mute"])
        assert np.array_equal(batch[1], regions) and mask.any(1).tolist() == [False, True, False]
        assert not batch[[0, 2]].any()
        for ids in (["mute", "alone"], ["alone"]):
            batch, mask = view.read_batch(ids)
            assert batch.shape == (len(ids), 1, 3, 4) and not batch.any() and mask.tolist() == [[False]] * len(ids)
        assert view.read("mute").shape == view.row("alone").array.shape == (0, 3, 4)
        assert view.pts("mute") is None and times(view, "alone") == []
        assert view.fresh({"silent": "k", "mute": "k", "alone": "k"}) == {"silent", "mute", "alone"}
        assert store.verify() == [] and store.digest() == digest
        store.compact()
    assert len(segment_names(store.path)) == 1


def test_a_store_of_nothing_but_empty_rows(tmp_path):
    store = FeatureStore.create(tmp_path / "s", provenance={"extractor_key": "audio"})
    for video_id in ("a", "b"):
        with store.writer() as writer:
            writer.add(video_id, "k", np.zeros((0, D)))
    digest = store.digest()
    assert store.compact().after == 1
    assert (store.feature_shape, len(store.view()), store.verify(), store.digest()) == ((D,), 2, [], digest)
    batch, mask = FeatureStore.open(tmp_path / "s").view().read_batch(["b", "a"], length=3)
    assert batch.shape == (2, 3, D) and not batch.any() and not mask.any()


@pytest.mark.parametrize("feature_shape", [(49, 2048), (16, 1024)])
def test_steps_of_several_axes_lie_in_chunks_of_about_12_megabytes(tmp_path, feature_shape):
    store = FeatureStore.create(tmp_path / "s", provenance={"extractor_key": "grid"})
    step = 2 * feature_shape[0] * feature_shape[1]
    rows = {f"v{n}": np.full((length, *feature_shape), n, np.float16) for n, length in enumerate((3, 40, 0, 60_000_000 // step))}
    with store.writer(publish_bytes=2**30) as writer:
        for video_id, array in rows.items():
            writer.add(video_id, "k", array)
    sizes = {path.stat().st_size for path in tmp_path.glob("s/*/data/c.*")}
    assert len(sizes) == 1 and 10_000_000 < sizes.pop() < 12_000_000 + step
    view = store.view()
    assert view.feature_shape == feature_shape and all(np.array_equal(view.read(i), array) for i, array in rows.items())
    batch, mask = view.read_batch(["v0", "v1", "v2"], dtype="float16")
    assert batch.shape == (3, 40, *feature_shape) and mask.sum(1).tolist() == [3, 40, 0]
    assert (batch[0, :3] == 0).all() and (batch[1] == 1).all() and not batch[2].any()
    assert store.verify() == []


def test_a_missing_video_says_what_to_do(tmp_path):
    view = make(tmp_path / "s", 1).view()
    with pytest.raises(MissingFeatures, match=r"no 'resnet' features for v9 in .*; add 'resnet' to the recipe's features"):
        view.read_batch(["v1", "v9"])
    with pytest.raises(MissingFeatures, match=r"v1 .* another version of the video"):
        view.read("v1", "changed")
    with pytest.raises(MissingFeatures, match="longtake extract"):
        FeatureStore.open(tmp_path / "nowhere")


def test_fresh_means_the_same_video_and_key(tmp_path):
    store = make(tmp_path / "s", 1, 2)
    assert store.view().fresh({"v1": "k", "v2": "changed", "v3": "k"}) == {"v1"}
    assert make(tmp_path / "new").view().fresh({"v1": "k"}) == set()


def test_making_a_store_again_opens_it_and_another_extractor_is_refused(tmp_path):
    make(tmp_path / "s", 1)
    assert len(make(tmp_path / "s").view()) == 1
    with pytest.raises(Mismatch, match="net-2"):
        FeatureStore.create(tmp_path / "s", provenance={"extractor_key": "net-2"})
    with pytest.raises(Mismatch, match="float32"):
        make(tmp_path / "s", dtype="float32")
    with pytest.raises(Mismatch, match="99"):
        make(tmp_path / "s", feature_shape=(99,))


def test_a_place_that_is_no_store_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file stands where a folder is needed"):
        make(tmp_path / "file")
    zarr.create_group(tmp_path / "other")
    with pytest.raises(StorageError, match="no Longtake feature store"):
        FeatureStore.open(tmp_path / "other")


@pytest.mark.parametrize(
    ("video_id", "array", "pts", "error", "words"),
    [
        ("bad", [[np.nan] * D], None, BadInput, "bad hold NaN or infinity"),
        ("bad", [[1e6] * D], None, BadInput, "bad hold values beyond the range of float16"),
        ("bad", [[1.0] * (D + 1)], None, BadInput, r"shape \[1, 7\]"),
        ("bad", [1.0] * D, None, BadInput, r"\[L, D\] are needed"),
        ("bad", [["x"] * D], None, BadInput, r"\[L, D\] are needed"),
        ("bad", [[1.0] * D], [0.0, 1.0], BadInput, "1 feature rows but 2 times"),
        ("../bad", [[1.0] * D], None, UnsafeId, "a name, not a path"),
    ],
)
def test_a_bad_row_is_refused_by_name_and_the_rest_goes_on(tmp_path, video_id, array, pts, error, words):
    store = make(tmp_path / "s", 1)
    with store.writer() as writer:
        with pytest.raises(error, match=words):
            writer.add(video_id, "k", np.array(array), pts=pts)
        writer.add("v2", "k", features(2))
    assert store.view().fresh({"v1": "k", "v2": "k", "bad": "k"}) == {"v1", "v2"}


def test_rows_are_visible_when_enough_bytes_or_seconds_have_come(tmp_path):
    store = make(tmp_path / "s")
    with store.writer(publish_bytes=3 * D * 2, publish_seconds=1000) as writer:
        writer.add("v0", "k", features(0))
        assert len(store.view()) == 0
        writer.add("v1", "k", features(1))
        assert len(store.view()) == 2
    with store.writer(publish_seconds=0) as writer:
        writer.add("v2", "k", features(2))
        assert len(store.view()) == 3


def test_an_error_in_the_block_publishes_nothing_more(tmp_path):
    store = make(tmp_path / "s", 1)
    with pytest.raises(KeyboardInterrupt), store.writer() as writer:
        writer.add("v2", "k", features(2))
        raise KeyboardInterrupt
    assert len(store.view()) == 1 and store.verify() == []


def test_a_writer_tidies_up_its_own_small_segments(tmp_path):
    store = make(tmp_path / "s")
    most = 0
    with store.writer(publish_seconds=0) as writer:
        for n in range(40):
            writer.add(f"v{n}", "k", features(n))
            most = max(most, len(segment_names(store.path)))
    assert most <= 32 and len(segment_names(store.path)) == 1
    assert store.digest() == make(tmp_path / "once", *range(40)).digest()


def test_the_digest_tells_content_not_order(tmp_path):
    one = make(tmp_path / "a", 1, 2, 3)
    two = make(tmp_path / "b", 3)
    make(tmp_path / "b", 2, 1)
    assert one.digest() == two.digest()
    assert make(tmp_path / "b", 4).digest() != one.digest()
    assert make(tmp_path / "c", 1, 2, 3, key="other").digest() != one.digest()


@pytest.mark.parametrize("whole", [True, False])
def test_other_codecs_are_read_through_zarr(tmp_path, whole):
    store = make(tmp_path / "s", 1, 2)
    (name,) = segment_names(store.path)
    folder = store.path / name / "data"
    values = np.asarray(zarr.open_array(folder, mode="r")[:])
    shutil.rmtree(folder)
    array = zarr.create_array(folder, data=values, chunks=(2, D), fill_value=np.nan)
    assert array.compressors
    if whole:
        assert np.array_equal(store.view().read("v2"), features(2)) and store.verify() == []
        assert np.array_equal(store.view().read_batch(["v1"], dtype="float16")[0][0], features(1))
        return
    (folder / "c" / "1" / "0").unlink()  # zarr-python reads NaN there and says nothing
    with pytest.raises(StorageError, match=f"{name}.*v2 differ from their checksum"):
        store.view().read("v2")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_view_holds_no_file_descriptors(tmp_path):
    store = make(tmp_path / "s")
    for n in range(10):
        make(tmp_path / "s", n)
    before = descriptors()
    view = store.view()
    assert np.array_equal(view.read("v9"), features(9))
    assert descriptors() == before


def test_segments_of_another_shape_are_refused(tmp_path):
    store = make(tmp_path / "s", 1)
    other = FeatureStore.create(tmp_path / "o", provenance={"extractor_key": "net-1"})
    with other.writer() as writer:
        writer.add("v2", "k", np.ones((1, D + 1)))
    (name,) = segment_names(other.path)
    shutil.copytree(other.path / name, store.path / name)
    with pytest.raises(StorageError, match=f"{name} holds rows of shape"):
        store.view()


def test_provenance_is_json_anyone_can_read(tmp_path):
    provenance = {"extractor_key": "net-1", "weights": {"hash": "ab12"}, "sampling": [1, 2.5, None]}
    FeatureStore.create(tmp_path / "s", provenance=provenance)
    assert json.loads((tmp_path / "s" / "zarr.json").read_text())["attributes"]["provenance"] == provenance
    assert FeatureStore.open(tmp_path / "s").provenance == provenance
    with pytest.raises(ValueError, match="extractor_key"):
        FeatureStore.create(tmp_path / "t", provenance={})
