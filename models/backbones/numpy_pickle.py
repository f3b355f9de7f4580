"""Pickles of numpy arrays, read without running anything: dicts, lists, numbers, text and arrays of numbers, and nothing else.

Such files are how nets of JAX and TensorFlow are passed on. What they name of numpy is replaced by classes of this module, which
only note down shape, type and bytes; any other name is refused."""

import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from models.backbones.weights import WeightsUnavailable, first_line

_TYPES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")

# What Python's unpickler meets a damaged or malicious file with.
_UNREADABLE = (pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError, ImportError, OverflowError)


class _Type:
    """What stands for numpy.dtype."""

    def __init__(self, text: object = "", *_: object):
        self.text, self.order = text, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def dtype(self) -> np.dtype[Any]:
        if self.text not in _TYPES or self.order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError(f"it holds an array of the type {self.text!r}, which is none of numbers")
        return np.dtype(f"{self.order}{self.text}")


class _Array:
    """What stands for numpy.ndarray."""

    found: np.ndarray | None = None

    def __init__(self, *_: object):
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, in_columns, raw = state
        if not isinstance(kind, _Type) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("it holds an array whose content is no plain numbers")
        flat = np.frombuffer(raw, kind.dtype())
        self.found = flat.reshape(shape, order="F" if in_columns else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _NumpyUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in _ARRAY_MODULES and name == "_reconstruct":
            return _reconstruct
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _Array if name == "ndarray" else _Type
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no numpy array")

    def persistent_load(self, _: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to something outside the file")


def read_arrays(path: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of a pickled dict of dicts, by their path in it, such as 'params/Mixed_3b/kernel'."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with path.open("rb") as file:
            _collect(_NumpyUnpickler(file).load(), "", arrays)
    except (*_UNREADABLE, OSError, RecursionError, MemoryError) as error:
        why = f"the file {path} holds no plain arrays for '{name}' ({first_line(error)})"
        raise WeightsUnavailable(f"{why}; nothing in it was run; get the published file again") from error
    return arrays


def _collect(found: Any, at: str, arrays: dict[str, np.ndarray]) -> None:
    if isinstance(found, dict):
        for key, value in found.items():
            _collect(value, f"{at}/{key}" if at else str(key), arrays)
    elif isinstance(found, _Array) and found.found is not None:
        arrays[at] = found.found
    else:
        raise pickle.UnpicklingError(f"'{at}' is neither a dict nor an array")
