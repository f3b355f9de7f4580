"""Download pretrained weights before anything is planned: their hash is part of the features' keys."""

from collections.abc import Iterable

from models.backbones.zoo import canonical
from storage.errors import BadInput
from storage.weights import WeightsFolder
from tasks.extraction.extractors import BackboneFeature, FeatureOptions
from tasks.framework.progress import console


def fetch_weights(features: Iterable[FeatureOptions]) -> None:
    """Download the pretrained weights of these features that are not on this machine yet."""
    folder = WeightsFolder()
    wanted = {canonical(f.net) for f in features if isinstance(f, BackboneFeature) and f.is_pretrained}
    missing = sorted(net for net in wanted if folder.find(net) is None)
    if not missing:
        return
    from models.backbones.hub import fetch, wanted_file
    from models.backbones.weights import WeightsUnavailable

    for net in missing:
        try:
            source = wanted_file(net).source
            console.print(f"fetching the weights of {net} from {source}", highlight=False, markup=False)
            folder.register(net, fetch(net), source)
        except (WeightsUnavailable, ValueError) as error:
            raise BadInput(str(error)) from error
