"""Inception-I3D of Carreira and Zisserman (2017), RGB, as DeepMind trained it on Kinetics-400: clips in, 1024 features out.

Convolutions and poolings pad as TensorFlow's "SAME" does: on the far side by one more where the padding is odd. Modules have the
names of the paper's end points."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.weights import load_net

CLASSES = 400
"""Actions of Kinetics."""
FEATURES = 1024
MIXED = {
    "Mixed_3b": (192, (64, 96, 128, 16, 32, 32)),
    "Mixed_3c": (256, (128, 128, 192, 32, 96, 64)),
    "Mixed_4b": (480, (192, 96, 208, 16, 48, 64)),
    "Mixed_4c": (512, (160, 112, 224, 24, 64, 64)),
    "Mixed_4d": (512, (128, 128, 256, 24, 64, 64)),
    "Mixed_4e": (512, (112, 144, 288, 32, 64, 64)),
    "Mixed_4f": (528, (256, 160, 320, 32, 128, 128)),
    "Mixed_5b": (832, (256, 160, 320, 32, 128, 128)),
    "Mixed_5c": (832, (384, 192, 384, 48, 128, 128)),
}
"""Inception module -> the channels that come in, and those of its six convolutions: branch 0; 1a, 1b; 2a, 2b; 3"""
_POOLED_BEFORE = {"Mixed_3b": ((1, 3, 3), (1, 2, 2)), "Mixed_4b": ((3, 3, 3), (2, 2, 2)), "Mixed_5b": ((2, 2, 2), (2, 2, 2))}
_Size = tuple[int, int, int]


def pad_same(x: Tensor, kernel: _Size, stride: _Size) -> Tensor:
    """(N, C, T, H, W) with zeros around, so that a window of `kernel` every `stride` gives T / stride ... places, rounded up."""
    pads: list[int] = []
    for size, k, s in zip(x.shape[2:], kernel, stride, strict=True):
        length = int(size)  # also while it is traced
        missing = max(0, (-(-length // s) - 1) * s + k - length)
        pads = [missing // 2, missing - missing // 2, *pads]  # torch wants the last dimension first
    return functional.pad(x, pads) if any(pads) else x


class ConvUnit(nn.Module):
    """A convolution, a batch norm without scale, and ReLU."""

    def __init__(self, channels: int, width: int, kernel: int, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv3d(channels, width, kernel, stride, bias=False)
        self.bn = nn.BatchNorm3d(width, eps=1e-3)  # its weight stays 1
        self._kernel, self._stride = (kernel,) * 3, (stride,) * 3

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(pad_same(x, self._kernel, self._stride))).relu_()


class Inception(nn.Module):
    """Four branches side by side: 1x1; 1x1 and 3x3, twice; pooling and 1x1."""

    def __init__(self, channels: int, widths: tuple[int, ...]):
        super().__init__()
        self.branch0 = ConvUnit(channels, widths[0], 1)
        self.branch1 = nn.Sequential(ConvUnit(channels, widths[1], 1), ConvUnit(widths[1], widths[2], 3))
        self.branch2 = nn.Sequential(ConvUnit(channels, widths[3], 1), ConvUnit(widths[3], widths[4], 3))
        self.branch3 = ConvUnit(channels, widths[5], 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, T, H, W) -> (N, C', T, H, W)"""
        pooled = _max_pool(x, (3, 3, 3), (1, 1, 1))
        return torch.cat([self.branch0(x), self.branch1(x), self.branch2(x), self.branch3(pooled)], 1)


class InceptionI3d(nn.Module):
    """Clips (N, 3, T, 224, 224) of levels from -1 to 1 -> pooled (N, 1024), logits (N, 400); T is 8 or more."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = ConvUnit(3, 64, 7, stride=2)
        self.Conv3d_2b_1x1 = ConvUnit(64, 64, 1)
        self.Conv3d_2c_3x3 = ConvUnit(64, 192, 3)
        for name, (channels, widths) in MIXED.items():
            self.add_module(name, Inception(channels, widths))
        self.Logits = nn.Linear(FEATURES, CLASSES)
        for module in self.modules():  # random weights under which features neither vanish nor explode
            if isinstance(module, nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        x = _max_pool(self.Conv3d_1a_7x7(clips), (1, 3, 3), (1, 2, 2))
        x = self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x))
        for name in MIXED:
            if name in _POOLED_BEFORE:
                x = _max_pool(x, *_POOLED_BEFORE[name])
            x = self.get_submodule(name)(x)
        # Windows of two time steps, as published: steps within the clip count twice, its first and last once.
        steps, height, width = (int(size) for size in x.shape[2:])
        pooled = functional.avg_pool3d(x, (min(2, steps), height, width), stride=1).mean((2, 3, 4))
        # The mean over time of the logits is the logits of the mean: a linear layer.
        return pooled, self.Logits(pooled)


def _max_pool(x: Tensor, kernel: _Size, stride: _Size) -> Tensor:
    """As TensorFlow's "SAME": what comes in was through a ReLU, so zeros around it change no maximum."""
    return functional.max_pool3d(pad_same(x, kernel, stride), kernel, stride)


class I3dBackbone:
    """Clips of 16 frames, or of any other number from 8 on; it was trained on 64, at 25 frames per second."""

    preprocessing: Preprocessing | None = Preprocessing(short=256, crop=(224, 224))
    clip: int | None = 16
    outputs: Mapping[str, tuple[int, ...]] = {"pooled": (FEATURES,), "classes": (CLASSES,)}

    def __init__(self, name: str, net: InceptionI3d):
        self.name = name
        self.net: nn.Module = net.eval().requires_grad_(False).to(memory_format=torch.channels_last_3d)

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, T, 224, 224, 3) uint8 -> pooled (N, 1024), classes (N, 400): the probabilities of Kinetics' actions."""
        levels = items.permute(0, 4, 1, 2, 3).float().div_(127.5).sub_(1)
        pooled, logits = self.net(levels)
        return {"pooled": pooled.float(), "classes": logits.float().softmax(1)}


def load(name: str, weights: Path | None, seed: int) -> Backbone:
    """The net with the weights of a file that 'longtake weights import' converted, or random ones of the seed."""
    return I3dBackbone(name, load_net(InceptionI3d, name, weights, seed))
