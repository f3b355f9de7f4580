"""Seeding: train the captioner by cross-entropy, choose its best epoch by validation CIDEr, resume exactly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, TypeAdapter

from models.captioner import Captioner
from models.decoders.search import SearchOptions
from models.losses.cross_entropy import CrossEntropy
from models.scores.corpus import score_corpus
from models.training.loop import FitOptions, Progress, undisturbed
from models.training.objective import Objective
from models.zoo import CaptionerOptions, build_captioner
from storage.atomic import write_jsonl
from storage.checkpoints import Checkpoint
from storage.errors import BadInput, MissingFeatures
from storage.options import Options
from storage.records import ArtifactRef
from storage.references import References
from tasks.batches import CaptionBatches
from tasks.captioning import caption_videos
from tasks.feature_access import FeatureAccess
from tasks.progress import meter
from tasks.stage import Made, Work, stage
from tasks.training_state import model_only, resume, to_checkpoint, train


class SeedingOptions(FitOptions):
    """Training by cross-entropy."""

    epochs: int = Field(30, ge=1)
    """Passes over the training videos."""
    learning_rate: float = Field(5e-4, gt=0)
    """The highest learning rate."""
    videos: int = Field(32, ge=1)
    """Videos in a batch."""
    captions: int = Field(5, ge=1)
    """Captions of each video in a batch."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the probability that goes to all words alike."""
    patience: int = Field(10, ge=1)
    """Stop after so many epochs without a better validation CIDEr."""
    validate_every: int = Field(1, ge=1)
    """Epochs between two validations."""
    seed: int = Field(0, ge=0)
    """Seed of weights, dropout and the order of videos."""


class SeedOptions(Options):
    """A captioner and how it is seeded."""

    captioner: CaptionerOptions
    seeding: SeedingOptions
    max_words: int = 20
    """Longest caption in validation."""


_SAVE_EVERY = 20.0  # seconds between checkpoints within an epoch: what a kill can cost; never changes the result


@stage(version=1)
def seed(
    work: Work,
    options: SeedOptions,
    features: ArtifactRef,
    text_train: ArtifactRef,
    text_val: ArtifactRef,
    **parts: ArtifactRef,
) -> Made:
    device, how = work.runtime.torch_device(), options.seeding
    references = References(work.path(text_train))
    access = FeatureAccess.open(work.workspace, work.path(features), options.captioner.features)
    captions = references.numbers("train")
    ids = access.usable(sorted(captions))
    if not ids:
        raise MissingFeatures(
            "no training video has both captions and features; 'longtake status' lists what is missing"
        )
    validation = {id: refs for id, refs in references.sentences("val").items() if access.usable([id])}

    torch.manual_seed(how.seed)
    captioner = build_captioner(options.captioner, access.sizes, len(references.vocabulary))
    batches = CaptionBatches(access, captions, ids, how.videos, how.captions, how.seed)
    objective = Objective(xe=(1.0, CrossEntropy(how.label_smoothing)))
    state, kept = resume(work.folder / "last.safetensors")
    history: list[dict[str, Any]] = kept.get("history", [])
    best: dict[str, Any] = kept.get("best", {"cider": -1.0, "epoch": -1})
    if kept.get("stopped"):
        return _finish(work, options, history, best)
    total, saved = how.epochs * batches.steps_per_epoch, time.monotonic()
    with meter("seeding", total, "steps") as shown:
        sums: dict[str, float] = kept.get("sums", {})
        for progress in train(captioner, objective, batches, how, state, device):
            for name, loss in progress.losses.items():
                sums[name] = sums.get(name, 0.0) + loss
            figures = f"loss {progress.losses['total']:.3f}  best CIDEr {max(best['cider'], 0):.3f}"
            shown.to(progress.step, figures)
            stopped = False
            if progress.end_of_epoch:
                history.append(_curve_point(progress, sums))
                sums = {}
                last = progress.epoch + 1 == how.epochs
                if validation and (last or (progress.epoch + 1) % how.validate_every == 0):
                    with undisturbed(captioner):
                        cider = _validate(captioner, access, references, validation, options.max_words, device)
                    history[-1]["val_cider"] = cider
                    if cider > best["cider"]:
                        best = {"cider": cider, "epoch": progress.epoch}
                        _save_best(work.folder, progress, options, references, access)
                    stopped = progress.epoch - best["epoch"] >= how.patience
                elif not validation and last:
                    best = {"cider": -1.0, "epoch": progress.epoch}
                    _save_best(work.folder, progress, options, references, access)
                stopped = stopped or last
            if progress.end_of_epoch or time.monotonic() - saved > _SAVE_EVERY:
                values = {"history": history, "best": best, "sums": sums, "stopped": stopped}
                to_checkpoint(progress.snapshot(), **values).save(work.folder / "last.safetensors")
                saved = time.monotonic()
            if stopped:
                break
    return _finish(work, options, history, best)


def _curve_point(progress: Progress, sums: dict[str, float]) -> dict[str, Any]:
    means = {name: total / progress.steps_per_epoch for name, total in sums.items()}
    return {"epoch": progress.epoch + 1, "step": progress.step, "learning_rate": progress.learning_rate, **means}


def _validate(
    captioner: Captioner,
    access: FeatureAccess,
    references: References,
    validation: dict[str, list[str]],
    max_words: int,
    device: str,
) -> float:
    greedy = SearchOptions(width=1, max_length=max_words)
    found = caption_videos(captioner, access, references.vocabulary, sorted(validation), greedy, device)
    return score_corpus({c.video_id: c.caption for c in found}, validation).corpus["CIDEr"]


def _save_best(
    folder: Path, progress: Progress, options: SeedOptions, references: References, access: FeatureAccess
) -> None:
    checkpoint = model_only(
        to_checkpoint(progress.snapshot()),
        captioner=options.captioner.model_dump(mode="json"),
        vocabulary=references.vocabulary.key,
        sizes=access.sizes,
        extractors={name: access.about[name]["key"] for name in access.names},
        epoch=progress.epoch,
    )
    checkpoint.save(folder / "captioner.safetensors")


def _finish(work: Work, options: SeedOptions, history: list[dict[str, Any]], best: dict[str, Any]) -> Made:
    write_jsonl(work.folder / "curves.jsonl", history)
    (work.folder / "last.safetensors").unlink(missing_ok=True)
    summary = {"epochs": len(history), "best_epoch": best["epoch"] + 1, "val_cider": best["cider"]}
    return Made(len(history), summary)


def load_captioner(path: Path, access: FeatureAccess, vocabulary_key: str, vocabulary_size: int) -> Captioner:
    """A trained captioner, refused if it was trained with another vocabulary or other features."""
    checkpoint = Checkpoint.load(path)
    checkpoint.expect(vocabulary=vocabulary_key)
    for name in access.names:
        found, wanted = checkpoint.values["extractors"].get(name), access.about[name]["key"]
        if found != wanted:
            raise BadInput(
                f"the captioner was trained on other '{name}' features ({str(found)[:12]}, here {wanted[:12]}); train again"
            )
    options = TypeAdapter(CaptionerOptions).validate_python(checkpoint.values["captioner"])
    captioner = build_captioner(options, checkpoint.values["sizes"], vocabulary_size)
    weights = {
        name.removeprefix("model."): torch.from_numpy(array.copy()) for name, array in checkpoint.tensors.items()
    }
    captioner.load_state_dict(weights)
    return captioner
