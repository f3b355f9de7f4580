"""Tiny models of transformers with random weights, saved as the hub's repositories are: no network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

SIDE = 32
_SQUARE = {"height": SIDE, "width": SIDE}
_SHORT = {"size": {"shortest_edge": SIDE + 4}, "crop_size": _SQUARE}
_NET = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_VISION = _NET | {"image_size": SIDE, "patch_size": 8}
_TEXT = _NET | {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
_CLIP = _VISION | {"num_frames": 4}
_MIT = {"mit_hidden_size": 12, "mit_intermediate_size": 32, "mit_num_attention_heads": 2, "mit_num_hidden_layers": 1}
_PREDICTOR = {"pred_hidden_size": 24, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}
_JEPA = {"patch_size": 8, "crop_size": SIDE, "frames_per_clip": 4, "mlp_ratio": 2, **_PREDICTOR}
_JEPA |= {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}

ACTIONS = {0: "clapping <b>hands</b>", 1: "marching"}
ANIMALS = {0: "cat", 1: "dog", 2: "owl <i>"}

Made = tuple[Any, Any]
MODELS: dict[str, Callable[[], Made]] = {
    "clip": lambda: (
        hf.CLIPModel(hf.CLIPConfig(vision_config=_VISION, text_config=_TEXT, projection_dim=12)),
        hf.CLIPImageProcessor(**_SHORT),
    ),
    "siglip": lambda: (
        hf.SiglipModel(hf.SiglipConfig(vision_config=_VISION, text_config=_TEXT)),  # SigLIP 2 of one size is this class too
        hf.SiglipImageProcessor(size=_SQUARE, resample=2),
    ),
    "dinov2": lambda: (hf.Dinov2Model(hf.Dinov2Config(**_VISION)), hf.BitImageProcessor(**_SHORT)),
    "dinov3": lambda: (
        hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**_VISION, num_register_tokens=4)),
        hf.DINOv3ViTImageProcessor(size=_SQUARE),
    ),
    "vit": lambda: (
        hf.ViTForImageClassification(hf.ViTConfig(**_VISION, id2label=ANIMALS)),
        hf.ViTImageProcessor(size=_SQUARE),
    ),
    "resnet": lambda: (
        hf.ResNetForImageClassification(hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], id2label=ANIMALS)),
        hf.ViTImageProcessor(size=_SQUARE),
    ),
    "videomae": lambda: (
        hf.VideoMAEForVideoClassification(hf.VideoMAEConfig(**_CLIP, id2label=ACTIONS)),
        hf.VideoMAEImageProcessor(**_SHORT),
    ),
    "videomae-body": lambda: (hf.VideoMAEModel(hf.VideoMAEConfig(**_CLIP)), hf.VideoMAEImageProcessor(**_SHORT)),
    "vjepa2": lambda: (hf.VJEPA2Model(hf.VJEPA2Config(**_JEPA)), hf.VJEPA2VideoProcessor(crop_size=SIDE)),
    "xclip": lambda: (
        hf.XCLIPModel(hf.XCLIPConfig(vision_config=_CLIP | _MIT, text_config=_TEXT, projection_dim=12)),
        hf.VideoMAEImageProcessor(**_SHORT),
    ),
}


def save(name: str, folder: Path) -> Path:
    """The model of this name in a folder, with its processor."""
    hf.logging.disable_progress_bar()
    torch.manual_seed(0)
    for part in MODELS[name]():
        part.save_pretrained(folder)
    return folder
