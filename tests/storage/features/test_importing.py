"""Importing ready-made features: every form, every way a source can be wrong, and the second time."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from storage.errors import BadInput, Mismatch, UsageError
from storage.features.import_sources import MatrixPart
from storage.features.importing import import_features, imports
from storage.features.store import FeatureStore

D = 4


def values(n: int, length: int = 3) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(length, D)).astype(np.float16)


def kinds(report) -> dict[str, str]:
    return {problem.item: problem.kind for problem in report.problems}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Videos a, b, c of 1, 2, 3 steps as <id>.npy, beside a file that is none."""
    path = tmp_path / "given"
    path.mkdir()
    for n, video_id in enumerate("abc", 1):
        np.save(path / f"{video_id}.npy", values(n, n))
    (path / "README.txt").write_text("mine")
    return path


def as_npy(path: Path) -> dict[str, Path]:
    np.save(path / "all.npy", np.stack([values(1), values(2), values(3)]))
    (path / "ids.txt").write_text("a\nb\r\nc\n\n")
    return {"source": path / "all.npy", "ids": path / "ids.txt"}


def as_npz(path: Path) -> dict[str, Path]:
    np.savez(path / "all.npz", a=values(1), b=values(2), c=values(3))
    return {"source": path / "all.npz"}


def as_packed_npz(path: Path) -> dict[str, Path]:
    np.savez_compressed(path / "all.npz", a=values(1), b=values(2), c=values(3))
    return {"source": path / "all.npz"}


def as_folder(path: Path) -> dict[str, Path]:
    (path / "given").mkdir()
    for n, video_id in enumerate("abc", 1):
        np.save(path / "given" / f"{video_id}.npy", np.asfortranarray(values(n)))
    return {"source": path / "given"}


def as_hdf5(path: Path, pattern: str = "{}") -> dict[str, Path]:
    with h5py.File(path / "all.h5", "w") as file:
        for n, video_id in enumerate("abc", 1):
            file[pattern.format(video_id)] = values(n)
    return {"source": path / "all.h5"}


def as_hdf5_of_groups(path: Path) -> dict[str, Path]:
    return as_hdf5(path, "{}/c3d")


def as_hdf5_in_a_group(path: Path) -> dict[str, Path]:
    return as_hdf5(path, "features/{}")


@pytest.mark.parametrize("form", [as_folder, as_npy, as_npz, as_packed_npz, as_hdf5, as_hdf5_of_groups, as_hdf5_in_a_group])
def test_every_form_gives_the_same_rows(tmp_path, form):
    report = import_features(tmp_path / "s", **form(tmp_path), name="mine", known_ids=["a", "b", "c", "d"])
    view = FeatureStore.open(tmp_path / "s").view()
    assert (report.imported, report.already, report.unknown, report.missing, report.problems) == (3, 0, (), ("d",), ())
    for n, video_id in enumerate("abc", 1):
        assert np.array_equal(view.read(video_id), values(n))


def test_lengths_may_differ_and_what_was_done_is_recorded(tmp_path, folder):
    report = import_features(tmp_path / "s", folder, name="mine")
    store = FeatureStore.open(tmp_path / "s")
    assert store.view().lengths() == {"a": 1, "b": 2, "c": 3}
    assert store.provenance == {"extractor_key": "imported:mine", "kind": "imported", "name": "mine"}
    (note,) = imports(store)
    assert zarr.open_group(store.path, mode="r")["imports"]
    assert note.pop("time")
    assert note == {
        "imported": True,
        "name": "mine",
        "source": "given",
        "format": "folder of .npy",
        "content_hash": report.source_hash,
        "shape": ["L", D],
        "rows": 3,
    }
    assert report.digest == store.digest() and store.verify() == []
    assert set(store.view().table()["video_key"].to_pylist()) == {f"imported:{report.source_hash[:16]}"}


def test_vectors_become_one_step_and_ids_may_be_json(tmp_path):
    np.save(tmp_path / "all.npy", np.stack([values(1, 1)[0], values(2, 1)[0]]).astype(np.float64))
    (tmp_path / "ids.json").write_text(json.dumps(["a", "b"]))
    seen: list[tuple[int, int]] = []
    import_features(tmp_path / "s", tmp_path / "all.npy", ids=tmp_path / "ids.json", name="m", progress=lambda *x: seen.append(x))
    assert np.array_equal(FeatureStore.open(tmp_path / "s").view().read("b"), values(2, 1))
    assert seen == [(1, 2), (2, 2)]


def test_the_same_source_again_changes_nothing(tmp_path, folder):
    first = import_features(tmp_path / "s", folder, name="mine")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    again = import_features(tmp_path / "s", folder, name="mine")
    assert (again.imported, again.already, again.digest) == (0, 3, first.digest)
    assert again.summary() == "'mine': nothing to do, 3 already there"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")} == files


@pytest.mark.parametrize("video_keys", [None, {"a": "ka", "b": "kb", "c": "kc"}])
def test_another_source_replaces_the_rows_it_has_and_going_back_works(tmp_path, folder, video_keys):
    first = import_features(tmp_path / "s", folder, name="mine", video_keys=video_keys)
    np.save(folder / "a.npy", values(77, 5))
    (folder / "b.npy").rename(tmp_path / "b.npy")
    second = import_features(tmp_path / "s", folder, name="mine", video_keys=video_keys)
    view = FeatureStore.open(tmp_path / "s").view()
    assert second.source_hash != first.source_hash
    assert view.lengths() == {"a": 5, "b": 2, "c": 3}
    assert np.array_equal(view.read("a"), values(77, 5)) and np.array_equal(view.read("b"), values(2, 2))
    np.save(folder / "a.npy", values(1, 1))
    (tmp_path / "b.npy").rename(folder / "b.npy")
    assert import_features(tmp_path / "s", folder, name="mine", video_keys=video_keys).imported > 0
    view = FeatureStore.open(tmp_path / "s").view()
    assert np.array_equal(view.read("a"), values(1, 1))
    assert view.fresh(video_keys or {}) == set(video_keys or {})


def test_an_interrupted_import_goes_on(tmp_path, folder, monkeypatch):
    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(FeatureStore.writer, "__defaults__", (1, 0.0, None))  # every row is published at once
    with pytest.raises(KeyboardInterrupt):
        import_features(tmp_path / "s", folder, name="mine", progress=stop)
    assert imports(FeatureStore.open(tmp_path / "s")) == []
    report = import_features(tmp_path / "s", folder, name="mine")
    assert (report.imported, report.already) == (1, 2)
    assert report.digest == import_features(tmp_path / "at_once", folder, name="mine").digest


def test_bad_entries_are_listed_and_the_rest_goes_in(tmp_path, folder):
    np.save(folder / "wide.npy", np.ones((2, D + 1)))
    np.save(folder / "nan.npy", np.full((2, D), np.nan))
    np.save(folder / "huge.npy", np.full((2, D), 1e9))
    np.save(folder / "none.npy", np.ones(0))
    np.save(folder / "narrow.npy", np.ones((2, 0)))
    np.save(folder / "scalar.npy", np.float32(1))
    np.save(folder / "words.npy", np.array([["x", "y"]]))
    np.save(folder / "objects.npy", np.array([{}], object), allow_pickle=True)
    (folder / "text.npy").write_text("not an array")
    (folder / "cut.npy").write_bytes((folder / "c.npy").read_bytes()[:-2])
    np.save(folder / ".hidden.npy", values(1))
    np.save(folder / "stranger.npy", values(1))
    known = {path.stem for path in folder.glob("*.npy")} - {"stranger"} | {"absent"}
    report = import_features(tmp_path / "s", folder, name="mine", known_ids=known)
    assert report.imported == 3 and report.unknown == ("stranger",)
    assert kinds(report) == {
        "wide": "bad_features",
        "nan": "bad_features",
        "huge": "bad_features",
        "none": "empty",
        "narrow": "empty",
        "scalar": "empty",
        "words": "unreadable",
        "objects": "unreadable",
        "text": "unreadable",
        "cut": "unreadable",
        ".hidden": "unsafe_id",
    }
    assert {"absent", "nan", "objects"} <= set(report.missing)
    assert "pickled" in next(problem.reason for problem in report.problems if problem.item == "objects")
    assert FeatureStore.open(tmp_path / "s").view().lengths() == {"a": 1, "b": 2, "c": 3}


def test_bad_ids_beside_one_npy_are_listed(tmp_path):
    np.save(tmp_path / "all.npy", np.stack([values(n) for n in range(4)]))
    (tmp_path / "ids.txt").write_text("a\n../../etc/passwd\n\na\n")
    report = import_features(tmp_path / "s", tmp_path / "all.npy", ids=tmp_path / "ids.txt", name="mine")
    assert report.imported == 1
    assert kinds(report) == {"../../etc/passwd": "unsafe_id", "": "unsafe_id", "a": "duplicate"}
    assert np.array_equal(FeatureStore.open(tmp_path / "s").view().read("a"), values(0))


def test_links_and_foreign_values_in_hdf5_are_left_out(tmp_path):
    as_hdf5(tmp_path)
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = values(9)
    with h5py.File(tmp_path / "all.h5", "a") as file:
        file["outside"] = h5py.ExternalLink("secret.h5", "/x")
        file["words"] = ["one", "two"]
    report = import_features(tmp_path / "s", tmp_path / "all.h5", name="mine")
    assert report.imported == 3 and kinds(report) == {"outside": "link", "words": "not_numbers"}


def test_several_data_sets_in_each_group_are_refused(tmp_path):
    as_hdf5(tmp_path, "{}/c3d")
    with h5py.File(tmp_path / "all.h5", "a") as file:
        file["a/other"] = values(1)
    with pytest.raises(BadInput, match="which one is wanted"):
        import_features(tmp_path / "s", tmp_path / "all.h5", name="mine")


def broken(path: Path, name: str, content: bytes) -> Path:
    (path / name).write_bytes(content)
    return path / name


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.h5"])
@pytest.mark.parametrize("content", [b"", b"plain text, no features at all"])
def test_a_file_that_is_not_what_its_name_says(tmp_path, name, content):
    source = broken(tmp_path, name, content)
    ids = broken(tmp_path, "ids.txt", b"a\n") if name == "x.npy" else None
    with pytest.raises(BadInput, match=f"cannot read .*{name}"):
        import_features(tmp_path / "s", source, ids=ids, name="mine")
    assert not (tmp_path / "s").exists()


def test_wrong_calls_say_what_is_wanted(tmp_path, folder):
    given = as_npy(tmp_path)
    (tmp_path / "few.txt").write_text("a\n")
    (tmp_path / "map.json").write_text('{"a": 1}')
    (tmp_path / "bare").mkdir()
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    cases = [
        ({"source": tmp_path / "nowhere"}, BadInput, "there is no"),
        ({"source": tmp_path / "few.txt"}, BadInput, "known are a folder"),
        ({"source": tmp_path / "bare"}, BadInput, "no .npy file lies in"),
        ({"source": given["source"]}, UsageError, "--ids FILE"),
        ({"source": folder, "ids": given["ids"]}, UsageError, "leave out --ids"),
        ({"source": given["source"], "ids": tmp_path / "few.txt"}, BadInput, "has 1 ids"),
        ({"source": given["source"], "ids": tmp_path / "gone.txt"}, BadInput, "cannot read the ids"),
        ({"source": given["source"], "ids": tmp_path / "map.json"}, BadInput, "no list of strings"),
        ({"source": tmp_path / "objects.npy", "ids": given["ids"]}, BadInput, "pickled Python objects"),
        ({"source": folder, "known_ids": ["x"]}, BadInput, "such as 'a', but the data set's are such as 'x'"),
    ]
    for arguments, error, words in cases:
        with pytest.raises(error, match=words):
            import_features(tmp_path / "s", name="mine", **arguments)
        assert not (tmp_path / "s").exists()


def test_another_width_needs_another_name(tmp_path, folder):
    import_features(tmp_path / "s", folder, name="mine")
    np.savez(tmp_path / "wide.npz", a=np.ones((2, D + 1)))
    with pytest.raises(Mismatch, match="import it under another name"):
        import_features(tmp_path / "s", tmp_path / "wide.npz", name="mine")


@pytest.fixture
def matrix(tmp_path: Path) -> dict[str, Path]:
    """W, A and C of three videos beside each other, as GL-RG's authors publish them: 2, 3 and 4 columns of 'feats'."""
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file["feats"] = np.arange(27, dtype=np.float32).reshape(3, 9)
        file["labels"] = np.array([b"one", b"two", b"three"])
        file["elsewhere"] = h5py.SoftLink("/feats")
    (tmp_path / "ids.txt").write_text("vid1\nvid2\nvid3\n")
    return {"source": tmp_path / "all.h5", "ids": tmp_path / "ids.txt"}


@pytest.mark.parametrize(("columns", "first", "end"), [("0:2", 0, 2), ("2:5", 2, 5), ("5:9", 5, 9), (None, 0, 9)])
def test_columns_of_one_hdf5_matrix_become_a_row_per_id(
    tmp_path: Path, matrix: dict[str, Path], columns: str | None, first: int, end: int
) -> None:
    part = MatrixPart.parse("feats", columns)
    report = import_features(tmp_path / "store", **matrix, name="words", part=part)
    assert report.imported == 3 and report.feature_shape == (end - first,)
    view = FeatureStore.open(tmp_path / "store").view()
    for n in range(3):
        (found,) = view.read(f"vid{n + 1}", f"imported:{report.source_hash[:16]}")
        assert found.tolist() == [9 * n + column for column in range(first, end)]
    assert import_features(tmp_path / "store", **matrix, name="words", part=part).already == 3


def test_columns_of_an_npy_can_be_chosen_too(tmp_path: Path) -> None:
    report = import_features(tmp_path / "store", **as_npy(tmp_path), name="m", part=MatrixPart(columns=(1, 3)))
    found = FeatureStore.open(tmp_path / "store").view().read("b", f"imported:{report.source_hash[:16]}")
    assert np.array_equal(found, values(2)[:, 1:3])


@pytest.mark.parametrize(
    ("part", "error", "said"),
    [
        (MatrixPart("feat"), BadInput, "has no data set 'feat'; there are"),
        (MatrixPart("elsewhere"), BadInput, "has no data set 'elsewhere'"),
        (MatrixPart("labels"), BadInput, "no array of numbers"),
        (MatrixPart("feats", (5, 10)), BadInput, "rows of 9 columns: there is no column 9"),
        (MatrixPart(None, (0, 2)), UsageError, "leave out --ids, or name the array"),
    ],
)
def test_a_matrix_that_is_not_there_is_told_with_what_is(
    tmp_path: Path, matrix: dict[str, Path], part: MatrixPart, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        import_features(tmp_path / "store", **matrix, name="m", part=part)


def test_one_array_needs_ids_and_columns_are_written_with_a_colon(tmp_path: Path, matrix: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="give the ids of its rows"):
        import_features(tmp_path / "store", matrix["source"], name="m", part=MatrixPart("feats"))
    for wrong in ("300", "3:3", "a:b", "-1:4"):
        with pytest.raises(UsageError, match="such as 0:300"):
            MatrixPart.parse("feats", wrong)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "a.npy", values(1))
    with pytest.raises(UsageError, match="leave them out"):
        import_features(tmp_path / "store", tmp_path / "folder", name="m", part=MatrixPart(columns=(0, 2)))
