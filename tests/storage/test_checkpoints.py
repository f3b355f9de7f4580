"""Checkpoints: what goes in comes out, equal content is equal bytes, and a stranger's file runs nothing."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save_file

from storage.checkpoints import Checkpoint, LastCheckpoints
from storage.errors import Mismatch, StorageError

TENSORS: dict[str, np.ndarray] = {
    "model.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "model.steps": np.array(7, dtype=np.int64),
    "optimiser.moment": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "rng": np.arange(5, dtype=np.uint8),
    "empty": np.zeros((0, 4), np.float16),
}
VALUES = {"vocabulary": "abc", "history": [{"loss": 0.1 + 0.2}], "words": ["größe"], "best": None, "done": True}


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=True))


def test_tensors_and_values_survive_with_type_and_shape(tmp_path: Path) -> None:
    Checkpoint(TENSORS, VALUES).save(tmp_path / "a.safetensors")
    loaded = Checkpoint.load(tmp_path / "a.safetensors")
    assert loaded.values == VALUES
    assert {name: (a.dtype, a.shape) for name, a in loaded.tensors.items()} == {
        name: (a.dtype, a.shape) for name, a in TENSORS.items()
    }
    assert all(equal(loaded.tensors[name], TENSORS[name]) for name in TENSORS)


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__" and name.isprintable()),
        arrays.arrays(
            st.sampled_from([np.float16, np.float32, np.float64, np.int32, np.int64, np.bool_]),
            arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
        ),
        max_size=3,
    )
)
def test_any_tensors_survive(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray]) -> None:
    path = tmp_path_factory.getbasetemp() / f"any-{os.getpid()}.safetensors"
    Checkpoint(tensors, {}).save(path)
    loaded = Checkpoint.load(path).tensors
    assert loaded.keys() == tensors.keys() and all(equal(loaded[name], tensors[name]) for name in tensors)


def test_equal_content_is_equal_bytes(tmp_path: Path) -> None:
    Checkpoint(TENSORS, VALUES).save(tmp_path / "a")
    Checkpoint({name: TENSORS[name].copy() for name in reversed(TENSORS)}, dict(VALUES)).save(tmp_path / "b")
    loaded = Checkpoint.load(tmp_path / "a")
    loaded.save(tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    Checkpoint(TENSORS, {**VALUES, "done": False}).save(tmp_path / "d")
    assert (tmp_path / "a").read_bytes() != (tmp_path / "d").read_bytes()


def test_a_prefix_chooses_tensors(tmp_path: Path) -> None:
    Checkpoint(TENSORS, VALUES).save(tmp_path / "a")
    loaded = Checkpoint.load(tmp_path / "a", prefix="model.")
    assert set(loaded.tensors) == {"model.weight", "model.steps"} and loaded.values == VALUES


def test_saving_over_a_checkpoint_keeps_the_old_one_until_the_new_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    Checkpoint(TENSORS, VALUES).save(path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        Checkpoint(TENSORS, {"bad": object()}).save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_named_with_what_to_do(tmp_path: Path, share: float) -> None:
    path = tmp_path / "a.safetensors"
    Checkpoint(TENSORS, VALUES).save(path)
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(StorageError, match=r"a\.safetensors is damaged .*; remove it and run again"):
        Checkpoint.load(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 64, b"\xff" * 64, b"PK\x03\x04" + b"0" * 60])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        Checkpoint.load(tmp_path / "a")


def test_a_foreign_safetensors_file_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "plain")
    save_file(TENSORS, tmp_path / "other", metadata={"format": "pt"})
    for name in ("plain", "other"):
        with pytest.raises(StorageError, match=rf"{name} is not a Longtake checkpoint; choose one"):
            Checkpoint.load(tmp_path / name)


@pytest.mark.parametrize("values", ["{", "[]", "3"])
def test_a_header_that_is_no_mapping_is_refused(tmp_path: Path, values: str) -> None:
    save_file(TENSORS, tmp_path / "a", metadata={"longtake-checkpoint-1": values})
    with pytest.raises(StorageError, match="is damaged"):
        Checkpoint.load(tmp_path / "a")


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no checkpoint at .*never; run"):
        Checkpoint.load(tmp_path / "never")
    with pytest.raises(StorageError, match=str(tmp_path)):
        Checkpoint.load(tmp_path)


class _Trap:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trap, path = tmp_path / "sprung", tmp_path / "weights.safetensors"
    path.write_bytes(pickle.dumps(_Trap(trap), protocol=protocol))
    with pytest.raises(StorageError, match="is damaged"):
        Checkpoint.load(path)
    assert not trap.exists()
    pickle.loads(path.read_bytes())
    assert trap.exists(), "the trap is a real one"


def test_a_checkpoint_of_another_vocabulary_is_refused_naming_both() -> None:
    checkpoint = Checkpoint({}, {"vocabulary": "a" * 32, "features": "f" * 32})
    checkpoint.expect(vocabulary="a" * 32, features="f" * 32)
    with pytest.raises(Mismatch, match=f"trained with vocabulary {'a' * 12}, not {'b' * 12}; .*train again"):
        checkpoint.expect(vocabulary="b" * 32)
    with pytest.raises(Mismatch, match=f"trained with tagger None, not {'c' * 12}"):
        checkpoint.expect(tagger="c" * 32)


def test_the_last_few_are_kept_and_the_newest_that_can_be_read_is_loaded(tmp_path: Path) -> None:
    kept = LastCheckpoints(tmp_path / "last.safetensors", keep=3)
    assert kept.load() is None and kept.paths() == []
    for step in range(12):
        kept.save(Checkpoint(TENSORS, {"step": step}))
    assert [Checkpoint.load(path).values["step"] for path in kept.paths()] == [11, 10, 9]
    assert [path.name for path in kept.paths()] == ["last.safetensors", "last-2.safetensors", "last-3.safetensors"]
    (tmp_path / "last.safetensors").write_bytes(b"")
    found = LastCheckpoints(tmp_path / "last.safetensors").load()
    assert found is not None and found.values["step"] == 10, "whoever keeps one now still finds the older ones"
    for path in kept.paths():
        path.write_bytes(b"not a checkpoint")
    with pytest.raises(StorageError, match=r"last\.safetensors is damaged"):
        kept.load()
    kept.remove()
    assert list(tmp_path.iterdir()) == []
