"""Load what the training stages wrote: the word tagger, the embedding, a captioner or an ensemble of captioners."""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.zoo import canonical, open_backbone
from models.captioner import Captioner
from models.decoding.ensemble import Ensemble
from models.range_tagger import AnyTaggerOptions, RangeTagger
from models.tagger import TaggerOptions, WordTagger
from models.vse import VisualSemantic, VseOptions
from models.zoo import CaptionerOptions, build_captioner
from storage.checkpoints import Checkpoint
from storage.errors import BadInput
from storage.records import ArtifactRef
from storage.text.vocabulary import Vocabulary
from storage.weights import WeightsFolder
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageContext


def build_tagger(options: AnyTaggerOptions) -> WordTagger | RangeTagger:
    """A tagger with new weights, on top of pretrained nets where it wants some."""
    if isinstance(options, TaggerOptions):
        return WordTagger(options)
    return RangeTagger(options, [_pretrained(name, options.weights) for name in options.nets])


def _pretrained(name: str, weights: str) -> Backbone:
    known = WeightsFolder().find(canonical(name)) if weights == "pretrained" else None
    if weights == "pretrained" and known is None:
        raise BadInput(f"the pretrained weights of {name} are not here; 'longtake weights list' says where they are")
    return open_backbone(name, known.path if known else None, 0)


def load_tagger(checkpoint: Checkpoint) -> WordTagger | RangeTagger:
    """The word tagger in eval mode."""
    net = build_tagger(TypeAdapter(AnyTaggerOptions).validate_python(checkpoint.values["net"]))
    net.load_state_dict(model_weights(checkpoint))
    return net.eval()


def embedding_options(path: Path) -> VseOptions:
    """What kind of embedding a checkpoint holds."""
    return VseOptions.model_validate(Checkpoint.load(path).values["net"])


def load_embedding(path: Path, access: FeatureAccess, vocabulary: Vocabulary) -> VisualSemantic:
    """A trained embedding in eval mode, refused if it was trained with another vocabulary or other features."""
    checkpoint = _load_checked(path, "embedding", access, vocabulary)
    net = VisualSemantic(embedding_options(path), checkpoint.values["sizes"], len(vocabulary))
    net.load_state_dict(model_weights(checkpoint))
    return net.eval()


def captioner_options(path: Path) -> CaptionerOptions:
    """What kind of captioner a checkpoint holds."""
    return TypeAdapter(CaptionerOptions).validate_python(Checkpoint.load(path).values["captioner"])


def load_captioner(path: Path, access: FeatureAccess, vocabulary: Vocabulary) -> Captioner:
    """A trained captioner in eval mode, refused if it was trained with another vocabulary or other features."""
    checkpoint = _load_checked(path, "captioner", access, vocabulary)
    captioner = build_captioner(captioner_options(path), checkpoint.values["sizes"], len(vocabulary))
    captioner.load_state_dict(model_weights(checkpoint))
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


def model_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
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
