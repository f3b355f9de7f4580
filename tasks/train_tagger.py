"""Train the word tagger: a net that learns from the training captions which words describe a clip.

The small one is GL-RG's long-range encoder in small, end to end on frames; its clips fit into memory. The demo uses its position
features: they need no download, and random backbones would carry colour and nothing else. The paper's own encoders, on top of
pretrained nets, see keyframes that are drawn anew at every step and streamed from the files."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from models.backbones.zoo import canonical
from models.range_tagger import AnyTaggerOptions
from models.tagger import TagBatch, TaggerOptions, TagLoss
from models.training.loop import Batches, FitOptions
from models.training.objective import Objective
from storage.catalogue import Catalogue
from storage.checkpoints import Checkpoint
from storage.errors import BadInput, BadMedia
from storage.media.frame_sampling import Keyframes, Sampling
from storage.media.resize import FrameTransform
from storage.options import Options
from storage.records import ArtifactRef
from storage.text.references import References
from storage.weights import WeightsFolder
from storage.workspace import Workspace
from tasks.extraction.frames import read_frames
from tasks.framework.progress import progress_bar
from tasks.framework.stage import KeyInputs, StageContext, StageResult, stage
from tasks.training.loading import build_tagger
from tasks.training.trainer import Training, run_training
from tasks.words_from_features import word_targets


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

    net: AnyTaggerOptions
    training: TaggerTraining
    sampling: Sampling
    """how its frames are chosen"""


def stack_positions(clips: Sequence[np.ndarray]) -> np.ndarray:
    """(P_i, ...) -> (B, longest P, ...): positions of shorter clips are repeated."""
    positions = np.arange(longest := max(len(clip) for clip in clips))
    return np.stack([clip[positions * len(clip) // longest] for clip in clips])


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
            clips = stack_positions([self.clips[i] for i in rows])
            ids = tuple(self.ids[i] for i in rows)
            yield TagBatch(ids, torch.from_numpy(clips), torch.from_numpy(self.targets[rows]))


ReadKeyframes = Callable[[dict[str, int]], Generator[tuple[str, np.ndarray | None], None, None]]
"""video id -> the seed of its draw -> each video, in this order, with its frames (P, M, S, S, 3), or None if it has none"""


class StreamedBatches:
    """Keyframes of a batch's videos, drawn by seed, epoch and video alone; only what decoders have ready is in memory. A video
    that cannot be decoded is left out of its batch."""

    def __init__(self, read: ReadKeyframes, ids: list[str], targets: np.ndarray, size: int, seed: int):
        self.read, self.ids, self.targets, self.size, self.seed = read, ids, targets, size, seed
        self._row = {id: n for n, id in enumerate(ids)}

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.ids) / self.size)

    def __call__(self, epoch: int, skip: int) -> Iterator[TagBatch]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.ids))[skip * self.size :].tolist()
        draws = {self.ids[n]: int(np.random.default_rng([self.seed, epoch, n + 1]).integers(2**31)) for n in order}
        found: dict[str, np.ndarray] = {}
        left = deque([self.ids[n] for n in order[start : start + self.size]] for start in range(0, len(order), self.size))
        with closing(self.read(draws)) as frames:
            for id, clip in frames:
                if clip is not None:
                    while id not in left[0]:  # the batch before is complete
                        yield self._batch(left.popleft(), found)
                    found[id] = clip
        while left:
            yield self._batch(left.popleft(), found)

    def _batch(self, videos: list[str], found: dict[str, np.ndarray]) -> TagBatch:
        """Takes the videos out of `found`."""
        clips = {id: found.pop(id) for id in videos if id in found}
        if not clips:
            raise BadInput(f"none of {', '.join(videos)} can be decoded, so a batch has no video; see the quarantine")
        rows = [self._row[id] for id in clips]
        return TagBatch(
            tuple(clips), torch.from_numpy(stack_positions(list(clips.values()))), torch.from_numpy(self.targets[rows])
        )


def _key_inputs(workspace: Workspace, data: Path, options: TrainTaggerOptions, **_: ArtifactRef) -> KeyInputs:
    """The weights of the pretrained nets below the tagger."""
    if isinstance(options.net, TaggerOptions) or options.net.weights == "random":
        return KeyInputs()
    folder = WeightsFolder()
    found = [folder.find(canonical(net)) for net in options.net.nets]
    return KeyInputs([known.sha256 if known else "not here yet" for known in found])


@stage(version=1, device=True, key_inputs=_key_inputs)
def train_tagger(context: StageContext, options: TrainTaggerOptions, videos: ArtifactRef, text: ArtifactRef) -> StageResult:
    references = References(context.path(text))
    words = references.tag_words[: options.net.words]
    captions = {id: [sentence.split() for sentence in rows] for id, rows in references.sentences("train").items()}
    catalogue = Catalogue(context.path(videos), context.data)
    wanted = [id for id in catalogue.ids("train") if id in catalogue.usable_keys and id in captions]
    transform = FrameTransform(size=(options.net.size, options.net.size))
    config = options.training
    if isinstance(options.sampling, Keyframes) and not isinstance(options.net, TaggerOptions):
        drawn = options.sampling.model_copy(update={"drawn": True})

        def read_keyframes(draws: dict[str, int]) -> Generator[tuple[str, np.ndarray | None], None, None]:
            each = {id: {"tagger": drawn.model_copy(update={"seed": seed})} for id, seed in draws.items()}
            for id, frames in read_frames(context, catalogue, each, transform):
                yield id, None if isinstance(frames, BadMedia) else frames["tagger"].images

        targets = np.array([word_targets(references.sentences("train")[id], words, "any") for id in wanted], np.float32)
        streamed = StreamedBatches(read_keyframes, wanted, targets, config.batch_size, config.seed)
        return _train(context, options, words, len(wanted), streamed)
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
    return _train(context, options, words, len(ids), TagBatches(ids, clips, targets, config.batch_size, config.seed))


def _train(context: StageContext, options: TrainTaggerOptions, words: list[str], videos: int, batches: Batches) -> StageResult:
    config = options.training
    torch.manual_seed(config.seed)
    net = build_tagger(options.net.model_copy(update={"words": len(words)}))
    training = Training(
        label="learning words",
        model=net,
        objective=Objective(words=(1.0, TagLoss())),
        batches=batches,
        options=config,
        result="tagger.safetensors",
        metadata={"net": net.options.model_dump(mode="json"), "words": words},
        curve_point=lambda epoch, means: {"loss": means["total"]},
    )
    trained = run_training(context, training)
    path = context.folder / training.result
    # Without the epoch: features can be keyed by the file's hash, and its bytes must not change.
    Checkpoint(Checkpoint.load(path).tensors, training.metadata).save(path)
    return StageResult(videos, {"words": len(words), "videos": videos, "loss": trained.history[-1]["loss"]})


def tag_targets(captions: list[list[str]], words: list[str]) -> list[float]:
    """For every word, the share of a video's captions that have it."""
    return [sum(word in caption for caption in captions) / len(captions) for word in words]
