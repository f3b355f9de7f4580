"""VGGish of Hershey et al. (2017): what a second of sound is like, named such that the public torch weights fit by name."""

from collections.abc import Mapping
from itertools import chain, pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.weights import load_net

PATCH = (96, 64)
"""Spectra and mel bands of one item: 0.96 s of sound."""
EMBEDDING = 128

_CHANNELS = ((64,), (128,), (256, 256), (512, 512))  # each group of convolutions ends in a halving


class VGGish(nn.Module):
    """Patches (N, 1, 96, 64) -> embeddings (N, 128)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for group in _CHANNELS:
            for channels in group:
                layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True)]
                before = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        sizes = (before * (PATCH[0] // 16) * (PATCH[1] // 16), 4096, 4096, EMBEDDING)
        linear = ((nn.Linear(size, after), nn.ReLU(inplace=True)) for size, after in pairwise(sizes))
        self.embeddings = nn.Sequential(*chain(*linear))
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # Random weights that let the sound through all nine layers; torch's own make it fade.
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, patches: Tensor) -> Tensor:
        # The weights were learnt with channels last: time, band, channel is the order of a row.
        return self.embeddings(self.features(patches).permute(0, 2, 3, 1).flatten(1))


class SoundBackbone:
    """A feature for each 0.96 s: the embedding after its last ReLU, without the PCA and 8-bit rounding of AudioSet's files."""

    preprocessing: Preprocessing | None = None
    clip: int | None = None
    outputs: Mapping[str, tuple[int, ...]] = {"embedding": (EMBEDDING,)}

    def __init__(self, name: str, net: VGGish):
        self.name = name
        self.net: nn.Module = net.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, 96, 64) float32 log-mel patches -> embedding (N, 128)."""
        return {"embedding": self.net(items.contiguous()[:, None]).float()}


def load(name: str, weights: Path | None, seed: int) -> Backbone:
    """The net with the weights of a file, such as the public vggish-10086976.pth, or random ones of the seed."""
    return SoundBackbone(name, load_net(VGGish, name, weights, seed))
