"""Weights of backbones: seeded, or read from a file that can hold nothing but tensors."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises when it refuses; nothing is unpickled here
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

Net = TypeVar("Net", bound=nn.Module)

# Torch's safe reader meets a damaged or malicious file with any of these.
_UNREADABLE = (UnpicklingError, SafetensorError, OSError, EOFError, RuntimeError, LookupError, ValueError, TypeError)


class WeightsUnavailable(RuntimeError):
    """Weights that cannot be had or do not fit: says which, from where, and what to do instead."""


def seeded(build: Callable[[], Net], seed: int) -> Net:
    """A net with random weights that depend on the seed alone; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def read_state(path: Path, name: str) -> dict[str, Tensor]:
    """The state dict in a .safetensors or .pth file, unwrapped from a 'state_dict' entry and a 'module.' prefix."""
    if not path.is_file():
        raise WeightsUnavailable(f"no weights of '{name}' at {path}; give the path of a .safetensors or .pth file")
    found: Any
    try:
        safe = path.suffix.lower() == ".safetensors"
        found = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        why = f"the file {path} holds no plain weights of '{name}' ({first_line(error)})"
        advice = "it is damaged, or more than tensors is pickled in it; save the net's state dict alone, best as .safetensors"
        raise WeightsUnavailable(f"{why}: {advice}") from error
    for wrapper in ("state_dict", "model"):  # where training scripts put the state dict among other things
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict):
        return {}
    tensors = {str(key): value for key, value in found.items() if isinstance(value, Tensor)}
    return {key.removeprefix("module.").removeprefix("_orig_mod."): value for key, value in tensors.items()}


def fill(net: nn.Module, state: Mapping[str, Tensor], name: str, path: Path) -> None:
    """Load all weights of the net by name; what else is in the file, such as a classifier, is left aside."""
    # Counters of training steps: eval mode never reads them, and files from before PyTorch 0.4.1 have none.
    wanted = {key: t for key, t in net.state_dict().items() if not key.endswith(".num_batches_tracked")}
    wrong = sorted(key for key, t in wanted.items() if getattr(state.get(key), "shape", None) != t.shape)
    if wrong:
        why = f"{len(wrong)} of {len(wanted)} weights are missing or of another shape, such as {wrong[0]}"
        raise WeightsUnavailable(f"the file {path} does not fit '{name}': {why}; give weights of this very net")
    net.load_state_dict({key: state[key] for key in wanted}, strict=False)


def load_net(build: Callable[[], Net], name: str, weights: Path | None, seed: int) -> Net:
    """The net with the weights of a file, or random ones of the seed."""
    net = seeded(build, seed)
    if weights is not None:
        fill(net, read_state(weights, name), name, weights)
    return net


def digest(net: nn.Module) -> str:
    """blake2b over names, shapes and bytes of all weights, in the order of their names."""
    return digest_state(net.state_dict())


def digest_state(state: Mapping[str, Tensor]) -> str:
    """The same of a state dict."""
    hashed = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(state.items()):
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashed.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
