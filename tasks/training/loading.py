"""Load what the training stages wrote: the word tagger, the embedding, a captioner or an ensemble of captioners."""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from models.captioner import Captioner
from models.decoding.ensemble import Ensemble
from models.tagger import TaggerOptions, WordTagger
from models.vse import VisualSemantic, VseOptions
from models.zoo import CaptionerOptions, build_captioner
from storage.checkpoints import Checkpoint
from storage.errors import BadInput
from storage.records import ArtifactRef
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageContext


def load_tagger(checkpoint: Checkpoint) -> WordTagger:
    """The word tagger in eval mode."""
    net = WordTagger(TaggerOptions.model_validate(checkpoint.values["net"]))
    net.load_state_dict(_weights(checkpoint))
    return net.eval()


def embedding_options(path: Path) -> VseOptions:
    """What kind of embedding a checkpoint holds."""
    return VseOptions.model_validate(Checkpoint.load(path).values["net"])


def load_embedding(path: Path, access: FeatureAccess, vocabulary: Vocabulary) -> VisualSemantic:
    """A trained embedding in eval mode, refused if it was trained with another vocabulary or other features."""
    checkpoint = _load_checked(path, "embedding", access, vocabulary)
    net = VisualSemantic(embedding_options(path), checkpoint.values["sizes"], len(vocabulary))
    net.load_state_dict(_weights(checkpoint))
    return net.eval()


def captioner_options(path: Path) -> CaptionerOptions:
    """What kind of captioner a checkpoint holds."""
    return TypeAdapter(CaptionerOptions).validate_python(Checkpoint.load(path).values["captioner"])


def load_captioner(path: Path, access: FeatureAccess, vocabulary: Vocabulary) -> Captioner:
    """A trained captioner in eval mode, refused if it was trained with another vocabulary or other features."""
    checkpoint = _load_checked(path, "captioner", access, vocabulary)
    captioner = build_captioner(captioner_options(path), checkpoint.values["sizes"], len(vocabulary))
    captioner.load_state_dict(_weights(checkpoint))
    return captioner.eval()


def load_trained(paths: Sequence[Path], access: FeatureAccess, vocabulary: Vocabulary, device: str) -> Captioner:
    """The captioner of one checkpoint, or the ensemble of several, in eval mode."""
    nets = [load_captioner(path, access, vocabulary) for path in paths]
    return (nets[0] if len(nets) == 1 else Ensemble(nets)).to(device).eval()


def open_trained(
    context: StageContext, vocabulary: Vocabulary, features: ArtifactRef, captioners: Sequence[ArtifactRef]
) -> tuple[Captioner, FeatureAccess]:
    """The captioner in eval mode on the stage's device, and the features that it reads. Several captioners become an ensemble
    (GLD, Table II): their kind and features are the same, their weights are not."""
    paths = [context.path(ref) / "captioner.safetensors" for ref in captioners]
    access = FeatureAccess.for_captioner(context.workspace, context.path(features), captioner_options(paths[0]))
    return load_trained(paths, access, vocabulary, context.runtime.torch_device()), access


def _weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The model's weights, for `load_state_dict`."""
    return {name.removeprefix("model."): torch.from_numpy(array.copy()) for name, array in checkpoint.tensors.items()}


def _load_checked(path: Path, model: str, access: FeatureAccess, vocabulary: Vocabulary) -> Checkpoint:
    checkpoint = Checkpoint.load(path)
    checkpoint.expect(vocabulary=vocabulary.key)
    for name in access.names:
        found, wanted = checkpoint.values["extractors"].get(name), access.about[name]["key"]
        if found != wanted:
            other = f"other '{name}' features ({str(found)[:12]}, here {wanted[:12]})"
            raise BadInput(f"the {model} was trained on {other}; train again")
    return checkpoint
