"""Image backbones: any net of timm, with its weights and its own preprocessing, as a pooled feature a frame."""

from __future__ import annotations

import difflib
import hashlib
import math
from pathlib import Path
from pickle import UnpicklingError  # what torch.load raises when it refuses; nothing is unpickled here
from typing import Any, cast

import timm
import timm.data
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

# Torch's safe reader meets a damaged or malicious file with any of these.
_UNREADABLE = (UnpicklingError, SafetensorError, OSError, EOFError, RuntimeError, LookupError, ValueError, TypeError)


class WeightsUnavailable(RuntimeError):
    """Pretrained weights that cannot be had: says which, from where, and what to do instead."""


class ImageBackbone:
    """A frozen net: frames (N, H, W, 3) uint8 -> `preprocess` -> `features` (N, D)."""

    def __init__(self, name: str, net: nn.Module):
        self.name = name
        self.net = net.eval().requires_grad_(False)
        config = timm.data.resolve_data_config({}, model=net)
        self._crop: int = config["input_size"][-1]
        self._resize = math.floor(self._crop / config["crop_pct"])
        # Antialiased like PIL's, so that shrinking does not sparkle; lanczos has no counterpart in torch.
        self._mode = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
        self._mean = torch.tensor(config["mean"]).view(1, 3, 1, 1)
        self._std = torch.tensor(config["std"]).view(1, 3, 1, 1)
        self.size = cast(int, net.num_features)
        """Length of a feature, D."""
        self.weights_digest = digest(net)
        """Hash of the weights: features from other weights are other features."""

    def preprocess(self, frames: Tensor) -> Tensor:
        """frames (N, H, W, 3) uint8 -> (N, 3, S, S) float32: short side resized, centre cropped, normalised as trained."""
        pixels = frames.permute(0, 3, 1, 2).float()
        height, width = pixels.shape[2:]
        short = min(height, width)
        size = (self._resize * height // short, self._resize * width // short)
        pixels = nn.functional.interpolate(pixels, size, mode=self._mode, align_corners=False, antialias=True)
        top, left = (round((side - self._crop) / 2) for side in size)
        pixels = pixels[:, :, top : top + self._crop, left : left + self._crop].clamp(0, 255) / 255
        return (pixels - self._mean.to(pixels.device)) / self._std.to(pixels.device)

    @torch.inference_mode()
    def features(self, batch: Tensor) -> Tensor:
        """batch (N, 3, S, S) of `preprocess` -> pooled features (N, D)."""
        return self.net(batch)


def load_image_backbone(name: str, weights: str = "pretrained", seed: int = 0) -> ImageBackbone:
    """A timm net by name with "random" weights (from `seed`), "pretrained" ones, or those of a file."""
    if not timm.is_model(name.split(".")[0]):
        similar = difflib.get_close_matches(name, timm.list_models(), n=5)
        raise ValueError(f"timm has no net '{name}'; similar: {', '.join(similar) or 'see timm.list_models()'}")
    if weights == "pretrained":
        return ImageBackbone(name, _pretrained(name))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = timm.create_model(name, pretrained=False, num_classes=0)
    if weights != "random":
        _load_file(net, name, Path(weights))
    return ImageBackbone(name, net)


def digest(net: nn.Module) -> str:
    """blake2b over names, shapes and bytes of all weights, in the order of their names."""
    state = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(net.state_dict().items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()


def _pretrained(name: str) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as error:  # no network, no such file on the hub, or timm has none for this net
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        source = (config and (config.hf_hub_id or config.url)) or "timm"
        raise WeightsUnavailable(
            f"the pretrained weights of '{name}' cannot be had from {source} ({_first_line(error)}); connect to the "
            "network, or download them elsewhere and give the file's path as the extractor's weights"
        ) from error


def _load_file(net: nn.Module, name: str, path: Path) -> None:
    """Weights for the whole net; a classifier in the file is left aside."""
    if not path.is_file():
        raise WeightsUnavailable(f"no weights of '{name}' at {path}; give the path of a .safetensors or .pth file")
    try:
        if path.suffix == ".safetensors":
            found: dict[str, Any] = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise WeightsUnavailable(
            f"the file {path} holds no plain weights of '{name}' ({_first_line(error)}): it is damaged, or more than "
            "tensors is pickled in it; save the net's state dict alone, best as .safetensors"
        ) from error
    found = found.get("state_dict", found) if isinstance(found, dict) else {}
    wanted = net.state_dict()
    wrong = sorted(key for key, t in wanted.items() if getattr(found.get(key), "shape", None) != t.shape)
    if wrong:
        raise WeightsUnavailable(
            f"the file {path} does not fit '{name}': {len(wrong)} of {len(wanted)} weights are missing or of another "
            f"shape, such as {wrong[0]}; give weights of this very net"
        )
    net.load_state_dict({key: found[key] for key in wanted})


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
