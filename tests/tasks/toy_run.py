"""The stages before the one a test is about, on the tiny world, each carried out alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.captioners.lstm import SaLstmOptions
from models.decoding.beam_search import SearchOptions
from models.tagger import TaggerOptions
from storage.media.frame_sampling import Clips
from storage.options import Options
from storage.text.vocabulary import TextOptions
from tasks.caption import CaptionOptions, caption
from tasks.catalogue import catalogue
from tasks.evaluate import EvaluationOptions, evaluate
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction.extractors import TaggerFeature
from tasks.framework.stage import StageRun
from tasks.prepare_text import prepare_text
from tasks.sample_frames import SamplingOptions, sample_frames
from tasks.seed import SeedingOptions, SeedOptions, seed
from tasks.train_tagger import TaggerTraining, TrainTaggerOptions, train_tagger
from tests.conftest import TINY_WORLD

SAMPLING = Clips(positions=4, length=3, step=2)
TAGGER = TrainTaggerOptions(
    net=TaggerOptions(words=20, size=32, channels=(8, 16, 16), feature_size=16),
    training=TaggerTraining(epochs=2, batch_size=5),
    sampling=SAMPLING,
)
EXTRACT = ExtractOptions(dataset="demo", features={"scene": TaggerFeature(sampling="clips")}, sampling={"clips": SAMPLING})
CAPTIONER = SaLstmOptions(features=("scene",), embedding=16, hidden=16, attention=16, dropout=0.1)
SEED = SeedOptions(captioner=CAPTIONER, seeding=SeedingOptions(epochs=3, batch_size=4, captions_per_video=4), max_words=8)


@dataclass
class ToyRun:
    """Each method carries out one stage on the tiny world, with what it needs before it, and gives its job."""

    alone: Callable[..., StageRun]
    data: Path
    dataset: Options = TINY_WORLD

    def catalogue(self) -> StageRun:
        return self.alone(catalogue, self.dataset, self.data)

    def text(self) -> StageRun:
        captions = self.catalogue().ref.part("captions")
        return self.alone(prepare_text, TextOptions(min_count=1), self.data, captions=captions)

    def frames(self) -> StageRun:
        videos = self.catalogue().ref.part("videos")
        return self.alone(sample_frames, SamplingOptions(sampling=SAMPLING), self.data, videos=videos)

    def tagger(self) -> StageRun:
        inputs = {"videos": self.catalogue().ref.part("videos/train"), "text": self.text().ref.part("train")}
        return self.alone(train_tagger, TAGGER, self.data, **inputs)

    def features(self, options: ExtractOptions = EXTRACT) -> StageRun:
        inputs = {"videos": self.catalogue().ref.part("videos"), "tagger": self.tagger().ref}
        return self.alone(extract_features, options, self.data, **inputs, frame_plans=(self.frames().ref,))

    def seeded(self, options: SeedOptions = SEED) -> StageRun:
        text, features = self.text().ref, self.features().ref
        inputs = {"features": features.part("scene/train", "scene/val"), "text": text.part("train", "val")}
        return self.alone(seed, options, self.data, **inputs)

    def captions(self, width: int = 2) -> StageRun:
        options = CaptionOptions(split="test", search=SearchOptions(width=width, max_length=8))
        return self.alone(
            caption,
            options,
            self.data,
            captioners=(self.seeded().ref,),
            text=self.text().ref.part("train"),
            videos=self.catalogue().ref.part("videos/test"),
            features=self.features().ref.part("scene/test"),
        )

    def scores(self, **options: Any) -> StageRun:
        return self.alone(
            evaluate,
            EvaluationOptions(**{"meteor": False, **options}),
            self.data,
            captions=self.captions().ref,
            text=self.text().ref.part("test", "train"),
            captioners=(self.seeded().ref,),
            features=self.features().ref.part("scene/test"),
        )
