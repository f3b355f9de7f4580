"""The extraction engine on a few clips, with small random nets."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage.features.store import FeatureStore
from storage.media.frame_sampling import Sampling, Uniform
from tasks.extraction.engine import Feature, RowResult, Video, extract
from tasks.extraction.extractors import BackboneFeature
from tasks.extraction.nets import Engine, open_net, spec_of
from tasks.framework.runtime import Runtime

SEVEN_FRAMES = Uniform(frames=7)
IN_PROCESS = Runtime(decoders=0, net_processes=0, device="cpu", batch=3)


class ToyExtraction:
    """Some features of some videos, in stores below a folder."""

    def __init__(self, folder: Path, videos: list[Video], engine: Engine = "torch"):
        self.folder, self.videos, self.engine = folder, videos, engine
        self.features: list[Feature] = []

    def add(
        self, name: str, sampling: Sampling | None = SEVEN_FRAMES, pending: list[str] | None = None, **options: object
    ) -> ToyExtraction:
        feature = BackboneFeature.model_validate({"net": "timm:test_resnet", "weights": "random", **options})
        net = open_net(spec_of(feature, "random", None, "cpu", engine=self.engine))
        writer = FeatureStore.create(self.folder / name, provenance={"extractor_key": name}).writer()
        rows = {id: f"key of {id}" for id in pending or [video.id for video in self.videos]}
        averaged, request = feature.over_time == "mean", net.request(sampling, name)
        self.features.append(Feature(name, net, request, feature.output_name, averaged, writer, rows))
        return self

    def run(self, runtime: Runtime = IN_PROCESS) -> list[RowResult]:
        results = list(extract(self.features, self.videos, runtime))
        for feature in self.features:
            feature.writer.close()
        return results

    def rows(self, name: str) -> dict[str, np.ndarray]:
        view = FeatureStore.open(self.folder / name).view()
        return {video.id: view.read(video.id) for video in self.videos if video.id in view.lengths()}


def same_rows(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[id], other[id]) for id in one.keys() & other.keys())
