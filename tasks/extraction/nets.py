"""The nets of features, loaded once per process: torch tensors in, numpy arrays out.

In a module of its own, apart from every task: runners that ship tasks to other processes by value import this one, so its
cache holds one loaded net per worker."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone, Preprocessing
from models.backbones.compiled import CannotCompile, CompiledBackbone
from models.backbones.weights import WeightsUnavailable
from models.backbones.zoo import canonical, open_backbone
from models.tagger import GRID
from storage.checkpoints import Checkpoint
from storage.errors import BadInput, MissingFeatures, StorageError
from storage.media.frame_sampling import Clips, Sampling
from storage.media.frame_stream import AudioRequest, FrameRequest
from storage.media.resize import FrameTransform
from storage.weights import WeightsFolder, cache_folder
from tasks.extraction.extractors import BackboneFeature, TaggerFeature
from tasks.training.loading import load_tagger

Compiled = Literal["no", "float32", "bfloat16"]
Precision = Literal["auto", "float32", "float16", "bfloat16"]
_HALF: dict[str, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_CACHED = 8  # nets in memory at once


class Net:
    """A backbone on a device."""

    def __init__(self, backbone: Backbone, device: str, precision: Precision):
        self.backbone, self.device = backbone, device
        backbone.net.to(device)
        on_gpu = device.startswith("cuda")
        if precision in _HALF and not on_gpu:
            raise BadInput(f"runtime.precision is '{precision}', which needs a GPU; set it to auto")
        # Rows are kept as float16, so half precision costs them little.
        self._half = _HALF.get("float16" if precision == "auto" and on_gpu else precision)

    def request(self, sampling: Sampling | None, name: str, plan: str = "") -> FrameRequest | AudioRequest:
        """What the decoder has to deliver for this net, for the feature of this name; `plan` is the sampling's name."""
        preprocessing, clip = self.backbone.preprocessing, self.backbone.clip
        if preprocessing is None:
            return AudioRequest()
        if sampling is None:
            raise BadInput(f"features.{name} looks at frames; name one of the recipe's samplings")
        if clip is not None and not isinstance(sampling, Clips):
            reason = f"{self.backbone.name} looks at clips of {clip} frames"
            raise BadInput(f"features.{name}: {reason}; give it a sampling of kind 'clips' with length {clip}")
        return FrameRequest(sampling, FrameTransform(**asdict(preprocessing)), plan)

    def __call__(self, items: Tensor) -> dict[str, np.ndarray]:
        """items (N, ...) on the CPU, pinned where that helps -> output -> (N, *shape) float32."""
        try:
            with torch.inference_mode(), torch.autocast("cuda", self._half or torch.float16, enabled=bool(self._half)):
                outputs = self.backbone(items.to(self.device, non_blocking=True))
        except CannotCompile as error:
            raise BadInput(str(error)) from error
        except torch.OutOfMemoryError as error:
            reason = f"the GPU has no room for {len(items)} items of {self.backbone.name}"
            raise StorageError(f"{reason}; lower runtime.batch") from error
        return {name: rows.float().cpu().numpy() for name, rows in outputs.items()}

    def source_output(self, output: str) -> str:
        """The output per position that `output` is computed from: itself, unless it describes whole videos."""
        return self.backbone.video_outputs.get(output, output) if isinstance(self.backbone, VideoBackbone) else output

    def video_output(self, output: str, rows: np.ndarray) -> np.ndarray:
        """All rows (P, *shape) of one video, of `source_output(output)` -> the one row (1, *shape) of `output`."""
        assert isinstance(self.backbone, VideoBackbone)
        with torch.inference_mode():
            row = self.backbone.video_output(output, torch.from_numpy(rows).float().to(self.device))
        return row.unsqueeze(0).float().cpu().numpy()


@runtime_checkable
class VideoBackbone(Protocol):
    """A backbone with outputs that describe a whole video, computed from all its positions."""

    video_outputs: Mapping[str, str]
    """output -> the output per position that it is computed from"""

    def video_output(self, output: str, rows: Tensor) -> Tensor:
        """rows (P, *shape) float32 of one video -> (*shape of the output)."""
        ...


class _TaggerBackbone:
    """The word tagger as a backbone. Its outputs have the words in `only`, or if that is empty, all but those in `without`."""

    def __init__(self, checkpoint: Checkpoint, only: tuple[str, ...], without: tuple[str, ...]):
        self.name = "the word tagger"
        self._tagger = load_tagger(checkpoint)
        known: list[str] = checkpoint.values.get("words", [])
        if unknown := [word for word in only if word not in known]:
            unknown_words = ", ".join(map(repr, unknown))
            raise BadInput(f"the word tagger does not know {unknown_words}; it knows {', '.join(known)}")
        options = self._tagger.options
        excluded = {known.index(word) for word in without if word in known}
        others = [n for n in range(options.words) if n not in excluded]
        self._word_ids = [known.index(word) for word in only] or others
        if not self._word_ids:
            raise BadInput(f"'without' leaves no word of the word tagger, which knows {', '.join(known)}")
        self.net: nn.Module = self._tagger
        self.preprocessing: Preprocessing | None = Preprocessing(size=(options.size, options.size))
        self.clip: int | None = options.frames
        words, size = len(self._word_ids), options.feature_size
        outputs = {"rows": (size,), "tags": (words,), "words": (words,), "grid": (GRID * GRID, size)}
        self.outputs: Mapping[str, tuple[int, ...]] = outputs
        self.video_outputs: Mapping[str, str] = {"words": "rows"}

    def __call__(self, items: Tensor) -> dict[str, Tensor]:
        rows, cells = self._tagger.features_and_cells(items)
        return {"rows": rows, "grid": cells, "tags": self._tagger.words_of_positions(rows)[:, self._word_ids]}

    def video_output(self, output: str, rows: Tensor) -> Tensor:
        return self._tagger.words_of_video(rows)[self._word_ids]


def open_net(feature: Any, weights: str, tagger: Path | None, device: str, precision: Precision) -> Net:
    """The net of a feature, whose weights have this hash; features that differ only in their output share one net."""
    if isinstance(feature, TaggerFeature):
        if feature.weights == "trained" and tagger is None:
            raise MissingFeatures("the word tagger was not trained yet; run 'longtake run' without --until")
        path = tagger if feature.weights == "trained" else Path(feature.weights)
        return _open_tagger(str(path), weights, feature.only, feature.without, device, precision)
    if not isinstance(feature, BackboneFeature):
        raise BadInput(f"features of kind '{feature.kind}' are not extracted")
    return _open_backbone(feature.net, feature.weights, weights, feature.seed, feature.compiled, device, precision)


@lru_cache(_CACHED)
def _open_tagger(
    path: str, _hash: str, only: tuple[str, ...], without: tuple[str, ...], device: str, precision: Precision
) -> Net:
    return Net(_TaggerBackbone(Checkpoint.load(Path(path)), only, without), device, precision)


@lru_cache(_CACHED)
def _open_backbone(net: str, weights: str, _hash: str, seed: int, compiled: Compiled, device: str, precision: Precision) -> Net:
    path: Path | None = None
    if weights == "pretrained":
        known = WeightsFolder().find(canonical(net))
        if known is None:
            raise BadInput(f"the pretrained weights of {net} are not here; 'longtake weights list' says where they are")
        path = known.path
    elif weights != "random":
        path = Path(weights)
    try:
        backbone = open_backbone(net, path, seed)
        if compiled == "no":
            return Net(backbone, device, precision)
        if device != "cpu":
            raise BadInput(f"{net} is to be compiled for a CPU and the device is {device}; leave 'compiled' out")
        return Net(CompiledBackbone(backbone, compiled, cache_folder() / "compiled"), device, precision)
    except (WeightsUnavailable, ValueError) as error:
        raise BadInput(str(error)) from error
