"""The kinds of features a recipe can name, and how each becomes something that turns frames into rows.

tagger     the small net that learnt "video to words" on the training split (no download)
image      any timm model, one row a frame
imported   features that the user brought with 'longtake features import'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from storage.checkpoints import Checkpoint
from storage.errors import BadInput, MissingFeatures
from storage.features import FeatureStore
from storage.fingerprints import digest, digest_file
from storage.media import scale_picture
from storage.options import Options
from storage.records import ArtifactRef
from storage.workspace import Workspace

IMPORTED = "imported"  # the folder of the feature stores that users brought


class TaggerFeature(Options):
    """Rows of the word tagger's net, trained on this data set's training split."""

    kind: Literal["tagger"] = "tagger"
    weights: str = "trained"
    """trained: by this recipe's tagger section; or the path of a tagger.safetensors, kept whatever the training split does"""
    sampling: str = "frames"
    """which of the recipe's samplings chooses the frames"""


class ImageFeature(Options):
    """Pooled rows of a timm image model, one a frame."""

    kind: Literal["image"] = "image"
    model: str = "resnet18"
    """a timm model's name"""
    weights: str = "pretrained"
    """pretrained, random (seeded; for trying the plumbing), or the path of a weights file"""
    seed: int = 0
    """seed of random weights"""
    sampling: str = "frames"
    """which of the recipe's samplings chooses the frames"""


class ImportedFeature(Options):
    """Features that were imported with 'longtake features import NAME PATH'."""

    kind: Literal["imported"] = "imported"
    store: str
    """the NAME they were imported under"""


FeatureOptions = Annotated[TaggerFeature | ImageFeature | ImportedFeature, Field(discriminator="kind")]


class Extractor(Protocol):
    """Frames in, rows out. `size` is the (width, height) that decoding may shrink frames to, or None for whole frames."""

    @property
    def size(self) -> tuple[int, int] | None: ...

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """(P, M, H, W, 3) uint8 -> (P, D) float32"""
        ...


@dataclass(frozen=True)
class Source:
    """Where one feature of a recipe comes from: its key, its store, and a few plain words for the report."""

    name: str
    key: str
    store: str
    words: str
    sampling: str | None
    random_weights: bool = False


def find_source(
    workspace: Workspace,
    dataset: str,
    name: str,
    feature: Any,
    samplings: dict[str, Any],
    tagger: ArtifactRef | None,
) -> Source:
    """The key and place of a feature, before anything is extracted."""
    if isinstance(feature, ImportedFeature):
        store = f"{IMPORTED}/{feature.store}"
        opened = FeatureStore.open(workspace.feature_store(IMPORTED, feature.store))
        return Source(name, opened.digest(), store, f"imported as '{feature.store}'", None)
    if feature.sampling not in samplings:
        raise BadInput(
            f"features.{name}.sampling is '{feature.sampling}'; the recipe's samplings are {', '.join(sorted(samplings))}"
        )
    how = samplings[feature.sampling].model_dump(mode="json")
    if isinstance(feature, TaggerFeature):
        if feature.weights != "trained":
            key = digest("tagger", 1, _weights_file_key(name, feature.weights), how)
            words = f"a small net that learnt video-to-words, from {Path(feature.weights).name}"
        elif tagger is not None:
            key = digest("tagger", 1, tagger.key, how)
            words = "a small net that learnt video-to-words on this training split"
        else:
            raise BadInput(f"features.{name} is of kind 'tagger', but the recipe has no 'tagger' section; add one")
        return Source(name, key, f"{dataset}/{name}-{key[:16]}", words, feature.sampling)
    known = feature.weights in ("pretrained", "random")
    weights = feature.weights if known else _weights_file_key(name, feature.weights)
    key = digest("image", 1, feature.model, weights, feature.seed if weights == "random" else None, how)
    words = f"{feature.model} with {weights if known else Path(feature.weights).name} weights"
    is_random = weights == "random"
    return Source(name, key, f"{dataset}/{name}-{key[:16]}", words, feature.sampling, random_weights=is_random)


def _weights_file_key(name: str, path: str) -> str:
    try:
        return digest_file(Path(path))
    except OSError as error:
        raise BadInput(
            f"features.{name}.weights: cannot read {path} ({error.strerror}); give pretrained, random or a weights file"
        ) from error


def open_extractor(feature: Any, tagger_folder: Path | None, device: str) -> Extractor:
    """Load the net of a feature."""
    return _OPENERS[feature.kind](feature, tagger_folder, device)


def _open_tagger(feature: TaggerFeature, folder: Path | None, device: str) -> Extractor:
    if feature.weights != "trained":
        return TaggerExtractor(Checkpoint.load(Path(feature.weights)), device)
    if folder is None:
        raise MissingFeatures("the word tagger was not trained yet; run 'longtake run' without --until")
    return TaggerExtractor(Checkpoint.load(folder / "tagger.safetensors"), device)


def _open_image(feature: ImageFeature, _folder: Path | None, device: str) -> Extractor:
    return ImageExtractor(feature, device)


_OPENERS: dict[str, Callable[[Any, Path | None, str], Extractor]] = {"tagger": _open_tagger, "image": _open_image}


def shrunk(images: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(P, M, H, W, 3) -> (P, M, size[1], size[0], 3), as decoding at that size would have given."""
    if images.shape[2:4] == size[::-1]:
        return images
    flat = [scale_picture(picture, size) for picture in images.reshape(-1, *images.shape[2:])]
    return np.stack(flat).reshape(*images.shape[:2], size[1], size[0], 3)


class TaggerExtractor:
    """The word tagger as an extractor."""

    def __init__(self, checkpoint: Checkpoint, device: str):
        from tasks.train_tagger import load_tagger

        self.net = load_tagger(checkpoint).to(device).eval()
        self.device = device
        self.size = (self.net.options.size, self.net.options.size)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        import torch

        with torch.inference_mode():
            rows = self.net.features(torch.from_numpy(shrunk(images, self.size)).to(self.device))
        return rows.float().cpu().numpy()


class ImageExtractor:
    """A timm model as an extractor: the middle frame of every position."""

    size = None

    def __init__(self, feature: ImageFeature, device: str):
        from models.backbones.image import WeightsUnavailable, load_image_backbone

        try:
            self.backbone = load_image_backbone(feature.model, feature.weights, feature.seed)
        except (WeightsUnavailable, ValueError) as error:
            raise BadInput(str(error)) from error
        self.backbone.net.to(device)
        self.device = device

    def __call__(self, images: np.ndarray) -> np.ndarray:
        import torch

        middle = torch.from_numpy(np.ascontiguousarray(images[:, images.shape[1] // 2]))
        rows = self.backbone.features(self.backbone.preprocess(middle).to(self.device))
        return rows.float().cpu().numpy()
