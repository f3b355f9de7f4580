"""The trainer that all training stages share: curves, validation, the best epoch, early stopping, checkpoints and exact resume.

A `Training` says what differs between them: the model, the objective, the batches and how an epoch is validated."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.training import loop
from models.training.loop import Batches, FitOptions, Progress, Schedule, TrainState, random_state, undisturbed
from models.training.parallel import Ranks
from storage.checkpoints import Checkpoint, LastCheckpoints
from storage.errors import LongtakeError, Mismatch, StorageError
from storage.files.atomic import FileWriter, write_json, write_jsonl
from tasks.framework.progress import CurveArtifact, progress_bar
from tasks.framework.stage import StageContext

LAST, BAD_BATCH, FIRST, TOTAL = "last.safetensors", "not-finite.json", "first", "total_steps"
_SAVE_EVERY = 20.0  # seconds between checkpoints within an epoch: what a kill can cost; never changes the result


@dataclass(frozen=True)
class BestEpoch:
    """The best epoch so far (from 0; -1: none, or the model that training started from) and its score."""

    score: float = -1.0
    epoch: int = -1


@dataclass(frozen=True)
class Training:
    """What is trained, with which options, and how its epochs are validated."""

    label: str
    model: nn.Module
    objective: Schedule
    batches: Batches
    options: FitOptions
    result: str
    """the file for the best epoch's weights"""
    metadata: dict[str, Any]
    """the values that this file holds, beside the epoch"""
    validate: Callable[[], tuple[float, dict[str, Any]]] | None = None
    """validates the model in eval mode: its score, higher is better, and metrics for the curve; None where there is nothing to
    validate on: then the last epoch is the best"""
    score_name: str = ""
    patience: int = 1
    """stop after so many epochs without a better score"""
    validate_every: int = 1
    first_epoch: int = 0
    """the first epoch that can be the best"""
    earlier: Sequence[dict[str, Any]] = ()
    """the curve of a training before this one, which this one's curve continues"""
    evaluate_start: Callable[[], tuple[dict[str, Any], BestEpoch]] | None = None
    """for a model that was trained before: the curve's first point, and that model as the best so far"""
    metrics: Callable[[], Mapping[str, float]] = dict
    """further metrics of the step just done, for the curves"""
    curve_point: Callable[[int, dict[str, float]], dict[str, Any]] = lambda epoch, means: means
    """an epoch (from 1) and the means of its losses and metrics -> its point of the curve"""
    extra_state: Callable[[], dict[str, Any]] = dict
    """JSON values that the next step depends on, for the checkpoint"""


@dataclass
class TrainerState:
    """How far a training has come, beside weights and optimiser; its checkpoint holds these fields."""

    history: list[dict[str, Any]] = field(default_factory=list)
    """the curve's points"""
    best: BestEpoch = BestEpoch()
    sums: dict[str, float] = field(default_factory=dict)
    """losses and metrics, summed over the steps of the current epoch"""
    stopped: bool = False

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TrainerState:
        return cls(values["history"], BestEpoch(**values["best"]), values["sums"], values["stopped"])


@dataclass(frozen=True)
class Resumed:
    """An interrupted training as its checkpoint has it; both fields are empty where there is none."""

    state: TrainState | None = None
    values: dict[str, Any] = field(default_factory=dict)


def resume(folder: Path) -> Resumed:
    """The newest readable checkpoint of an interrupted training in a stage's folder."""
    checkpoint = LastCheckpoints(folder / LAST).load()
    if checkpoint is None:
        return Resumed()
    tensors = {name: torch.from_numpy(array.copy()) for name, array in checkpoint.tensors.items()}
    return Resumed(TrainState(tensors, checkpoint.values["training"]), checkpoint.values)


def half_done(folder: Path) -> str:
    """How far an interrupted training in a stage's folder has come; nothing where there is none. A checkpoint that cannot be read
    is the training's to complain about."""
    for path in (*LastCheckpoints(folder / LAST).paths(), *LastCheckpoints(folder / FIRST / LAST).paths()):
        try:
            values = Checkpoint.load(path, prefix="-").values  # no tensor
        except StorageError:
            continue
        total = f" of {values[TOTAL]:,}" if TOTAL in values else ""
        return f"step {values['training']['step']:,}{total}"
    return ""


def run_training(context: StageContext, training: Training, resumed: Resumed | None = None) -> TrainerState:
    """Train from the last checkpoint, or from the start, to the end. The best epoch's weights and the curve stay, checkpoints
    are removed.

    Of several processes that train together, all call this and validate; the main one alone decides and writes."""
    ranks = Ranks()
    resumed = resumed or resume(context.folder)
    for name, wanted in training.metadata.items() if resumed.values else ():
        if (found := resumed.values.get("about", {}).get(name)) != wanted:
            other = f"the checkpoint in {context.folder} was trained with {name} {found!s:.60}, not {wanted!s:.60}"
            remedy = "it belongs to another training: remove it, and this one starts from its beginning"
            raise Mismatch(f"{other}; {remedy}")
    ranks.broadcast(0)  # all have read the checkpoint: from now on it may be replaced
    state = TrainerState.from_json(resumed.values) if resumed.values else TrainerState(list(training.earlier))
    if not resumed.values and training.evaluate_start is not None:
        point, state.best = training.evaluate_start()
        state.history.append(point)
    if not state.stopped:
        _train(context, training, resumed, state)
    if ranks.is_main_process:
        LastCheckpoints(context.folder / LAST, context.runtime.checkpoints).remove()
        (context.folder / BAD_BATCH).unlink(missing_ok=True)
        shutil.rmtree(context.folder / FIRST, ignore_errors=True)
    return TrainerState.from_json(ranks.gather(asdict(state) if ranks.is_main_process else {})[0])


def train_first(context: StageContext, training: Training) -> list[dict[str, Any]]:
    """Train the model for another training to start from: it gets the weights of its best epoch; its curve is returned. All is
    kept in a folder of its own until the stage is done, so a resumed stage does not train it again."""
    ranks, folder = Ranks(), context.folder / FIRST
    folder.mkdir(exist_ok=True)
    finished = folder / "history.json"
    if not ranks.broadcast(finished.exists()):
        trained = run_training(replace(context, folder=folder), training)
        if ranks.is_main_process:
            write_json(finished, trained.history)
        ranks.broadcast(0)  # from now on all can read it
    best = Checkpoint.load(folder / training.result)
    weights = {name.removeprefix("model."): torch.from_numpy(array.copy()) for name, array in best.tensors.items()}
    training.model.load_state_dict(weights)
    history: list[dict[str, Any]] = json.loads(finished.read_bytes())
    return history


def train(folder: Path, *args: Any, **kwargs: Any) -> Iterator[Progress]:
    """`fit`, but a loss that is not finite becomes an error message that names the batch; the batch is written to the stage's
    folder, beside the last checkpoint."""
    try:
        yield from loop.fit(*args, **kwargs)
    except loop.NonFiniteLoss as error:
        # JSON has no NaN: as text, every reader can read it
        losses = {name: loss if math.isfinite(loss) else str(loss) for name, loss in error.losses.items()}
        batch = {"what": error.what, "step": error.step, "losses": losses, "videos": list(error.video_ids)}
        if Ranks().is_main_process:
            write_json(folder / BAD_BATCH, batch)
        raise LongtakeError(f"{error}; the batch is listed in {folder / BAD_BATCH}") from error


def _train(context: StageContext, training: Training, resumed: Resumed, state: TrainerState) -> None:
    runtime, ranks, curve, saved = context.runtime, Ranks(), CurveArtifact(training.label), time.monotonic()
    checkpoints = LastCheckpoints(context.folder / LAST, runtime.checkpoints)
    steps_done = resumed.state.values["step"] if resumed.state else 0
    total = training.options.epochs * training.batches.steps_per_epoch
    what = (training.model, training.objective, training.batches, training.options)
    device, half = runtime.torch_device(), runtime.training_precision == "bfloat16"
    steps = train(context.folder, *what, resumed.state, device, ranks, half=half)
    shown = progress_bar(training.label, total, "steps", steps_done) if ranks.is_main_process else nullcontext()
    with shown as bar, FileWriter() as writer:
        for progress in steps:
            metrics = {**progress.losses, **ranks.mean(training.metrics(), progress.videos)}
            for name, value in metrics.items():
                state.sums[name] = state.sums.get(name, 0.0) + value
            if bar is not None:
                bar.update_to(progress.step, _postfix(training, metrics, state.best))
            if progress.end_of_epoch:
                _end_epoch(context, training, progress, state, writer)
            if ranks.is_main_process and progress.end_of_epoch:
                write_jsonl(context.folder / "curves.jsonl", state.history)
                curve.show(state.history, final=state.stopped)
            state.stopped = bool(ranks.broadcast(state.stopped))
            if ranks.broadcast(progress.end_of_epoch or time.monotonic() - saved > _SAVE_EVERY):
                others = ranks.random_states(random_state())
                if ranks.is_main_process:
                    snapshot = progress.snapshot().with_tensors({f"rng.{name}": rng for name, rng in others.items()})
                    tensors = {name: tensor.numpy() for name, tensor in snapshot.tensors.items()}
                    values = {"training": snapshot.values, "about": training.metadata, TOTAL: total, **asdict(state)}
                    writer.submit(partial(checkpoints.save, Checkpoint(tensors, values | training.extra_state())))
                saved = time.monotonic()
            if state.stopped:
                break


def _postfix(training: Training, metrics: Mapping[str, float], best: BestEpoch) -> str:
    """The text behind the progress bar."""
    parts = [f"{name} {metrics[key]:.3f}" for key, name in (("total", "loss"), ("reward", "reward")) if key in metrics]
    if training.validate is not None and training.options.keep == "best":
        parts.append(f"best {training.score_name} {100 * max(best.score, 0):.1f}")  # on the scale of all tables
    return "  ".join(parts)


def _end_epoch(context: StageContext, training: Training, progress: Progress, state: TrainerState, writer: FileWriter) -> None:
    """Add the epoch to the curve, validate it, save it if it is the best so far, and decide whether to stop. All processes do;
    what they decide is the main one's."""
    means = {name: total / progress.steps_per_epoch for name, total in state.sums.items()}
    epoch, keep_best = progress.epoch + 1, training.options.keep == "best"
    done = (len(training.earlier), training.earlier[-1]["step"]) if training.earlier else (0, 0)
    point = {"epoch": done[0] + epoch, "step": done[1] + progress.step, "learning_rate": progress.learning_rate}
    state.history.append(point | (training.curve_point(epoch, means) if Ranks().is_main_process else means))
    state.sums = {}
    last = epoch == training.options.epochs
    if training.validate is not None and (last or epoch % training.validate_every == 0):
        with progress.averaged(), undisturbed(training.model):
            score, metrics = training.validate()
        state.history[-1] |= metrics
        silent = score == state.best.score == 0  # CIDEr of one video is always 0: then the later epoch has learnt more
        better = (score > state.best.score or silent) and progress.epoch >= training.first_epoch
        if better if keep_best else last:
            state.best = BestEpoch(score, progress.epoch)
            _save_result(context, training, progress, writer)
        since = max(state.best.epoch, training.first_epoch - 1)
        state.stopped = keep_best and progress.epoch - since >= training.patience
    elif training.validate is None and last:
        state.best = BestEpoch(epoch=progress.epoch)
        _save_result(context, training, progress, writer)
    state.stopped = state.stopped or last


def _save_result(context: StageContext, training: Training, progress: Progress, writer: FileWriter) -> None:
    """The weights without the optimiser: for inference, not for resuming."""
    if not Ranks().is_main_process:
        return
    with progress.averaged():
        tensors = progress.snapshot().tensors.items()
    weights = {name: tensor.numpy() for name, tensor in tensors if name.startswith("model.")}
    checkpoint = Checkpoint(weights, {**training.metadata, "epoch": progress.epoch})
    writer.submit(partial(checkpoint.save, context.folder / training.result))
