"""Motion backbones: torchvision's video nets, a clip of frames per item: the pooled feature and Kinetics' class probabilities."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision.models.video
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, list_models

from models.backbones.backbone import Preprocessing
from models.backbones.weights import fill, read_state, seeded

PREFIX = "tv:"
NAMES: tuple[str, ...] = tuple(list_models(module=torchvision.models.video))

_HEADS = ("fc", "head", "classifier")  # what torchvision calls the last layer, by family


class MotionNet(nn.Module):
    """A video net with its classifier beside it, so that one pass gives both outputs."""

    def __init__(self, body: nn.Module, classifier: nn.Module | None):
        super().__init__()
        self.body, self.classifier = body, classifier
        modules = classifier.modules() if classifier else ()
        self._by_convolution = any(isinstance(module, nn.Conv3d) for module in modules)

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """pixels (N, 3, M, H, W) -> pooled (N, D) and, with a classifier, classes (N, K)"""
        pooled = self.body(pixels)
        if self.classifier is None:
            return {"pooled": pooled}
        logits = self.classifier(pooled[..., None, None, None] if self._by_convolution else pooled)
        return {"pooled": pooled, "classes": logits.flatten(1).float().softmax(-1)}


class MotionBackbone:
    """A torchvision video net that looks at a clip of frames."""

    def __init__(self, name: str, net: MotionNet, preset: Any, clip: int):
        self.name = name
        self.net: nn.Module = net.eval().requires_grad_(False).to(memory_format=torch.channels_last_3d)
        self.preprocessing: Preprocessing | None = fitted(preset)
        self.clip: int | None = clip
        self._mean = torch.tensor(preset.mean).view(1, 3, 1, 1, 1)
        self._std = torch.tensor(preset.std).view(1, 3, 1, 1, 1)
        with torch.inference_mode():
            found = net(torch.zeros(1, 3, clip, *preset.crop_size))
        self.outputs: Mapping[str, tuple[int, ...]] = {output: tuple(v.shape[1:]) for output, v in found.items()}

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, M, H, W, 3) uint8 -> pooled (N, D), classes (N, K)"""
        if self._mean.device != items.device:
            self._mean, self._std = self._mean.to(items.device), self._std.to(items.device)
        pixels = items.permute(0, 4, 1, 2, 3).float().div_(255).sub_(self._mean).div_(self._std)
        return {output: value.float() for output, value in self.net(pixels).items()}


def fitted(preset: Any) -> Preprocessing:
    """torchvision's preset as our way of fitting frames. Its sizes are (height, width), ours (width, height)."""
    height, width = preset.crop_size
    if len(preset.resize_size) == 1:
        return Preprocessing(short=preset.resize_size[0], crop=(width, height))
    return Preprocessing(size=(preset.resize_size[1], preset.resize_size[0]), crop=(width, height))


def frames_of(plain: str) -> int:
    """Frames of a clip: as many as torchvision evaluated the weights with; s3d, evaluated on 128, takes 16 (it needs 14)."""
    return 32 if plain.startswith("swin3d") else 16


def load(name: str, weights: Path | None, seed: int) -> MotionBackbone:
    """A torchvision video net, as `r3d_18` or `tv:<name>`, with the weights of a file, or random ones from a seed."""
    plain = name.removeprefix(PREFIX)
    state = read_state(weights, name) if weights else {}
    classes = {v.shape[0] for key, v in state.items() if key.startswith(_HEADS) and key.endswith(".weight")}
    # A classifier of the user's own may have another number of classes than Kinetics' 400.
    wanted = {"num_classes": classes.pop()} if len(classes) == 1 else {}
    body = seeded(lambda: get_model(plain, weights=None, **wanted), seed)
    head = next(name for name in _HEADS if isinstance(getattr(body, name, None), nn.Module))
    classifier: nn.Module | None = getattr(body, head)
    setattr(body, head, nn.Identity())
    if weights:
        fill(body, state, name, weights)
        of_head = {key.removeprefix(f"{head}."): value for key, value in state.items() if key.startswith(f"{head}.")}
        if not of_head:
            classifier = None
        elif classifier is not None:
            fill(classifier, of_head, name, weights)
    preset = get_model_weights(plain).DEFAULT.transforms()
    return MotionBackbone(name, MotionNet(body, classifier), preset, frames_of(plain))
