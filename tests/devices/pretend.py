"""A pretend GPU: tensors that lie on the CPU and say "cuda", for tests on machines without a card.

Inside `pretend_gpu()` everything that is put on "cuda" becomes a PretendTensor. Operations on one run on the CPU; one that mixes
it with a CPU tensor of one or more dimensions raises MixedDevices, and so does a CPU index, which a real card would accept
after a copy. It counts what makes a host wait for a real card: values that are read, copies that do not say `non_blocking`, and
operations whose result has a size that only the card knows. To torch's C++ code these tensors are on "meta", which needs no
driver; what a driver alone can do (streams, pinned memory, autocast, cuDNN) is not pretended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
aten = torch.ops.aten

# Operations after which the host has to know a number that the device has.
_WAITS = {
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive,
    aten.bincount, aten.multinomial, aten.equal, aten.repeat_interleave, aten.is_nonzero, aten.argwhere,
}  # fmt: skip
_COPIES = {aten._to_copy, aten.copy_, aten._copy_from}
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
_CPU_LENGTHS = {aten._pack_padded_sequence}  # its lengths belong on the CPU
_READERS = {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__}
_BUILDERS = {torch.tensor, torch.as_tensor, torch.Tensor.new_tensor, torch.asarray}


class MixedDevices(RuntimeError):
    """An operation got tensors of two devices."""


class PretendTensor(torch.Tensor):
    """A CPU tensor, `inner`, that says it is on a GPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> PretendTensor:
        how = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype, "device": "meta"}
        self: PretendTensor = torch.Tensor._make_wrapper_subclass(cls, inner.size(), **how, requires_grad=inner.requires_grad)
        self.inner = inner
        return self

    device = property(lambda self: GPU)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise MixedDevices(f"{func} was called on a pretended GPU outside of pretend_gpu()")


class Dispatches(TorchDispatchMode):
    """Runs operations of the pretended GPU on the CPU, and counts them, and the times that the host waits."""

    def __init__(self, strict: bool) -> None:
        super().__init__()
        self.strict, self.operations = strict, 0
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.overloadpacket
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        mine = [x for x in tensors if isinstance(x, PretendTensor)]
        device = kwargs.get("device")
        to_gpu = device is not None and torch.device(device).type == "meta"
        if not mine and not to_gpu:
            return func(*args, **kwargs)
        self.operations += 1
        off = [x for x in tensors if not isinstance(x, PretendTensor) and x.dim()]
        if name in _COPIES:
            self._count_copy(func, args, kwargs, mine, off or [x for x in tensors if not isinstance(x, PretendTensor)])
        elif mine and off and name in _INDEXING and not self.strict:
            self.waits["CPU index"] += 1
        elif mine and off and name not in _CPU_LENGTHS:
            shapes = ", ".join(f"{'GPU' if isinstance(x, PretendTensor) else 'CPU'} {tuple(x.shape)}" for x in tensors)
            raise MixedDevices(f"{func} mixes devices: {shapes}")
        elif name in _WAITS or _mask_index(name, args):
            self.waits[str(name)] += 1
        if device is not None:
            kwargs["device"] = "cpu"
        inner = tree_map(lambda x: x.inner if isinstance(x, PretendTensor) else x, (args, kwargs))
        if name is aten.copy_ and inner[0][0].data_ptr() == inner[0][1].data_ptr():
            return args[0]  # a view of itself: torch cannot see that, as wrappers have no storage
        found = func(*inner[0], **inner[1])
        if name in (aten._local_scalar_dense,) or (name is aten._to_copy and device is not None and not to_gpu):
            return found
        if name in _CPU_LENGTHS:  # and so does what it says of the lengths
            return PretendTensor(found[0]), found[1]
        if torch.Tag.inplace_view in func.tags:  # such as transpose_: the wrapper's own shape changes too
            with no_dispatch():
                func(*args, **kwargs)
        if func._schema.is_mutable:  # in place, or into `out`
            written = _written(func, args, kwargs)
            return written[0] if len(written) == 1 else tuple(written)
        return tree_map(lambda x: PretendTensor(x) if isinstance(x, torch.Tensor) else x, found)

    def _count_copy(self, func: Any, args: Any, kwargs: Any, mine: list[Any], others: list[Any]) -> None:
        blocking = not (kwargs.get("non_blocking") or (func.overloadpacket is aten.copy_ and len(args) > 2 and args[2]))
        device = kwargs.get("device")
        crosses = (bool(mine) and device is not None and torch.device(device).type == "cpu") or bool(others)
        if crosses and blocking:
            self.waits["copy"] += 1


class Devices(TorchFunctionMode):
    """Takes "cuda" for the pretended GPU wherever torch is called with it."""

    def __init__(self, dispatches: Dispatches):
        super().__init__()
        self.dispatches = dispatches

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _READERS and isinstance(args[0], PretendTensor):
            self.dispatches.waits[func.__name__] += 1
            return func(args[0].detach().inner, *args[1:], **kwargs)
        if func in _BUILDERS:
            device = kwargs.pop("device", args[0].device if func is torch.Tensor.new_tensor else None)
            made = func(args[0].inner if isinstance(args[0], PretendTensor) else args[0], *args[1:], **kwargs)
            return made if device is None else made.to(_as_meta(device))
        if func is torch.Tensor.is_pinned:
            return False
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            args = (args[0], _index(args[1]), *args[2:])
        args, kwargs = tree_map(_as_meta, (args, kwargs))
        return func(*args, **kwargs)


@contextmanager
def pretend_gpu(strict: bool = True) -> Iterator[Dispatches]:
    """Inside, "cuda" is a pretended GPU; yields what counts its operations and synchronisations. Not strict: a CPU index
    counts as a synchronisation, which it is."""
    dispatches = Dispatches(strict)
    without_inference_mode = patch.object(torch, "inference_mode", torch.no_grad)  # wrappers cannot be made in it
    with torch.backends.cudnn.flags(enabled=False), without_inference_mode, dispatches, Devices(dispatches):
        yield dispatches


def on_cpu(x: Any) -> Any:
    """The value with its pretended tensors as plain ones."""
    return tree_map(lambda t: t.inner.detach().clone() if isinstance(t, PretendTensor) else t, x)


def _as_meta(x: Any) -> Any:
    if isinstance(x, str) and x.partition(":")[0] == "cuda":
        return "meta"
    return torch.device("meta") if isinstance(x, torch.device) and x.type == "cuda" else x


def _index(index: Any) -> Any:
    """A list is a CPU index; on "meta" torch would make one without values of it."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    return torch.tensor(index) if isinstance(index, list) else index


def _mask_index(name: Any, args: Any) -> bool:
    """Whether this is an index by a mask whose true entries must be counted. One value for all is filled in without."""
    if name not in _INDEXING:
        return False
    masks = any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return masks and (name is aten.index or args[2].numel() != 1)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    return [named[a.name] for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
