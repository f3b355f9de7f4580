"""How the score kernels are compiled: once, without the interpreter's lock, on one thread, and kept on disk. A kernel never calls
one of another file: numba keeps compiled code by the file of the caller and would not see that the callee changed."""

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call. Where neither the code's folder nor a cache folder can be written, each process compiles."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        return numba.njit(nogil=True)(function)
