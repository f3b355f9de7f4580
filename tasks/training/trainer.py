"""A training from where it stands to its end: the part that seeding, boosting and the embedding have in common.

Sums of the curves, validation, the best epoch, early stopping, a checkpoint every few seconds and exact resume. What differs is
told by a `Training`: the model, the objective, how its epochs are judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from models.training.compiling import compile_modules
from models.training.loop import Batches, FitOptions, Progress, Schedule, random_state, undisturbed
from models.training.parallel import Ranks
from storage.checkpoints import LastCheckpoints
from storage.files.atomic import write_jsonl
from tasks.framework.progress import CurveArtifact, meter
from tasks.framework.stage import StageContext
from tasks.training.state import BAD_BATCH, Resumed, model_only, to_checkpoint, train

_SAVE_EVERY = 20.0  # seconds between checkpoints within an epoch: what a kill can cost; never changes the result


def _nothing() -> dict[str, Any]:
    return {}


def _as_they_are(epoch: int, means: dict[str, float]) -> dict[str, Any]:
    return dict(means)


@dataclass(frozen=True)
class ValidationResult:
    """What validation says of an epoch: a score to make large, and what the curve shows of it."""

    score: float
    shown: dict[str, Any]


@dataclass(frozen=True)
class Best:
    """The best epoch so far (from 0; -1: none, or what training started from) and its score."""

    score: float = -1.0
    epoch: int = -1


@dataclass(frozen=True)
class Training:
    """What is trained, how, and how the best of its epochs is known."""

    label: str
    model: nn.Module
    objective: Schedule
    batches: Batches
    how: FitOptions
    result: str
    """the file of the best epoch's weights"""
    about: dict[str, Any]
    """what that file says of itself beside its epoch"""
    judge: Callable[[], ValidationResult] | None
    """validation of the model as it is, in eval mode; None where there is nothing to validate on: the last epoch is the best"""
    measure: str
    """what the judge's score is called"""
    patience: int
    """epochs without a better score that end it"""
    validate_every: int = 1
    first: int = 0
    """the first epoch that can be the best"""
    begin: Callable[[], tuple[dict[str, Any], Best]] | None = None
    """for a training that starts from something: the curve's first point, and that start as the best so far"""
    figures: Callable[[], Mapping[str, float]] = _nothing
    """more figures of the step just done, for the curves"""
    point: Callable[[int, dict[str, float]], dict[str, Any]] = _as_they_are
    """an epoch (from 1) and the means of its losses and figures -> what the curve says of it"""
    memory: Callable[[], dict[str, Any]] = _nothing
    """what else the next step depends on, for the checkpoint"""


@dataclass(frozen=True)
class Trained:
    """A training's end: its curve and its best epoch."""

    history: list[dict[str, Any]]
    best: Best


@dataclass
class _Standing:
    """Where a training stands, beside what the loop knows."""

    history: list[dict[str, Any]] = field(default_factory=list)
    best: Best = Best()
    sums: dict[str, float] = field(default_factory=dict)
    stopped: bool = False

    @classmethod
    def of(cls, kept: dict[str, Any]) -> _Standing:
        return cls(kept["history"], Best(**kept["best"]), kept["sums"], kept["stopped"])

    def to_json(self) -> dict[str, Any]:
        best = {"score": self.best.score, "epoch": self.best.epoch}
        return {"history": self.history, "best": best, "sums": self.sums, "stopped": self.stopped}


def finish_training(context: StageContext, training: Training, found: Resumed) -> Trained:
    """Train from where `found` says to the end, saving on the way. At the end checkpoints are removed: the best epoch's weights
    and the curve are what stays.

    Of several processes that train together, all call this; the leading one alone validates, decides and writes."""
    ranks = Ranks()
    if found.values:
        found.expect(training.about, context.folder)
    ranks.broadcast(0)  # all have read the checkpoint: from now on it may be replaced
    now = _Standing.of(found.values) if found.values else _start(training) if ranks.is_main_process else _Standing()
    saved = LastCheckpoints(context.folder / "last.safetensors", context.runtime.checkpoints)
    curve = CurveArtifact(training.label)
    if not now.stopped:
        _go_on(context, training, found, now, ranks, saved, curve)
    if ranks.is_main_process:
        write_jsonl(context.folder / "curves.jsonl", now.history)
        curve.show(now.history, final=True)
        saved.remove()
        (context.folder / BAD_BATCH).unlink(missing_ok=True)
    told = ranks.gather(now.to_json() if ranks.is_main_process else {})[0]
    return Trained(told["history"], Best(**told["best"]))


def _start(training: Training) -> _Standing:
    if training.begin is None:
        return _Standing()
    point, best = training.begin()
    return _Standing([point], best)


def _go_on(
    context: StageContext,
    training: Training,
    found: Resumed,
    now: _Standing,
    ranks: Ranks,
    checkpoints: LastCheckpoints,
    curve: CurveArtifact,
) -> None:
    how, batches, runtime, saved = training.how, training.batches, context.runtime, time.monotonic()
    done = found.state.values["step"] if found.state else 0
    total = how.epochs * batches.steps_per_epoch
    if runtime.compile_training:
        compile_modules(training.model)
    steps = train(
        context.folder,
        training.model,
        training.objective,
        batches,
        how,
        found.state,
        runtime.torch_device(),
        ranks,
        half=runtime.training_precision == "bfloat16",
    )
    with meter(training.label, total, "steps", done) if ranks.is_main_process else nullcontext() as shown:
        for progress in steps:
            figures = {**progress.losses, **ranks.mean(training.figures(), progress.videos)}
            for name, value in figures.items():
                now.sums[name] = now.sums.get(name, 0.0) + value
            if shown is not None:
                shown.to(progress.step, _told(training, figures, now.best))
            if ranks.is_main_process and progress.end_of_epoch:
                _end_epoch(context, training, progress, now)
                write_jsonl(context.folder / "curves.jsonl", now.history)  # for those who watch
                curve.show(now.history)
            now.stopped = bool(ranks.broadcast(now.stopped))
            if ranks.broadcast(progress.end_of_epoch or time.monotonic() - saved > _SAVE_EVERY):
                others = ranks.random_states(random_state())
                if ranks.is_main_process:
                    state = progress.snapshot().with_tensors({f"rng.{name}": rng for name, rng in others.items()})
                    values = {"about": training.about, **now.to_json(), **training.memory()}
                    checkpoints.save(to_checkpoint(state, **values))
                saved = time.monotonic()
            if now.stopped:
                break


def _told(training: Training, figures: Mapping[str, float], best: Best) -> str:
    parts = [f"loss {figures['total']:.3f}"]
    if "reward" in figures:
        parts.append(f"reward {figures['reward']:.3f}")
    if training.judge is not None and training.how.keep == "best":
        parts.append(f"best {training.measure} {max(best.score, 0):.3f}")
    return "  ".join(parts)


def _end_epoch(context: StageContext, training: Training, progress: Progress, now: _Standing) -> None:
    """A point of the curve; is it the best so far; was it the last one."""
    means = {name: total / progress.steps_per_epoch for name, total in now.sums.items()}
    number = progress.epoch + 1
    point = {"epoch": number, "step": progress.step, "learning_rate": progress.learning_rate}
    now.history.append(point | training.point(number, means))
    now.sums = {}
    last = number == training.how.epochs
    if training.judge is not None and (last or number % training.validate_every == 0):
        with progress.averaged(), undisturbed(training.model):
            judged = training.judge()
        now.history[-1] |= judged.shown
        best = (
            last if training.how.keep == "last" else judged.score > now.best.score and progress.epoch >= training.first
        )
        if best:
            now.best = Best(judged.score, progress.epoch)
            _save_best(context, training, progress)
        since = max(now.best.epoch, training.first - 1)
        now.stopped = training.how.keep == "best" and progress.epoch - since >= training.patience
    elif training.judge is None and last:
        now.best = Best(epoch=progress.epoch)
        _save_best(context, training, progress)
    now.stopped = now.stopped or last


def _save_best(context: StageContext, training: Training, progress: Progress) -> None:
    with progress.averaged():
        checkpoint = model_only(to_checkpoint(progress.snapshot()), **training.about, epoch=progress.epoch)
    checkpoint.save(context.folder / training.result)
