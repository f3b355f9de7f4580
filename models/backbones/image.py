"""Image backbones: any net of timm, one frame per item: its pooled feature, its grid of cells, its class probabilities."""

import copy
import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import timm
import timm.data
import torch
from torch import Tensor, nn

from models.backbones.backbone import Preprocessing
from models.backbones.weights import WeightsUnavailable, first_line, read_state, seeded

PREFIX = "timm:"
CELLS = 14

# Sizes of ImageNet's label sets. Heads of other sizes that timm ships project into the space of captions (CLIP and its
# kin): they say nothing about classes.
_LABEL_SETS = {1000, 11221, 11821, 19168, 21841, 21842, 21843}

# What timm's adaptation of a foreign state dict may stumble over, besides not fitting.
_MISFITS = (RuntimeError, LookupError, ValueError, TypeError, AttributeError, AssertionError)


class ImageBackbone:
    """A timm net that looks at one frame at a time."""

    clip: int | None = None

    def __init__(self, name: str, net: nn.Module, label_sizes: set[int], size: int | None = None):
        """size: the whole frame is resized to a square of so many pixels, without a crop; it then has the output grid14 too"""
        config = timm.data.resolve_data_config({}, model=net)
        if size is not None:
            config |= {"input_size": (3, size, size), "crop_pct": 1.0, "crop_mode": "squash"}
        self.name, self._sized = name, size is not None
        self.net: nn.Module = net.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        self.preprocessing: Preprocessing | None = fitted(config)
        self._timm: Any = self.net  # its own methods, which nn.Module does not declare
        self._mean = torch.tensor(config["mean"]).view(1, 3, 1, 1)
        self._std = torch.tensor(config["std"]).view(1, 3, 1, 1)
        self._classifies = self._timm.num_classes in label_sizes
        self.outputs: Mapping[str, tuple[int, ...]] = self._shapes(config["input_size"])

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, 1, H, W, 3) uint8 -> pooled (N, D), grid (N, S, C), classes (N, K), as far as the net has them"""
        if self._mean.device != items.device:
            self._mean, self._std = self._mean.to(items.device), self._std.to(items.device)
        # A permuted picture is laid out as channels_last already: nothing is copied here but to float.
        pixels = items[:, 0].permute(0, 3, 1, 2).float().div_(255).sub_(self._mean).div_(self._std)
        return {output: value.float() for output, value in self._outputs(pixels).items()}

    def _outputs(self, pixels: Tensor) -> dict[str, Tensor]:
        features = self._timm.forward_features(pixels)
        found = {"pooled": self._timm.forward_head(features, pre_logits=True)}
        grid = self._grid(features, (int(pixels.shape[2]), int(pixels.shape[3])))  # also while it is traced
        if grid is not None:
            found["grid"] = grid
        if grid is not None and self._sized:
            found["grid14"] = cells14(grid)
        if self._classifies:
            found["classes"] = self._timm.forward_head(features).float().softmax(-1)
        return found

    def _grid(self, features: Any, size: tuple[int, int]) -> Tensor | None:
        """A map (N, C, h, w) or (N, h, w, C), or tokens (N, n, C) -> (N, S, C) row by row; None if it is none of these."""
        width = self._timm.num_features
        if not isinstance(features, Tensor) or features.ndim not in (3, 4):
            return None
        if features.ndim == 4:
            last = features.shape[1] != width and features.shape[3] == width
            return (features if last else features.permute(0, 2, 3, 1)).flatten(1, 2)
        patches = features[:, getattr(self._timm, "num_prefix_tokens", 0) :]
        # A class token that the net does not declare would shift every cell: tokens must tile the picture.
        return patches if tiles(int(patches.shape[1]), size) else None

    def _shapes(self, input_size: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
        """Shapes of the outputs of one black picture, features by a copy that shares the weights: what some nets note down
        at their first picture, with its device, must not stay in the net that is handed out."""
        shared = {id(tensor): tensor for tensor in (*self.net.parameters(), *self.net.buffers())}
        kept, self._timm = self._timm, copy.deepcopy(self.net, cast(dict[int, Any], shared))
        with torch.inference_mode():
            found = self._outputs(torch.zeros(1, *input_size))
        self._timm = kept
        return {output: tuple(value.shape[1:]) for output, value in found.items()}


def cells14(grid: Tensor) -> Tensor:
    """A square grid (N, S, C), row by row -> (N, 196, C): averaged to 14 x 14 cells of (nearly) equal size (adaptive pooling)."""
    side = math.isqrt(int(grid.shape[1]))
    cells = nn.functional.adaptive_avg_pool2d(grid.unflatten(1, (side, side)).permute(0, 3, 1, 2), CELLS)
    return cells.permute(0, 2, 3, 1).flatten(1, 2)


def tiles(count: int, size: tuple[int, int]) -> bool:
    """Whether so many equal square patches cover a picture of (height, width)."""
    side = math.sqrt(size[0] * size[1] / max(1, count))
    return count > 1 and all(abs(length / side - round(length / side)) < 1e-6 for length in size)


def fitted(config: Mapping[str, Any]) -> Preprocessing:
    """timm's data config as our way of fitting frames: shrunk to crop / crop_pct, then the middle is cut out."""
    _, height, width = config["input_size"]
    tall, wide = (math.floor(side / config["crop_pct"]) for side in (height, width))
    # PIL knows lanczos but our frames are fitted by the two filters that every reader has; bicubic is nearest to it.
    filter_: Literal["bilinear", "bicubic"] = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
    if config["crop_mode"] == "squash" or height != width:
        return Preprocessing(size=(wide, tall), crop=(width, height), interpolation=filter_)
    return Preprocessing(short=tall, crop=(width, height), interpolation=filter_)


def load(name: str, weights: Path | None, seed: int) -> ImageBackbone:
    """A timm net, as `resnet101` or `timm:<name>`, with the weights of a file, or random ones from a seed."""
    plain, _, pixels = name.removeprefix(PREFIX).partition("@")
    if pixels and not (pixels.isdecimal() and 32 <= int(pixels) <= 2048):
        raise ValueError(f"'{name}' asks for frames of '{pixels}' pixels; give a number from 32 to 2048, such as {plain}@448")
    size = int(pixels) if pixels else None
    if weights is None:
        return ImageBackbone(name, seeded(lambda: timm.create_model(plain), seed), _LABEL_SETS, size)
    state = read_state(weights, name)
    native: Any = timm.get_pretrained_cfg(plain, allow_unregistered=True)
    classes = _classes_in(state, native)
    net = _with_state(name, plain, state, weights, classes)
    # A head of another size than the published one is the user's own classifier.
    labels = _LABEL_SETS | ({classes} if classes not in (0, native.num_classes) else set())
    return ImageBackbone(name, net, labels, size)


def _classes_in(state: Mapping[str, Tensor], native: Any) -> int:
    """How many classes the file's classifier has; 0 if it holds none."""
    heads = (native.classifier,) if isinstance(native.classifier, str) else tuple(native.classifier or ())
    found = [state[f"{head}.weight"].shape[0] for head in heads if f"{head}.weight" in state]
    if found:
        return found[0] - (native.label_offset or 0)
    stems = (native.first_conv,) if isinstance(native.first_conv, str) else tuple(native.first_conv or ())
    # Layouts of other projects, which timm renames as it loads, are taken to be complete.
    return 0 if any(f"{stem}.weight" in state for stem in stems) else native.num_classes


def _with_state(name: str, plain: str, state: dict[str, Tensor], path: Path, classes: int) -> nn.Module:
    """The net with these weights, adapted and strictly loaded by timm itself."""
    misfit = f"the file {path} does not fit '{name}'"
    if not state:  # timm would take an empty dict for none and ask the network
        raise WeightsUnavailable(f"{misfit}: it holds no weights; give weights of this net")
    # num_classes is said twice: where they differ, timm would load what fits and leave the rest random.
    overlay = {"state_dict": state, "num_classes": classes}
    create = partial(timm.create_model, plain, pretrained=True, num_classes=classes, pretrained_cfg_overlay=overlay)
    try:
        net = seeded(create, 0)
    except _MISFITS as error:
        named = re.search(r'"([\w.]+)"|for ([\w.]+):', str(error).partition("\n")[2])
        detail = f"at weights such as {named[1] or named[2]}" if named else first_line(error)
        raise WeightsUnavailable(f"{misfit} ({detail}); give weights of this very net") from error
    cast(Any, net).pretrained_cfg.pop("state_dict", None)  # a second copy of all weights
    return net
