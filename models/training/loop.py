"""The training loop: a generator that yields after every step. Its caller saves checkpoints, validates and stops.

    for progress in fit(model, objective, batches, options, state):
        if progress.end_of_epoch:
            save(progress.snapshot())

A snapshot holds everything that the next step depends on. Training that goes on from one, in a new process too, is equal
bit for bit to training that never stopped, given the same machine, thread count and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from models.options import Options
from models.training.ema import ExponentialMovingAverage
from models.training.objective import Objective
from models.training.parallel import Ranks
from models.training.prefetch import on_device


class FitOptions(Options):
    """How a model is trained."""

    epochs: int = Field(ge=1)
    """Passes over the training data."""
    optimiser: Literal["adam", "adamw", "adadelta"] = "adam"
    """How gradients become steps."""
    learning_rate: float = Field(gt=0)
    """The highest learning rate."""
    weight_decay: float = Field(0.0, ge=0)
    """Pull of the weights towards zero."""
    gradient_clip: float = Field(5.0, ge=0, serialization_alias="clip")
    """Largest norm of the gradient, over all weights; 0 does not clip."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises from near zero."""
    warmup_epochs: float = Field(0.0, ge=0)
    """The same in epochs: set one of the two."""
    warmup_from: float = Field(0.0, ge=0)
    """The learning rate that the warm-up starts above."""
    schedule: Literal["constant", "cosine", "steps", "decay"] = "constant"
    """The learning rate after the warm-up: cosine falls to zero at the last step, steps has its milestones, decay falls by
    the factor `decay` every `decay_every` epochs."""
    milestones: tuple[tuple[int, float], ...] = ()
    """For schedule steps: (epochs done, the share of the highest learning rate from then on), in order."""
    decay: float = Field(0.8, gt=0, le=1)
    """For schedule decay: what the learning rate is multiplied by."""
    decay_every: int = Field(3, ge=1)
    """For schedule decay: epochs between two of its falls."""
    keep: Literal["best", "last"] = "best"
    """Which epoch becomes the result: the best one on validation, with early stopping, or the last one, which is the better
    choice where validation videos are too few to tell epochs apart and the schedule ends at zero."""
    ema_decay: float = Field(0.0, ge=0, lt=1, serialization_alias="average")
    """Decay of the weights' exponential moving average, such as 0.99 for an average over about the last hundred steps; the
    averaged weights are validated and become the result. 0: no average."""

    @model_validator(mode="after")
    def _one_learning_rate_at_a_time(self) -> Self:
        epochs = [epoch for epoch, _ in self.milestones]
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("the warm-up is given in steps and in epochs; set warmup_steps or warmup_epochs to 0")
        if (self.schedule == "steps") != bool(self.milestones):
            example = "'schedule: steps, milestones: [[23, 0.01]]' for a hundredth of the learning rate after 23 epochs"
            raise ValueError(f"schedule 'steps' and milestones go together: such as {example}")
        if epochs != sorted(set(epochs)) or any(epoch < 0 or share <= 0 for epoch, share in self.milestones):
            raise ValueError(f"milestones are (epochs, factor above 0) with rising epochs, not {self.milestones}")
        return self


class NonFiniteLoss(RuntimeError):
    """The loss or its gradient (`what`) became infinite or not a number. The weights are still those before the bad batch.

    step counts from 1; losses are those of the batch, whose videos are video_ids."""

    def __init__(self, what: str, losses: dict[str, float], step: int, video_ids: tuple[str, ...]):
        terms, videos = ", ".join(f"{name} {loss:g}" for name, loss in losses.items()), ", ".join(video_ids)
        where = f"the {what} is not finite at step {step} ({terms}) on videos {videos}"
        super().__init__(f"{where}; look at the features of these videos, or lower the learning rate")
        self.what, self.losses, self.step, self.video_ids = what, losses, step, video_ids


class Batches(Protocol):
    """The batches of each epoch, always the same for the same epoch: they must not draw from torch's global generator."""

    @property
    def steps_per_epoch(self) -> int: ...

    def __call__(self, epoch: int, skip: int) -> Iterator[Any]:
        """The batches of `epoch` (from 0) without the first `skip`, each with `video_ids` and `to(device)`."""
        ...


class Schedule(Protocol):
    """An objective for every epoch: an Objective, or something that chooses one."""

    def at(self, epoch: int, /) -> Objective: ...


@dataclass(frozen=True)
class TrainState:
    """A training state: named tensors (for safetensors) and a few numbers (for JSON).

    tensors: "model.<name>", "optimiser.<parameter>.<slot>", "mean.<name>" of averaged weights, "rng.cpu" and, on a GPU,
    "rng.cuda" (uint8); "rng.<rank>.cpu" of the other processes, where several train together.
    values: epoch and batch (of the next step), step (how many are done) and steps_per_epoch."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The tensors of this prefix, without it: of "model." for `model.load_state_dict`, of "mean." if averages are kept."""
        return {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}

    def with_tensors(self, tensors: dict[str, Tensor]) -> TrainState:
        return TrainState(self.tensors | tensors, self.values)


@dataclass(frozen=True)
class Progress:
    """One step done. epoch counts from 0, step (of all epochs) from 1; losses are the terms before their weights, and
    their weighted sum as "total"; videos are those of this process's shard of the batch. snapshot() and averaged() are valid
    until the loop is resumed; inside `with averaged():` the model has the averaged weights, if there is an average."""

    epoch: int
    step: int
    steps_per_epoch: int
    losses: dict[str, float]
    videos: int
    learning_rate: float
    gradient_norm: float
    end_of_epoch: bool
    snapshot: Callable[[], TrainState]
    averaged: Callable[[], AbstractContextManager[None]] = nullcontext


_M = TypeVar("_M", bound=nn.Module)


def fit(
    model: nn.Module,
    objective: Schedule,
    batches: Batches,
    options: FitOptions,
    state: TrainState | None = None,
    device: str = "cpu",
    ranks: Ranks | None = None,
    half: bool = False,
) -> Iterator[Progress]:
    """Train `model` in place, from the start or from `state`, to the last of options.epochs; yields after every step.

    ranks: the processes that train together, each of which calls this with its own shard of the batches. half: bfloat16 where
    torch finds it safe, on a GPU only. Anything that the caller does between steps with the model or with random numbers
    belongs inside `undisturbed`."""
    per_epoch = batches.steps_per_epoch
    if per_epoch < 1:
        raise ValueError("there is nothing to train on: an epoch has no batches")
    model.to(device).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    kind, decay = _OPTIMISERS[options.optimiser], options.weight_decay
    optimiser: Optimizer = kind(parameters, lr=options.learning_rate, weight_decay=decay)
    ranks, step = ranks or Ranks(), 0
    ema = ExponentialMovingAverage(model, options.ema_decay) if options.ema_decay else None
    if state is not None:
        step = restore(state, model, optimiser, per_epoch, ranks.rank)
        if ema:
            ema.restore(state.named("mean."))
    elif not ranks.is_main_process:
        _seed_by_rank(ranks.rank)
    autocast = torch.autocast("cuda", torch.bfloat16, enabled=half) if device.startswith("cuda") else nullcontext()
    total_steps = options.epochs * per_epoch
    while step < total_steps:
        epoch, skip = divmod(step, per_epoch)
        epoch_objective = objective.at(epoch)
        for batch in on_device(batches(epoch, skip), device):
            rate = learning_rate_at(step, total_steps, options)
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.zero_grad(set_to_none=True)
            with autocast:
                total, terms = ranks.losses(epoch_objective, model, batch)
            if total is not None:
                total.backward()
            ranks.add_gradients(parameters)
            losses, norm = _read(terms, nn.utils.clip_grad_norm_(parameters, options.gradient_clip or math.inf))
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise NonFiniteLoss("loss", losses, step + 1, _all_videos(batch, ranks))
            if not math.isfinite(norm):
                raise NonFiniteLoss("gradient", losses, step + 1, _all_videos(batch, ranks))
            optimiser.step()
            step += 1
            if ema:
                ema.update(step)
            ended, averaged = step % per_epoch == 0, ema.applied if ema else nullcontext
            snapshot = partial(take_snapshot, model, optimiser, step, per_epoch, ema)
            videos = len(batch.video_ids)
            yield Progress(epoch, step, per_epoch, losses, videos, rate, norm, ended, snapshot, averaged)
            if ended:
                break
        else:
            raise ValueError(f"epoch {epoch} ended after {step % per_epoch} batches; {per_epoch} were promised")


def _read(terms: Mapping[str, Tensor | float], norm: Tensor) -> tuple[dict[str, float], float]:
    """The losses of a step and the norm of its gradient as numbers: the only time in a step that a GPU is waited for."""
    known = {name: float(value) for name, value in terms.items() if not isinstance(value, Tensor)}
    asked = {name: value.float() for name, value in terms.items() if isinstance(value, Tensor)} | {"": norm}
    found = dict(zip(asked, torch.stack(list(asked.values())).tolist(), strict=True))
    length = found.pop("")
    return known | found, length


_OPTIMISERS: dict[str, Any] = {"adam": optim.Adam, "adamw": optim.AdamW, "adadelta": optim.Adadelta}


def learning_rate_at(step: int, total_steps: int, options: FitOptions) -> float:
    """The learning rate of a step (from 0): a function of the step alone, so that a resume needs no scheduler's state."""
    highest, per_epoch = options.learning_rate, total_steps / options.epochs
    warmup = options.warmup_steps or round(options.warmup_epochs * per_epoch)
    if step < warmup:
        return options.warmup_from + (highest - options.warmup_from) * (step + 1) / warmup
    epoch = int(step // per_epoch)
    if options.schedule == "constant":
        return highest
    if options.schedule == "steps":
        return highest * next((share for since, share in reversed(options.milestones) if epoch >= since), 1.0)
    if options.schedule == "decay":
        return highest * options.decay ** (epoch // options.decay_every)
    done = (step - warmup) / max(1, total_steps - warmup)
    return highest * 0.5 * (1 + math.cos(math.pi * done))


def take_snapshot(
    model: nn.Module, optimiser: Optimizer, step: int, per_epoch: int, ema: ExponentialMovingAverage | None
) -> TrainState:
    """A copy, on the CPU, of everything the next step depends on."""
    tensors = {f"model.{name}": _copy(tensor) for name, tensor in model.state_dict().items()}
    tensors |= {f"mean.{name}": _copy(tensor) for name, tensor in (ema.averages if ema else {}).items()}
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for index, slots in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{names[index]}.{slot}": _copy(tensor) for slot, tensor in slots.items()}
    tensors |= {f"rng.{kind}": rng for kind, rng in random_state().items()}
    epoch, batch = divmod(step, per_epoch)
    return TrainState(tensors, {"epoch": epoch, "batch": batch, "step": step, "steps_per_epoch": per_epoch})


def restore(state: TrainState, model: nn.Module, optimiser: Optimizer, per_epoch: int, rank: int) -> int:
    """Put a snapshot back into a model, a fresh optimiser and torch's generators; returns the steps done."""
    if (before := state.values["steps_per_epoch"]) != per_epoch:
        taken = f"the snapshot was taken with {before} batches per epoch, now there are {per_epoch}"
        raise ValueError(f"{taken}; go on with the same videos and batch size, or start again")
    model.load_state_dict(state.named("model."))
    slots: dict[int, dict[str, Tensor]] = {}
    for index, name in enumerate(name for name, p in model.named_parameters() if p.requires_grad):
        # A parameter's name can begin with another's ("a" and "a.b"): a slot's name has no dot.
        found = {slot: _copy(t) for slot, t in state.named(f"optimiser.{name}.").items() if "." not in slot}
        if found:
            slots[index] = found
    optimiser.load_state_dict({"state": slots, "param_groups": optimiser.state_dict()["param_groups"]})
    if random := state.named("rng." if rank == 0 else f"rng.{rank}."):
        _set_random_state(random)
    else:  # fewer processes took the snapshot
        _seed_by_rank(rank)
    return int(state.values["step"])


@contextmanager
def eval_mode(model: _M) -> Iterator[_M]:
    """Inside, every module of the model is in eval mode; afterwards each is as before. Random numbers stay drawn."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def undisturbed(model: _M) -> Iterator[_M]:
    """The model in eval mode, for validation between two steps; afterwards modes and random numbers are as before."""
    random = random_state()
    try:
        with eval_mode(model):
            yield model
    finally:
        _set_random_state(random)


def random_state() -> dict[str, Tensor]:
    """The states of torch's generators, by kind."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_state(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _seed_by_rank(rank: int) -> None:
    """Each process samples and drops out differently; the main process as it would alone."""
    torch.manual_seed((torch.initial_seed() + rank * 1_000_003) % 2**63)


def _all_videos(batch: Any, ranks: Ranks) -> tuple[str, ...]:
    return tuple(id for ids in ranks.gather(list(batch.video_ids)) for id in ids)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
