"""A trained captioner as a stage is given it: one, or several that speak as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.captioner import Captioner
from models.decoding.ensemble import Ensemble
from storage.records import ArtifactRef
from storage.text.vocabulary import Vocabulary
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.stage import StageContext
from tasks.seed import captioner_options, load_captioner


def open_trained(
    context: StageContext, vocabulary: Vocabulary, features: ArtifactRef, captioners: Sequence[ArtifactRef]
) -> tuple[Captioner, FeatureAccess]:
    """The captioner in eval mode on the stage's device, and the features that it reads. Of several captioners, the mean
    (GLD, Table II): their kind and features are the same, their weights are not."""
    paths = [context.path(ref) / "captioner.safetensors" for ref in captioners]
    access = FeatureAccess.for_captioner(context.workspace, context.path(features), captioner_options(paths[0]))
    return load_trained(paths, access, vocabulary, context.runtime.torch_device()), access


def load_trained(paths: Sequence[Path], access: FeatureAccess, vocabulary: Vocabulary, device: str) -> Captioner:
    """The captioner of one checkpoint, or the mean of several, in eval mode."""
    nets = [load_captioner(path, access, vocabulary.key, len(vocabulary)) for path in paths]
    net = nets[0] if len(nets) == 1 else Ensemble(nets)
    return net.to(device).eval()
