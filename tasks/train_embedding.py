"""Train the embedding: VSE++, a joint space of captions and videos. Its similarities are GLD's global reward.

Trained on the training split alone; the best epoch is the one with the highest sum of recalls on validation."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from models.training.objective import Objective
from models.vse import MaxOfHinges, VisualSemantic, VseOptions, recalls
from storage.errors import MissingFeatures
from storage.files.hashing import digest
from storage.options import Options
from storage.records import ArtifactRef
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import console
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.training.batches import CaptionData, EpochOver, pad
from tasks.training.data_size import DataSizedOptions, Patience
from tasks.training.trainer import Training, half_done, run_training


class EmbeddingTraining(DataSizedOptions):
    """How the embedding is trained."""

    epochs: int = Field(30, ge=1)
    """Passes over the training captions (or videos, see `epoch_over`)."""
    epoch_over: EpochOver = "captions"
    """What an epoch is a pass over: all captions, or all videos, each with `captions_per_video` of its captions."""
    learning_rate: float = Field(2e-4, gt=0)
    """The highest learning rate."""
    gradient_clip: float = Field(2.0, ge=0)
    """Longest gradient (norm over all weights); 0 lets every gradient through."""
    batch_size: int = Field(128, ge=2)
    """Videos per batch: the more, the harder its hardest negatives."""
    captions_per_video: int = Field(1, ge=1)
    """Captions of each video in a batch."""
    easy_epochs: int = Field(1, ge=0)
    """First epochs in which all negatives of a batch count. By the hardest alone from the start, all may end in one point."""
    patience: Patience = "auto"
    """Stop after so many epochs that find no more of the validation split; auto: 10, or as many as 300 steps take."""
    seed: int = Field(0, ge=0)
    """Seed of weights and the order of videos."""


class EmbeddingOptions(Options):
    """The embedding of videos and captions, and its training."""

    net: VseOptions
    """the net, and the features that it reads"""
    training: EmbeddingTraining = EmbeddingTraining()
    """how it is trained"""
    judges: Literal[1, 2] = 1
    """2: two embeddings, each trained on one half of the training videos and rewarding captions of the other half, so that none
    judges what it has learnt by heart"""
    half: Literal[0, 1] | None = None
    """the half of the training videos that this one is trained on; with two judges the pipeline sets it"""


_BATCH = 256  # videos or captions that are embedded together


@stage(version=3, device=True, half_done=half_done)  # 2: easy epochs; 3: epochs over captions
def train_embedding(context: StageContext, options: EmbeddingOptions, features: ArtifactRef, text: ArtifactRef) -> StageResult:
    device, config = context.runtime.torch_device(), options.training
    access = FeatureAccess.open(context.workspace, context.path(features), options.net.features)
    data = CaptionData(context, text, access)
    if options.half is not None:
        data.ids = [id for id in data.ids if half_of(id) == options.half]
    if len(data.ids) < 2:
        reason = "an embedding tells videos apart, and 1 training video has both captions and features"
        raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")
    config = data.sized(config, config.captions_per_video, config.epoch_over)
    validation = data.references.token_ids("val")
    validation = {id: validation[id] for id in access.usable(sorted(validation))}
    torch.manual_seed(config.seed)
    net = VisualSemantic(options.net, access.sizes, len(data.references.vocabulary))

    def validate() -> tuple[float, dict[str, Any]]:
        found = retrieval(net, access, validation, device)
        return sum(found.values()), {"val": found}

    training = Training(
        label="learning which caption is whose",
        model=net,
        objective=Objective(hinges=(1.0, MaxOfHinges(config.easy_epochs))),
        batches=data.batches(config.batch_size, config.captions_per_video, config.seed, epoch_over=config.epoch_over),
        options=config,
        result="embedding.safetensors",
        metadata=data.metadata(net=options.net, training=config),
        validate=validate if validation else None,
        score_name="sum of recalls",
        patience=int(config.patience),
        curve_point=lambda epoch, means: {"loss": means["total"]},
    )
    trained = run_training(context, training)
    history, best = trained.history, trained.best.epoch
    metrics = {f"val {name}": value for name, value in history[best].get("val", {}).items()}
    summary = {"epochs": len(history), "best_epoch": best + 1, **metrics}
    if best >= config.easy_epochs and has_collapsed(history[best]["loss"], options.net.margin):
        summary["warning"] = (
            f"the embedding hardly tells videos apart: its loss, {history[best]['loss']:.3f}, is about twice the margin, as if "
            "all lay in one point; more embedding.training.easy_epochs or a lower learning_rate may help"
        )
        console.print(f"  {summary['warning']}", highlight=False, markup=False)
    return StageResult(len(history), summary)


def half_of(id: str) -> int:
    """The half of the training videos, 0 or 1, that a video belongs to: the same whatever other videos there are."""
    return int(digest(id), 16) % 2


def has_collapsed(loss: float, margin: float) -> bool:
    """Whether the max of hinges is about what it is if all vectors are the same: twice the margin, for videos and captions."""
    return abs(loss / (2 * margin) - 1) < 0.03


@torch.no_grad()
def retrieval(net: VisualSemantic, access: FeatureAccess, captions: dict[str, list[list[int]]], device: str) -> dict[str, float]:
    """Videos with their captions as BOS w1 .. wn EOS -> R@1, 5 and 10 of captions for videos and of videos for captions."""
    rows = [token_ids[1:] for of_video in captions.values() for token_ids in of_video]
    counts = torch.tensor([len(of_video) for of_video in captions.values()], device=device)
    video_index = torch.arange(len(captions), device=device).repeat_interleave(counts)
    starts = range(0, len(rows), _BATCH)
    sentences = torch.cat([net.sentences(pad(rows[start : start + _BATCH]).to(device)) for start in starts])
    return recalls(sentences, embed_videos(net, access, list(captions), device), video_index)


@torch.no_grad()
def embed_videos(net: VisualSemantic, access: FeatureAccess, ids: Sequence[str], device: str) -> Tensor:
    """B videos -> their vectors (B, S) in the joint space."""
    blocks = (ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH))
    return torch.cat([net.videos(*access.read(block, device)) for block in blocks])
