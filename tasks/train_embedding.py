"""Train the embedding: VSE++, a space where captions lie close to their videos. Its scores are GLD's global reward.

Trained on the training split alone; its best epoch is the one that finds most validation captions and videos again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from models.embedding.vse import MaxOfHinges, VisualSemantic, VseOptions, recalls
from models.training.loop import FitOptions, Progress, undisturbed
from models.training.objective import Objective
from storage.atomic import write_jsonl
from storage.checkpoints import Checkpoint
from storage.errors import BadInput, MissingFeatures
from storage.options import Options
from storage.records import ArtifactRef
from storage.references import References
from tasks.batches import CaptionBatches, pad
from tasks.feature_access import FeatureAccess
from tasks.progress import meter
from tasks.stage import Made, Work, stage
from tasks.training_state import model_only, resume, to_checkpoint, train


class EmbeddingTraining(FitOptions):
    """How the embedding is trained."""

    epochs: int = Field(30, ge=1)
    """Passes over the training videos."""
    learning_rate: float = Field(2e-4, gt=0)
    """The highest learning rate."""
    clip: float = Field(2.0, ge=0)
    """Longest gradient (norm over all weights); 0 lets every gradient through."""
    videos: int = Field(128, ge=2)
    """Videos in a batch: the more, the harder its hardest negatives."""
    captions: int = Field(1, ge=1)
    """Captions of each video in a batch."""
    patience: int = Field(10, ge=1)
    """Stop after so many epochs that find no more of the validation split."""
    seed: int = Field(0, ge=0)
    """Seed of weights and the order of videos."""


class EmbeddingOptions(Options):
    """The embedding of videos and captions, and its training."""

    net: VseOptions
    """the net, and the features that it reads"""
    training: EmbeddingTraining = EmbeddingTraining()
    """how it is trained"""


_SAVE_EVERY = 20.0  # seconds between checkpoints within an epoch: what a kill can cost; never changes the result
_BATCH = 256  # videos or captions that are embedded at a time


@stage(version=1)
def train_embedding(
    work: Work,
    options: EmbeddingOptions,
    features: ArtifactRef,
    text_train: ArtifactRef,
    text_val: ArtifactRef,
    **parts: ArtifactRef,
) -> Made:
    device, how = work.runtime.torch_device(), options.training
    references = References(work.path(text_train))
    access = FeatureAccess.open(work.workspace, work.path(features), options.net.features)
    captions = references.numbers("train")
    ids = access.usable(sorted(captions))
    if len(ids) < 2:
        raise MissingFeatures(
            f"an embedding tells videos apart, and {len(ids)} training videos have both captions and features; "
            "'longtake status' lists what is missing"
        )
    validation = references.numbers("val")
    validation = {id: validation[id] for id in access.usable(sorted(validation))}

    torch.manual_seed(how.seed)
    net = VisualSemantic(options.net, access.sizes, len(references.vocabulary))
    batches = CaptionBatches(access, captions, references.ns("train"), ids, how.videos, how.captions, how.seed)
    state, kept = resume(work.folder / "last.safetensors")
    history: list[dict[str, Any]] = kept.get("history", [])
    best: dict[str, Any] = kept.get("best", {"found": -1.0, "epoch": -1})
    if kept.get("stopped"):
        return _finish(work, history, best)
    total, saved = how.epochs * batches.steps_per_epoch, time.monotonic()
    with meter("learning which caption is whose", total, "steps") as shown:
        sums: float = kept.get("sums", 0.0)
        for progress in train(net, Objective(hinges=(1.0, MaxOfHinges())), batches, how, state, device):
            sums += progress.losses["total"]
            shown.to(progress.step, f"loss {progress.losses['total']:.3f}")
            stopped = False
            if progress.end_of_epoch:
                history.append(_curve_point(progress, sums))
                sums, last = 0.0, progress.epoch + 1 == how.epochs
                if validation:
                    with undisturbed(net):
                        found = retrieval(net, access, validation, device)
                    history[-1] |= {"val": found}
                    if sum(found.values()) > best["found"]:
                        best = {"found": sum(found.values()), "epoch": progress.epoch}
                        _save_best(work.folder, progress, options, references, access)
                    stopped = last or progress.epoch - best["epoch"] >= how.patience
                elif last:
                    best, stopped = {"found": -1.0, "epoch": progress.epoch}, True
                    _save_best(work.folder, progress, options, references, access)
            if progress.end_of_epoch or time.monotonic() - saved > _SAVE_EVERY:
                values = {"history": history, "best": best, "sums": sums, "stopped": stopped}
                to_checkpoint(progress.snapshot(), **values).save(work.folder / "last.safetensors")
                saved = time.monotonic()
            if stopped:
                break
    return _finish(work, history, best)


def _curve_point(progress: Progress, sums: float) -> dict[str, Any]:
    loss = sums / progress.steps_per_epoch
    return {
        "epoch": progress.epoch + 1,
        "step": progress.step,
        "learning_rate": progress.learning_rate,
        "loss": loss,
    }


@torch.no_grad()
def retrieval(
    net: VisualSemantic, access: FeatureAccess, captions: dict[str, list[list[int]]], device: str
) -> dict[str, float]:
    """Videos and their captions as BOS w1 .. wn EOS -> R@1, 5 and 10 of captions for videos and of videos for captions."""
    rows = [numbers[1:] for of_video in captions.values() for numbers in of_video]
    counts = torch.tensor([len(of_video) for of_video in captions.values()], device=device)
    owner = torch.arange(len(captions), device=device).repeat_interleave(counts)
    starts = range(0, len(rows), _BATCH)
    said = torch.cat([net.sentences(pad(rows[start : start + _BATCH]).to(device)) for start in starts])
    return recalls(said, embed_videos(net, access, list(captions), device), owner)


@torch.no_grad()
def embed_videos(net: VisualSemantic, access: FeatureAccess, ids: Sequence[str], device: str) -> Tensor:
    """B videos -> their vectors (B, S) in the joint space."""
    vectors = []
    for start in range(0, len(ids), _BATCH):
        features, masks = access.read(ids[start : start + _BATCH])
        on_device = ({name: x.to(device) for name, x in part.items()} for part in (features, masks))
        vectors.append(net.videos(*on_device))
    return torch.cat(vectors)


def _save_best(
    folder: Path, progress: Progress, options: EmbeddingOptions, references: References, access: FeatureAccess
) -> None:
    checkpoint = model_only(
        to_checkpoint(progress.snapshot()),
        net=options.net.model_dump(mode="json"),
        vocabulary=references.vocabulary.key,
        sizes=access.sizes,
        extractors={name: access.about[name]["key"] for name in access.names},
        epoch=progress.epoch,
    )
    checkpoint.save(folder / "embedding.safetensors")


def _finish(work: Work, history: list[dict[str, Any]], best: dict[str, Any]) -> Made:
    write_jsonl(work.folder / "curves.jsonl", history)
    (work.folder / "last.safetensors").unlink(missing_ok=True)
    figures = {f"val {name}": value for name, value in history[best["epoch"]].get("val", {}).items()}
    return Made(len(history), {"epochs": len(history), "best_epoch": best["epoch"] + 1, **figures})


def embedding_options(path: Path) -> VseOptions:
    """What kind of embedding a checkpoint holds."""
    return VseOptions.model_validate(Checkpoint.load(path).values["net"])


def load_embedding(path: Path, access: FeatureAccess, vocabulary_key: str, vocabulary_size: int) -> VisualSemantic:
    """A trained embedding in eval mode, refused if it was trained with another vocabulary or other features."""
    checkpoint = Checkpoint.load(path)
    checkpoint.expect(vocabulary=vocabulary_key)
    options = embedding_options(path)
    for name in options.features:
        found = checkpoint.values["extractors"][name]
        wanted = access.about[name]["key"] if name in access.about else "none"
        if found != wanted:
            raise BadInput(
                f"the embedding was trained on other '{name}' features ({found[:12]}, here {wanted[:12]}); train it again"
            )
    net = VisualSemantic(options, checkpoint.values["sizes"], vocabulary_size)
    net.load_state_dict({n.removeprefix("model."): torch.from_numpy(a.copy()) for n, a in checkpoint.tensors.items()})
    return net.eval()
