"""Train the word tagger: a small net that learns from the training captions which words describe a clip.

GL-RG's long-range encoder in small, end to end on frames. The demo uses its position features: they need no download, and random
backbones would carry colour and nothing else."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from pydantic import Field

from models.tagger import TagBatch, TaggerOptions, TagLoss, WordTagger
from models.training.loop import FitOptions
from models.training.objective import Objective
from storage.catalogue import Catalogue
from storage.checkpoints import Checkpoint
from storage.errors import BadInput, BadMedia
from storage.media.frame_sampling import Sampling
from storage.media.resize import FrameTransform
from storage.options import Options
from storage.records import ArtifactRef
from storage.text.references import References
from tasks.extraction.frames import read_frames
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.training.trainer import Training, run_training


class TaggerTraining(FitOptions):
    """How the word tagger is trained."""

    epochs: int = Field(20, ge=1)
    """Passes over the training videos."""
    learning_rate: float = Field(2e-3, gt=0)
    """The highest learning rate."""
    batch_size: int = Field(16, ge=1, serialization_alias="videos")
    """Videos per batch."""
    seed: int = Field(0, ge=0)
    """Seed of weights, dropout and order."""


class TrainTaggerOptions(Options):
    """The tagger's net, its training, and the frames it sees."""

    net: TaggerOptions
    training: TaggerTraining
    sampling: Sampling
    """how its frames are chosen"""


class TagBatches:
    """Clips in memory, in an order that depends on seed and epoch alone."""

    def __init__(self, ids: list[str], clips: list[np.ndarray], targets: np.ndarray, size: int, seed: int):
        self.ids, self.clips, self.targets, self.size, self.seed = ids, clips, targets, size, seed

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.ids) / self.size)

    def __call__(self, epoch: int, skip: int) -> Iterator[TagBatch]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.ids))
        for step in range(skip, self.steps_per_epoch):
            rows = order[step * self.size : (step + 1) * self.size]
            # positions of shorter clips are repeated: (P, ...) -> (longest, ...)
            positions = np.arange(longest := max(len(self.clips[i]) for i in rows))
            clips = np.stack([self.clips[i][positions * len(self.clips[i]) // longest] for i in rows])
            ids = tuple(self.ids[i] for i in rows)
            yield TagBatch(ids, torch.from_numpy(clips), torch.from_numpy(self.targets[rows]))


@stage(version=1, device=True)
def train_tagger(context: StageContext, options: TrainTaggerOptions, videos: ArtifactRef, text: ArtifactRef) -> StageResult:
    references = References(context.path(text))
    words = references.tag_words[: options.net.words]
    captions = {id: [sentence.split() for sentence in rows] for id, rows in references.sentences("train").items()}
    catalogue = Catalogue(context.path(videos), context.data)
    wanted = [id for id in catalogue.ids("train") if id in catalogue.usable_keys and id in captions]
    transform = FrameTransform(size=(options.net.size, options.net.size))
    loaded: dict[str, np.ndarray] = {}
    with progress_bar("reading training frames", len(wanted), "videos") as bar:
        read = read_frames(context, catalogue, {id: {"tagger": options.sampling} for id in wanted}, transform)
        for id, frames in read:
            bar.advance()
            if not isinstance(frames, BadMedia):  # what cannot be decoded is quarantined by extraction
                loaded[id] = frames["tagger"].images
    ids, clips = list(loaded), list(loaded.values())
    if not ids:
        reason = "no training video can be decoded, so the word tagger has nothing to learn from"
        raise BadInput(f"{reason}; see the quarantine")
    targets = np.array([tag_targets(captions[id], words) for id in ids], np.float32)

    config = options.training
    torch.manual_seed(config.seed)
    net = WordTagger(options.net.model_copy(update={"words": len(words)}))
    training = Training(
        label="learning words",
        model=net,
        objective=Objective(words=(1.0, TagLoss())),
        batches=TagBatches(ids, clips, targets, config.batch_size, config.seed),
        options=config,
        result="tagger.safetensors",
        metadata={"net": net.options.model_dump(mode="json"), "words": words},
        curve_point=lambda epoch, means: {"loss": means["total"]},
    )
    trained = run_training(context, training)
    path = context.folder / training.result
    # Without the epoch: features can be keyed by the file's hash, and its bytes must not change.
    Checkpoint(Checkpoint.load(path).tensors, training.metadata).save(path)
    return StageResult(len(ids), {"words": len(words), "videos": len(ids), "loss": trained.history[-1]["loss"]})


def tag_targets(captions: list[list[str]], words: list[str]) -> list[float]:
    """For every word, the share of a video's captions that have it."""
    return [sum(word in caption for caption in captions) / len(captions) for word in words]
