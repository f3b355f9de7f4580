"""The 3D ResNeXt-101 of Hara, Kataoka and Satoh (2018), named such that the weights that they published fit by name."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.weights import load_net

GROUPS = 32
"""Every 3x3x3 convolution is cut into this many, side by side (the net's cardinality)."""
DEPTHS = (3, 4, 23, 3)
WIDTHS = (128, 256, 512, 1024)
"""Blocks of each of the four stages, and the channels inside them; twice as many leave a block."""
CLASSES = 400
"""Actions of Kinetics."""
MEAN = (114.7748, 107.7354, 99.4750)
"""What training subtracted from red, green and blue, 0 to 255; it divided by nothing."""


class Block(nn.Module):
    """Narrow, look around in groups, widen; added to what came in, which is fitted where its shape changes (type B)."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv3d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm3d(width)
        self.conv2 = nn.Conv3d(width, width, 3, stride, padding=1, groups=GROUPS, bias=False)
        self.bn2 = nn.BatchNorm3d(width)
        self.conv3 = nn.Conv3d(width, 2 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm3d(2 * width)
        self.downsample: nn.Sequential | None = None
        if stride > 1 or channels != 2 * width:
            fit = nn.Conv3d(channels, 2 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(fit, nn.BatchNorm3d(2 * width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, T, H, W) -> (N, 2 * width, T / stride, H / stride, W / stride), rounded up."""
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y)).relu_()
        return self.bn3(self.conv3(y)).add_(x if self.downsample is None else self.downsample(x)).relu_()


class ResNeXt3d(nn.Module):
    """Clips (N, 3, T, H, W) -> pooled (N, 2048), logits (N, 400)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(3, 64, 7, stride=(1, 2, 2), padding=3, bias=False)
        self.bn1 = nn.BatchNorm3d(64)
        self.maxpool = nn.MaxPool3d(3, stride=2, padding=1)
        self.layer1 = _stage(64, WIDTHS[0], DEPTHS[0], stride=1)
        self.layer2 = _stage(2 * WIDTHS[0], WIDTHS[1], DEPTHS[1], stride=2)
        self.layer3 = _stage(2 * WIDTHS[1], WIDTHS[2], DEPTHS[2], stride=2)
        self.layer4 = _stage(2 * WIDTHS[2], WIDTHS[3], DEPTHS[3], stride=2)
        self.fc = nn.Linear(2 * WIDTHS[3], CLASSES)
        # Random weights under which features stay near one, as half precision wants: the stem takes in levels up to 255,
        # and each of 33 blocks adds a little to what passes by.
        for module in self.modules():
            if isinstance(module, nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            elif isinstance(module, Block):
                nn.init.constant_(module.bn3.weight, 0.25)
        nn.init.constant_(self.bn1.weight, 1 / 64)

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        x = self.maxpool(self.bn1(self.conv1(clips)).relu_())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        pooled = x.mean((2, 3, 4))  # over whatever is left: 1x4x4 of 16 or of 8 frames, more of longer clips
        return pooled, self.fc(pooled)


def _stage(channels: int, width: int, depth: int, stride: int) -> nn.Sequential:
    rest = (Block(2 * width, width, stride=1) for _ in range(depth - 1))
    return nn.Sequential(Block(channels, width, stride), *rest)


class ClipBackbone:
    """Clips of 16 frames, as trained, or of any other number: G2L's have 8."""

    preprocessing: Preprocessing | None = Preprocessing(short=112, crop=(112, 112))
    clip: int | None = 16
    outputs: Mapping[str, tuple[int, ...]] = {"pooled": (2 * WIDTHS[-1],), "classes": (CLASSES,)}

    def __init__(self, name: str, net: ResNeXt3d):
        self.name = name
        self.net: nn.Module = net.eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, T, H, W, 3) uint8 -> pooled (N, 2048), classes (N, 400): the probabilities of Kinetics' actions."""
        # Contiguous first: the order of pixels in memory decides how a convolution sums, and so the last bits.
        levels = items.contiguous().float() - items.new_tensor(MEAN, dtype=torch.float32)
        pooled, logits = self.net(levels.permute(0, 4, 1, 2, 3))
        return {"pooled": pooled.float(), "classes": logits.float().softmax(1)}


def load(name: str, weights: Path | None, seed: int) -> Backbone:
    """The net with the weights of a file, such as the published resnext-101-kinetics.pth, or random ones of the seed."""
    return ClipBackbone(name, load_net(ResNeXt3d, name, weights, seed))
