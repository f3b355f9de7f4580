"""A captioner in one file that travels: weights, vocabulary, and how its features are extracted.

The file is a checkpoint (safetensors with JSON in its header): whatever somebody put into it, opening it runs no code. It holds
the captioner (or the ensemble) and the word tagger, not the pretrained nets: those are named by the hash of their weights."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from models.decoding.beam_search import SearchOptions
from storage.checkpoints import Checkpoint
from storage.datasets.user_files import USER_FILES
from storage.errors import BadInput, StorageError
from storage.files.hashing import digest_file
from storage.media.frame_sampling import Sampling
from storage.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from storage.workspace import Workspace
from tasks.extraction.extractors import BackboneFeature, FeatureOptions, TaggerFeature, find_source
from tasks.extraction.pretrained import fetch_weights
from tasks.framework.runtime import Runtime
from tasks.inference.user_files import TrainedRun

_FORMAT = 1
_TAGGER = "tagger.safetensors"


@dataclass(frozen=True)
class CaptionerCard:
    """What a person wants to know of an exported captioner."""

    name: str
    """its recipe's"""
    dataset: str
    run: str
    trained_at: str
    scores: dict[str, float]
    recipe: dict[str, Any]
    note: str = ""
    """in plain words, as its author wrote it"""


def export_captioner(trained: TrainedRun, card: CaptionerCard, target: Path, half: bool = False) -> None:
    """Write the file. `half` keeps weights as float16: half the size; now and then another word."""
    if trained.refocused:
        reason = "key frames of this captioner are found by a second one (VRE's third phase), which cannot be exported yet"
        raise BadInput(f"{reason}; export a run without the section 'key_frames'")
    if trained.words_net:
        reason = "this captioner reads words that a second net predicts from features (the section 'words')"
        raise BadInput(f"{reason}, which cannot be exported yet; export a run without it")
    parts = {f"captioner{n}": Checkpoint.load(path) for n, path in enumerate(trained.checkpoints)}
    if tagger := _tagger_of(trained):
        parts["tagger"] = Checkpoint.load(tagger)
        if "kind" in parts["tagger"].values["net"]:
            raise BadInput("a word tagger on top of pretrained nets cannot be exported yet; export a run without it")
    sources = {
        name: find_source(trained.workspace, USER_FILES, name, feature, dict(trained.sampling), trained.tagger)
        for name, feature in trained.features.items()
    }
    tensors = {f"{part}.{name}": array for part, found in parts.items() for name, array in found.tensors.items()}
    if half:
        tensors = {name: _as_half(name, array) for name, array in tensors.items()}
    values = {
        "captioner_file": _FORMAT,
        "card": asdict(card),
        "features": {name: feature.model_dump(mode="json") for name, feature in trained.features.items()},
        "weights": {name: source.weights for name, source in sources.items()},
        "sampling": {name: how.model_dump(mode="json") for name, how in trained.sampling.items()},
        "search": trained.search.model_dump(mode="json"),
        "vocabulary": list(trained.vocabulary.words),
        "parts": {part: found.values for part, found in parts.items()},
    }
    Checkpoint(tensors, values).save(target)


def open_exported(workspace: Workspace, file: Path, runtime: Runtime) -> tuple[TrainedRun, CaptionerCard]:
    """The captioner of a file, unpacked once into the workspace, ready to caption."""
    values, folder = _unpack(workspace, file)
    try:
        card = CaptionerCard(**values["card"])
        features = TypeAdapter(dict[str, FeatureOptions]).validate_python(values["features"])
        sampling = TypeAdapter(dict[str, Sampling]).validate_python(values["sampling"])
        search = SearchOptions.model_validate(values["search"])
        count = sum(part.startswith("captioner") for part in values["parts"])
        vocabulary = Vocabulary(tuple(map(str, values["vocabulary"])))
    except (KeyError, TypeError, ValidationError) as error:
        raise BadInput(f"{file} is not understood ({_first_line(error)}); it may be of another version of Longtake") from error
    features = {name: _here(feature, folder) for name, feature in features.items()}
    fetch_weights(features.values())
    keys = _checked_keys(workspace, file, features, sampling, values["weights"])
    checkpoints = [folder / f"captioner{n}.safetensors" for n in range(count)]
    _note_keys(checkpoints, keys)
    return TrainedRun(workspace, features, sampling, search, runtime, tuple(checkpoints), vocabulary), card


def read_card(file: Path) -> CaptionerCard:
    """The card alone."""
    return CaptionerCard(**_load(file).values["card"])


def _tagger_of(trained: TrainedRun) -> Path | None:
    """The file of the word tagger that the features need, if they need one."""
    paths = {Path(f.weights) for f in trained.features.values() if isinstance(f, TaggerFeature) and f.weights != "trained"}
    if trained.tagger:
        paths.add(trained.workspace.root / trained.tagger.uri / _TAGGER)
    if len(paths) > 1:
        raise BadInput("features of several word taggers cannot be exported together; train with those of one")
    return next(iter(paths), None)


def _load(file: Path) -> Checkpoint:
    try:
        found = Checkpoint.load(file)
    except StorageError as error:
        raise BadInput(f"{file} is not a captioner that 'longtake export' wrote, or it is damaged; export it again") from error
    if found.values.get("captioner_file") != _FORMAT:
        raise BadInput(
            f"{file} is not a captioner that this version of Longtake can read; export it again with 'longtake export'"
        )
    words = found.values.get("vocabulary")
    if not isinstance(words, list) or tuple(words[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        raise BadInput(f"{file} has no vocabulary; export it again with 'longtake export'")
    return found


def _unpack(workspace: Workspace, file: Path) -> tuple[dict[str, Any], Path]:
    """Write the parts of a file as checkpoints into a folder named by the file's hash; what is there already stays."""
    found = _load(file)
    folder = workspace.root / "captioners" / digest_file(file)[:16]
    for part, values in _parts(file, found).items():
        if not (path := folder / f"{part}.safetensors").exists():
            prefix = f"{part}."
            tensors = {
                name.removeprefix(prefix): array.astype(np.float32) if array.dtype == np.float16 else array
                for name, array in found.tensors.items()
                if name.startswith(prefix)
            }
            Checkpoint(tensors, values).save(path)
    return found.values, folder


def _parts(file: Path, found: Checkpoint) -> dict[str, dict[str, Any]]:
    """The parts by name, which is one of ours: a name never leads out of the folder."""
    parts = found.values.get("parts")
    count = len(parts) if isinstance(parts, dict) else 0
    known = {"tagger", *(f"captioner{n}" for n in range(count))}
    if not count or not isinstance(parts, dict) or not set(parts) <= known or "captioner0" not in parts:
        raise BadInput(f"{file} holds no captioner; export it again with 'longtake export'")
    if not all(isinstance(values, dict) for values in parts.values()):
        raise BadInput(f"{file} holds parts without values; export it again with 'longtake export'")
    return parts


def _here(feature: FeatureOptions, folder: Path) -> FeatureOptions:
    """A tagger's feature with the tagger that was unpacked; a backbone may not name a file of another machine."""
    if isinstance(feature, TaggerFeature):
        return feature.model_copy(update={"weights": str(folder / _TAGGER)})
    if isinstance(feature, BackboneFeature) and feature.weights not in ("pretrained", "random"):
        reason = f"features of {feature.net} were extracted with a weights file of its author's own"
        raise BadInput(f"{reason}; ask for a captioner that was trained with published weights")
    return feature


def _checked_keys(
    workspace: Workspace, file: Path, features: Mapping[str, Any], sampling: Mapping[str, Any], weights: Mapping[str, str]
) -> dict[str, str]:
    """The key of each feature here. Weights other than those that the captioner was trained on are refused."""
    keys = {}
    for name, feature in features.items():
        source = find_source(workspace, USER_FILES, name, feature, dict(sampling), None)
        if isinstance(feature, BackboneFeature) and source.weights != weights.get(name):
            what = f"{file} was trained on weights of {feature.net} with sha256 {str(weights.get(name))[:16]}"
            remedy = f"bring those with 'longtake weights import FILE --net {feature.net}'"
            raise BadInput(f"{what}; those on this machine have {source.weights[:16]}: {remedy}")
        keys[name] = source.key
    return keys


def _note_keys(checkpoints: Sequence[Path], keys: dict[str, str]) -> None:
    """Write the keys of the features here into the unpacked captioners, which refuse to read any other features."""
    for path in checkpoints:
        found = Checkpoint.load(path)
        if found.values.get("extractors") != keys:
            Checkpoint(found.tensors, {**found.values, "extractors": keys}).save(path)


def _as_half(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != np.float32:
        return array
    half = array.astype(np.float16)
    if not np.isfinite(half).all():
        raise BadInput(f"the weight {name} has values that float16 cannot hold; export without --float16")
    return half


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
