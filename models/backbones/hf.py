"""Vision and video models of transformers as backbones, fitted as their own processor says: CLIP, SigLIP, DINO, ViT, VideoMAE,
V-JEPA 2, X-CLIP and others. Weights come from safetensors alone, and code that a folder brings is never run."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from models.backbones import hf_folder
from models.backbones.backbone import Preprocessing
from models.backbones.image import tiles
from models.backbones.weights import WeightsUnavailable, first_line

_FILTERS: dict[int, Literal["bilinear", "bicubic"]] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_REFUSED = {
    "siglip2": "takes pictures of any shape (NaFlex); take a SigLIP 2 of one size, such as siglip2-base-patch16-224",
    "siglip2_vision_model": "takes pictures of any shape (NaFlex); take a SigLIP 2 of one size",
    "timm_wrapper": "is a net of timm; name it timm:<name>",
    "vit_mae": "hides patches at random, so its features are never the same twice",
}
"""model_type -> why it is no backbone"""


class HfBackbone:
    """A model of transformers. `pooled` is what its head for classes reads, if the checkpoint has one; else its embedding (CLIP,
    SigLIP, X-CLIP) or its own pooled output; else its class token; else the mean of its tokens."""

    def __init__(self, name: str, net: Any, processor: Any, trained_pooler: bool = True):
        """trained_pooler: whether the checkpoint holds the weights of the pooler, if the net has one"""
        self.name, self._config, self._processor = name, net.config, processor
        self.net: nn.Module = net.eval().requires_grad_(False)
        self.preprocessing: Preprocessing | None = fitted(name, processor)
        self.clip: int | None = clip_of(net.config)
        self._trained_pooler = trained_pooler
        self._seen: dict[str, Any] = {}
        self._embed = getattr(net, "get_video_features" if self.clip else "get_image_features", None)
        if self._embed is not None and hasattr(net, "text_model"):
            net.text_model = None  # nothing is read
        self._head = _head(net)
        if self._head is not None:
            self._head.register_forward_pre_hook(lambda _, inputs: self._seen.update(head=inputs[0]))
            net.base_model.register_forward_hook(lambda _, __, output: self._seen.update(tokens=output[0]))
        factor = processor.rescale_factor if processor.do_rescale else 1.0
        mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else ([0.0] * 3, [1.0] * 3)
        self._mean, self._std = (torch.tensor(values).view(3, 1, 1) * (1.0 / factor) for values in (mean, std))
        width, height = self.preprocessing.crop or self.preprocessing.size or (0, 0)
        with torch.inference_mode():
            found = self(torch.zeros(1, self.clip or 1, height, width, 3, dtype=torch.uint8))
        self.outputs: Mapping[str, tuple[int, ...]] = {output: tuple(value.shape[1:]) for output, value in found.items()}

    @torch.no_grad()
    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        """items (N, M, H, W, 3) uint8 -> pooled (N, D), grid (N, S, C) of an image model, classes (N, K) if it has them"""
        pixels = self.pixels(items)
        tokens, found = self._run(pixels if self.clip else pixels[:, 0])
        size = (int(pixels.shape[3]), int(pixels.shape[4]))  # also while it is traced
        if self.clip is None and (grid := self._grid(tokens, size)) is not None:
            found["grid"] = grid
        order = [output for output in ("pooled", "grid", "classes") if output in found]
        return {output: found[output].float() for output in order}

    def pixels(self, items: Tensor) -> Tensor:
        """items (N, M, H, W, 3) uint8 -> (N, M, 3, H, W), as the processor's last steps make them"""
        if self._mean.device != items.device:
            self._mean, self._std = self._mean.to(items.device), self._std.to(items.device)
        return items.permute(0, 1, 4, 2, 3).float().sub_(self._mean).div_(self._std)

    def off_by(self, frame: np.ndarray, fitted: np.ndarray) -> float:
        """How far a frame (H, W, 3) that we fitted is from what the model's own processor makes of it, in levels of 0 to 255."""
        theirs = next(iter(self._processor([frame], return_tensors="pt").values()))
        ours = self.pixels(torch.tensor(fitted)[None, None])
        theirs = theirs.reshape(-1, *theirs.shape[-3:])[:1]
        return float(((ours[:, 0] - theirs) * self._std).abs().max()) if ours.shape[2:] == theirs.shape[1:] else 255.0

    def takes(self, length: int) -> bool:
        """Whether a clip may have so many frames: its own number; V-JEPA 2 (rotary positions) takes any even one."""
        return length == self.clip or (self._config.model_type == "vjepa2" and length % self._config.tubelet_size == 0)

    def _run(self, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Tokens (N, n, C) or a map (N, C, h, w); pooled and classes."""
        named = {"pixel_values_videos" if self._config.model_type == "vjepa2" else "pixel_values": pixels}
        if self._head is not None:
            classes = self.net(**named).logits.float().softmax(-1)
            return self._seen.pop("tokens"), {"pooled": self._seen.pop("head").flatten(1), "classes": classes}
        more = {"skip_predictor": True} if self._config.model_type == "vjepa2" else {}
        output = self._embed(**named) if self._embed else self.net(**named, **more)
        tokens, pooled = output.last_hidden_state, getattr(output, "pooler_output", None)
        if pooled is not None and self._trained_pooler:
            return tokens, {"pooled": pooled.flatten(1)}
        if tokens.ndim == 4:
            return tokens, {"pooled": tokens.mean((2, 3))}
        size = (int(pixels.shape[-2]), int(pixels.shape[-1]))
        return tokens, {"pooled": tokens[:, 0] if self._before_patches(int(tokens.shape[1]), size) else tokens.mean(1)}

    def _grid(self, tokens: Tensor, size: tuple[int, int]) -> Tensor | None:
        """The cells (N, S, C), row by row; None if the tokens do not tile the picture."""
        if tokens.ndim == 4:
            return tokens.flatten(2).transpose(1, 2)
        patches = tokens[:, self._before_patches(int(tokens.shape[1]), size) :]
        return patches if tiles(int(patches.shape[1]), size) else None

    def _before_patches(self, tokens: int, size: tuple[int, int]) -> int:
        """How many class tokens and registers come before the patches."""
        vision = getattr(self._config, "vision_config", self._config)
        patch, tubelet = getattr(vision, "patch_size", 0), getattr(vision, "tubelet_size", 1)
        if not isinstance(patch, int) or not isinstance(tubelet, int) or patch < 1:
            return 0
        return max(0, tokens - (self.clip or 1) // tubelet * (size[0] // patch) * (size[1] // patch))


def clip_of(config: Any) -> int | None:
    """Frames of a video model's clip; None: it sees single frames."""
    vision = getattr(config, "vision_config", None) or config
    found = [getattr(vision, name, None) for name in ("frames_per_clip", "num_frames")]
    return next((count for count in found if isinstance(count, int)), None)


def clip_in(name: str, folder: Path) -> int | None:
    """The same of the model in a folder, without its weights."""
    return clip_of(_open_config(name, folder))


def fitted(name: str, processor: Any) -> Preprocessing:
    """A processor's settings as our way of fitting frames; what cannot be said that way is refused."""
    size, crop = processor.size, processor.crop_size if getattr(processor, "do_center_crop", False) else None
    kernel = _FILTERS.get(int(processor.resample)) if processor.do_resize and processor.resample is not None else None
    middle = (crop.width, crop.height) if crop else None
    if kernel and size.height and size.width and (crop is None or (crop.height <= size.height and crop.width <= size.width)):
        return Preprocessing(size=(size.width, size.height), crop=middle, interpolation=kernel, crop_rounding="down")
    if kernel and size.shortest_edge and not size.longest_edge and crop and max(crop.height, crop.width) <= size.shortest_edge:
        return Preprocessing(short=size.shortest_edge, crop=middle, interpolation=kernel, crop_rounding="down")
    how = f"resize {processor.do_resize}, size {size}, filter {processor.resample}, crop {crop}"
    known = "a resize by bilinear or bicubic to one size, or of the short side with a crop inside"
    raise WeightsUnavailable(f"the processor of '{name}' fits frames in a way that is not known here ({how}); known: {known}")


def load(name: str, weights: Path | None, seed: int) -> HfBackbone:
    """The model in the folder of a model.safetensors."""
    if weights is None:
        raise WeightsUnavailable(f"'{name}' is known by its files alone; leave 'weights' out")
    folder, transformers = weights.parent, _transformers(name)
    config = _open_config(name, folder)
    settings = hf_folder.read_settings(folder)
    nested = settings.get("processor_config.json", {})
    videos = hf_folder.VIDEO_PROCESSOR in settings or "video_processor" in nested
    local = {"local_files_only": True, "trust_remote_code": False}
    exact = {"use_safetensors": True, "dtype": torch.float32, "weights_only": True}
    loading = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # what lacks is refused below
    try:
        auto = _auto_model(transformers, config)
        net, info = auto.from_pretrained(folder, config=config, **local, **exact, **loading)
        opened = transformers.AutoVideoProcessor if videos else transformers.AutoImageProcessor
        processor = opened.from_pretrained(folder, **local)
    except Exception as error:  # of many kinds: transformers', safetensors' and the hub's
        raise WeightsUnavailable(f"{folder} does not open as '{name}' ({first_line(error)}); get all its files again") from error
    lacking = sorted([*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
    lacking_body = [key for key in lacking if "pooler" not in key]
    if lacking_body:
        why = f"{len(lacking_body)} weights are missing or of another shape, such as {lacking_body[0]}"
        raise WeightsUnavailable(f"{weights} does not fit its {hf_folder.CONFIG}: {why}; get all files of the model again")
    try:
        return HfBackbone(name, net, processor, trained_pooler=not lacking)
    except WeightsUnavailable:
        raise
    except Exception as error:  # whatever a model says to what it was not made for
        why = f"({type(error).__name__}: {first_line(error)})"
        raise WeightsUnavailable(
            f"'{name}', a {config.model_type}, makes no features of frames alone {why}; take another"
        ) from error


def _auto_model(transformers: Any, config: Any) -> Any:
    """What opens the checkpoint as what it was saved as."""
    saved_as = (config.architectures or [""])[0]
    if saved_as.endswith("ForImageClassification"):
        return transformers.AutoModelForImageClassification
    return transformers.AutoModelForVideoClassification if saved_as.endswith("ForVideoClassification") else transformers.AutoModel


def _head(net: Any) -> nn.Module | None:
    """The layer of a model that was opened for its classes which gives their logits."""
    if not type(net).__name__.endswith("Classification"):
        return None
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear) and layer.out_features == net.config.num_labels]
    if not layers:
        raise ValueError("no layer gives its classes")
    return layers[-1]


def _open_config(name: str, folder: Path) -> Any:
    transformers = _transformers(name)
    try:
        settings = hf_folder.read_settings(folder).get(hf_folder.CONFIG, {})
        refused = _REFUSED.get(str(settings.get("model_type")))
        if refused:
            raise WeightsUnavailable(f"'{name}' {refused}")
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (WeightsUnavailable, hf_folder.BadFolder):
        raise
    except Exception as error:  # of many kinds, as above
        why = f"transformers {transformers.__version__} does not know it without code of its own ({first_line(error)})"
        raise WeightsUnavailable(f"'{name}' cannot be opened: {why}; take a model that transformers brings") from error


def _transformers(name: str) -> Any:
    """The package, which prints nothing from now on."""
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise WeightsUnavailable(f"'{name}' needs transformers ({error}); run pip install 'longtake[hf]'") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
