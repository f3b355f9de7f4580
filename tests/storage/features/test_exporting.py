"""Exporting features: both forms, the way back, and everything that may be there already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from storage.errors import BadInput, UsageError
from storage.features.exporting import ExportFormat, export_features
from storage.features.import_sources import EXPORT_NOTE
from storage.features.importing import import_features
from storage.features.segments import INDEX_SCHEMA, segment_names
from storage.features.store import FeatureDType, FeatureStore
from tests import ROOT
from tests.storage.features.feature_rows import D, features, make, only_chunk, times

FORMS: list[ExportFormat] = ["npy", "hdf5"]


def place(tmp_path: Path, form: ExportFormat) -> Path:
    return tmp_path / ("out" if form == "npy" else "out.h5")


def kinds(report) -> dict[str, str]:
    return {problem.item: problem.kind for problem in report.problems}


def varied(path: Path, dtype: FeatureDType, feature_shape: tuple[int, ...]) -> FeatureStore:
    """Rows of several lengths, one empty, one damaged, one without times, one with very many steps, odd names."""
    store = FeatureStore.create(path, provenance={"extractor_key": "net-1", "name": "n", "weights": "é"}, dtype=dtype)
    chance = np.random.default_rng(3)
    with store.writer() as writer:
        for n, video_id in enumerate(["plain", "a.b", "Ünï — 視", "x" * 190]):
            writer.add(video_id, f"k{n}", chance.normal(size=(n + 1, *feature_shape)), pts=np.arange(n + 1) / 3)
        writer.add("silent", "k", np.zeros((0, *feature_shape)), pts=[])
        writer.add("torn", "k", chance.normal(size=(2, *feature_shape)), damaged=True)
        writer.add("long", "k", chance.normal(size=(9000, *feature_shape)), pts=np.arange(9000) / 7)
    return store


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "feature_shape"), [("float16", (D,)), ("float32", (3, 2))])
def test_what_was_exported_imports_back_to_the_same_rows(tmp_path, form, dtype, feature_shape):
    store = varied(tmp_path / "s", dtype, feature_shape)
    report = export_features(store, form, place(tmp_path, form))
    assert (report.written, report.already, report.problems) == (7, 0, ())
    keys = dict(zip(*(store.view().table()[c].to_pylist() for c in ("video_id", "video_key")), strict=True))
    back = import_features(tmp_path / "back", place(tmp_path, form), name="back", video_keys=keys)
    assert back.imported == 7 and back.problems == ()
    again = FeatureStore.open(tmp_path / "back")
    assert again.digest() == store.digest() and again.dtype == store.dtype and again.verify() == []
    view = again.view()
    for video_id, length in store.view().lengths().items():
        row, copy = store.view().row(video_id), view.row(video_id)
        assert copy.damaged == row.damaged and len(copy.array) == length
        assert (copy.pts is None) == (row.pts is None)
        assert row.pts is None or np.array_equal(copy.pts, row.pts)


def test_hdf5_is_keyed_by_id_and_says_what_made_it(tmp_path):
    store = make(tmp_path / "s", 1, 2)
    export_features(store, "hdf5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert set(file) == {"v1", "v2"}
        assert np.array_equal(file["v2"][()], features(2)) and file["v2"].dtype == np.float16
        assert file["v2"].attrs["pts"].tolist() == times(store.view(), 2) and file["v2"].attrs["video_key"] == "k"
        note = json.loads(file.attrs["longtake_features"])
    assert note["provenance"] == store.provenance and note["videos"] == 2 and note["shape"] == ["L", D]


def test_npy_files_are_plain_and_a_note_says_what_made_them(tmp_path):
    store = make(tmp_path / "s", 1, 2)
    export_features(store, "npy", tmp_path / "out")
    assert np.array_equal(np.load(tmp_path / "out" / "v2.npy"), features(2))
    note = json.loads((tmp_path / "out" / EXPORT_NOTE).read_text())
    assert note["provenance"] == store.provenance and note["videos"] == 2
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".npy", ".npy", ".parquet"]


@pytest.mark.parametrize("form", FORMS)
def test_only_the_asked_ids_and_what_is_missing_is_listed(tmp_path, form):
    store = make(tmp_path / "s", 1, 2, 3)
    report = export_features(store, form, place(tmp_path, form), ids=["v3", "v1", "v9", "../v2"])
    assert report.written == 2 and kinds(report) == {"v9": "no_features", "../v2": "unsafe_id"}
    back = import_features(tmp_path / "back", place(tmp_path, form), name="back")
    assert back.imported == 2
    with pytest.raises(BadInput, match="none of the ids"):
        export_features(store, form, tmp_path / "none", ids=["v9"])
    with pytest.raises(BadInput, match="no rows to export"):
        export_features(make(tmp_path / "empty"), form, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("form", FORMS)
def test_a_second_export_does_nothing_and_other_content_is_never_replaced_unasked(tmp_path, form):
    store, target = make(tmp_path / "s", 1, 2), place(tmp_path, form)
    export_features(store, form, target)
    files = {path: path.stat().st_mtime_ns for path in [target, *tmp_path.glob("out/*.npy")]}
    assert export_features(store, form, target).summary().endswith("nothing to do, 2 already there")
    make(tmp_path / "s", 7, key="newer")
    with store.writer() as writer:
        writer.add("v2", "newer", features(4))
    if form == "npy":
        report = export_features(store, form, target)
        assert (report.written, report.already, kinds(report)) == (1, 1, {"v2": "exists"})
        assert np.array_equal(np.load(target / "v2.npy"), features(2))
    else:
        with pytest.raises(UsageError, match="pass --overwrite"):
            export_features(store, form, target)
    assert {path: path.stat().st_mtime_ns for path in files if path.is_file()} == {
        path: time for path, time in files.items() if path.is_file()
    }
    assert export_features(store, form, target, overwrite=True).written == (1 if form == "npy" else 3)
    back = FeatureStore.open(tmp_path / "back") if import_features(tmp_path / "back", target, name="b") else None
    assert back is not None and np.array_equal(back.view().read("v2"), features(4))


def test_the_parts_of_one_store_meet_in_one_folder_and_two_stores_do_not(tmp_path):
    store, out = make(tmp_path / "s", 1, 2), tmp_path / "out"
    export_features(store, "npy", out, ids=["v1"])
    export_features(store, "npy", out, ids=["v2"])
    import_features(tmp_path / "back", out, name="back")
    view = FeatureStore.open(tmp_path / "back").view()
    assert times(view, 1) == times(store.view(), 1) and times(view, 2) == times(store.view(), 2)
    other = FeatureStore.create(tmp_path / "o", provenance={"extractor_key": "net-2", "name": "other"})
    with other.writer() as writer:
        writer.add("v8", "k", features(8))
    with pytest.raises(UsageError, match="holds an export of other features, 'resnet'"):
        export_features(other, "npy", out, overwrite=True)
    assert not (out / "v8.npy").exists()


@pytest.mark.parametrize("form", FORMS)
def test_damaged_rows_are_left_out_and_come_with_the_next_export(tmp_path, form):
    store, target = make(tmp_path / "s", 1, 2), place(tmp_path, form)
    chunk = only_chunk(store)
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    report = export_features(store, form, target)
    assert report.written == 1 and kinds(report) == {"v2": "damaged_row"}
    chunk.write_bytes(whole)
    assert export_features(store, form, target, overwrite=True).problems == ()
    assert import_features(tmp_path / "back", target, name="back").imported == 2


def test_an_id_that_must_never_be_a_path_is_left_out(tmp_path):
    store = make(tmp_path / "s", 1)
    (name,) = segment_names(store.path)
    index = store.path / name / "index.parquet"
    table = pq.read_table(index)
    evil = table.set_column(0, INDEX_SCHEMA.field(0), [["../../escaped"]])
    pq.write_table(evil, index)  # a store that somebody else made
    make(tmp_path / "s", 2)
    for form in FORMS:
        report = export_features(store, form, place(tmp_path, form))
        assert report.written == 1 and kinds(report) == {"../../escaped": "unsafe_id"}
    assert not list(tmp_path.parent.glob("**/escaped*"))


def test_two_ids_with_one_file_are_noticed(tmp_path):
    store, out = make(tmp_path / "s", 1, 2), tmp_path / "out"
    out.mkdir()
    (out / "v2.npy").symlink_to("v1.npy")  # as where A and a are one name
    report = export_features(store, "npy", out, overwrite=True)
    assert report.written == 1 and kinds(report) == {"v2": "same_file"}
    assert np.array_equal(np.load(out / "v1.npy"), features(1))


@pytest.mark.parametrize("form", FORMS)
def test_another_export_to_the_same_place_is_refused_meanwhile(tmp_path, form):
    store, target = make(tmp_path / "s", 1, 2), place(tmp_path, form)
    refused = []

    def meanwhile(done: int, total: int) -> None:
        with pytest.raises(UsageError, match="another export holds"):
            export_features(store, form, target)
        refused.append(done)

    assert export_features(store, form, target, progress=meanwhile).written == 2 and refused == [1, 2]
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".partial", ".lock")]


EXPORT = """
import sys, time
from pathlib import Path
from storage.features.exporting import export_features
from storage.features.store import FeatureStore
print("ready", flush=True)
export_features(FeatureStore.open(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]), progress=lambda *_: time.sleep(0.01))
"""


@pytest.mark.parametrize("form", FORMS)
def test_a_killed_export_is_taken_up_again(tmp_path, form):
    store, target = make(tmp_path / "s", *range(60)), place(tmp_path, form)
    command = [sys.executable, "-c", EXPORT, str(store.path), form, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
    assert form == "npy" or not target.exists()
    before = len(list(tmp_path.glob("out/*.npy")))
    report = export_features(store, form, target)
    assert (report.written, report.already) == (60 - before, before) and report.problems == ()
    assert form == "hdf5" or 0 < before < 60
    back = import_features(tmp_path / "back", target, name="back", video_keys={f"v{n}": "k" for n in range(60)})
    assert back.digest == store.digest()
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".partial", ".lock")]
