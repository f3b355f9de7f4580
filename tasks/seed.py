"""Seeding: train the captioner by cross-entropy, plain (XE) or weighed by the quality of captions (DXE); choose its best
epoch by validation CIDEr; resume exactly. What a captioner wants beside it (RecNet's reconstruction, VRE's phases) is in
its objective."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator

from models.captioner import Captioner
from models.captioners.recnet.captioner import RecNetOptions
from models.captioners.recnet.reconstruction_loss import ReconstructionLoss
from models.captioners.vre.captioner import VreCaptioner, VreOptions
from models.captioners.vre.encoder import RefocusChoice
from models.captioners.vre.key_frame_loss import RefocusLoss, RewardMemory, StepLoss
from models.decoding.scheduled_sampling import ALWAYS_TRUE, ScheduledSampling
from models.losses.cross_entropy import CrossEntropy, DiscriminativeCrossEntropy
from models.training.objective import Objective, Term
from models.training.parallel import Ranks
from models.zoo import CaptionerOptions, build_captioner
from storage.errors import UsageError
from storage.options import Options
from storage.records import ArtifactRef
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import console
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.prepare_text import open_weights
from tasks.training.batches import CaptionData, EpochOver, ValidationSearch
from tasks.training.data_size import BatchSize, DataSizedOptions, Patience
from tasks.training.distributed import train_in_processes
from tasks.training.trainer import Training, half_done, resume, run_training, train_first

LEAST_SPREAD = 0.01
"""below this standard deviation over videos, vre's representation o is dead"""


class SeedingOptions(DataSizedOptions):
    """Training by cross-entropy."""

    epochs: int = Field(30, ge=1)
    """Passes over the training captions (or videos, see `epoch_over`)."""
    epoch_over: EpochOver = "captions"
    """What an epoch is a pass over: all captions, or all videos, each with `captions_per_video` of its captions."""
    learning_rate: float = Field(5e-4, gt=0)
    """The highest learning rate."""
    batch_size: BatchSize = "auto"
    """Videos per batch; auto: 32, or fewer where an epoch would have less than 16 steps, but no fewer than 4."""
    captions_per_video: int = Field(5, ge=1)
    """Captions of each video in a batch."""
    frame_dropout: float = Field(0.0, ge=0, lt=1)
    """Part of a video's rows of features that is hidden from training, others at every step, so that few videos are not learnt
    by heart."""
    loss: Literal["xe", "dxe"] = "xe"
    """xe: every caption counts alike; dxe: the more, the better it agrees with the video's others (GL-RG)."""
    weight: Literal["cider_d", "bleu_4", "rouge_l", "meteor"] = "cider_d"
    """The score that dxe weighs captions by; meteor needs 'caption_weights: {meteor: true}' in the recipe."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the probability that goes to all words alike."""
    scheduled_sampling: ScheduledSampling = ALWAYS_TRUE
    """How often the captioner is fed its own words instead of the true ones."""
    reconstruction: float = Field(0.2, ge=0)
    """Weight (lambda) of a caption's reconstruction distance beside its -log P, for captioners that have a reconstructor."""
    reconstruction_after: Annotated[int, Field(ge=0)] | Literal["best"] = 0
    """Epochs that train the captioner alone before the reconstructor is added to the best of them; "best": as many as it takes
    until validation has stopped rising (`patience`), and up to `epochs` more with the reconstructor; recnet only."""
    refocus: float = Field(0.03, ge=0)
    """Weight of the refocus loss (beta); vre with two steps only."""
    refocus_after: int = Field(5, ge=0)
    """Epochs that train the first step alone before both are trained; vre with two steps only."""
    refocus_choice: RefocusChoice = "argmax"
    """How vre chooses key frames in training: the likeliest (argmax, the paper's), one drawn by alpha (sample), or the likeliest
    against three others that are drawn, with their mean reward as baseline (candidates)."""
    patience: Patience = "auto"
    """Stop after so many epochs without a better validation CIDEr; auto: 10, or as many as 300 steps take."""
    validate_every: int = Field(1, ge=1)
    """Epochs between two validations."""
    validation: ValidationSearch = ValidationSearch()
    """How validation captions are decoded."""
    seed: int = Field(0, ge=0)
    """Seed of weights, dropout and the order of videos."""


class SeedOptions(Options):
    """A captioner and how it is seeded."""

    captioner: CaptionerOptions
    seeding: SeedingOptions
    max_words: int = 20
    """Longest caption in validation."""

    @property
    def refocuses(self) -> bool:
        """Whether the captioner is encoded twice, and so trained in phases."""
        return isinstance(self.captioner, VreOptions) and self.captioner.steps == 2

    @property
    def first_whole_epoch(self) -> int:
        """The first epoch (from 0) that trains all of the captioner. Those before it cannot be its best."""
        return self.seeding.refocus_after if self.refocuses else 0

    @property
    def rebuilds(self) -> bool:
        """Whether a reconstructor is trained, and so perhaps in two stages."""
        return isinstance(self.captioner, RecNetOptions) and self.seeding.reconstruction > 0

    @model_validator(mode="after")
    def _all_of_it_is_trained(self) -> Self:
        how = self.seeding
        if self.rebuilds and how.reconstruction_after == "best" and how.keep != "best":
            raise UsageError("seeding.reconstruction_after is best, which needs validation; set seeding.keep to best")
        if self.rebuilds and how.reconstruction_after != "best" and how.reconstruction_after >= how.epochs:
            reason = f"seeding.reconstruction_after is {how.reconstruction_after} of {how.epochs} epochs"
            remedy = "raise seeding.epochs, lower seeding.reconstruction_after, or set seeding.reconstruction to 0"
            raise UsageError(f"{reason}, so the reconstructor would never be trained; {remedy}")
        if self.refocuses and how.refocus_after >= how.epochs:
            reason = f"seeding.refocus_after is {how.refocus_after} of {how.epochs} epochs"
            remedy = "raise seeding.epochs, lower seeding.refocus_after, or set captioner.steps to 1"
            raise UsageError(f"{reason}, so the second step of vre would never be trained; {remedy}")
        if self.refocuses and (how.loss != "xe" or how.label_smoothing):
            reason = "vre with two steps is trained by plain cross-entropy of each"
            raise UsageError(f"{reason}; set seeding.loss to xe and seeding.label_smoothing to 0")
        return self


# 2: dxe, scheduled sampling, reconstruction; 3: both steps of vre; 4: epochs over captions, lambda of eq. 22 per caption;
# 5: vre's steps share masks, R_e-1 is one epoch old
@stage(version=5, device=True, launch=partial(train_in_processes, "seed", "seeding"), half_done=half_done)
def seed(
    context: StageContext, options: SeedOptions, features: ArtifactRef, text: ArtifactRef, weights: ArtifactRef | None = None
) -> StageResult:
    access = FeatureAccess.for_captioner(context.workspace, context.path(features), options.captioner)
    data = CaptionData(context, text, access)
    how = data.sized(options.seeding, options.seeding.captions_per_video, options.seeding.epoch_over)
    torch.manual_seed(how.seed)
    captioner = build_captioner(options.captioner, access.sizes, len(data.references.vocabulary))
    weighed = None
    if how.loss == "dxe":
        weighed = open_weights(data.references, context.path(weights) if weights else None).by_caption(how.weight)
    found = resume(context.folder)
    rewards = RewardMemory(found.values.get("rewards"))
    term = DiscriminativeCrossEntropy if how.loss == "dxe" else CrossEntropy
    caption_loss = Objective(**{how.loss: (1.0, term(how.label_smoothing, how.scheduled_sampling))})
    objective: Objective | RefocusPhases = caption_loss
    if options.rebuilds and isinstance(options.captioner, RecNetOptions):
        rebuild = ReconstructionLoss(options.captioner.loss, how.scheduled_sampling)
        objective = Objective(**caption_loss.terms, rebuild=(how.reconstruction, rebuild))
    if isinstance(captioner, VreCaptioner) and options.refocuses:
        if Ranks().size > 1:
            reason = "vre with two steps remembers the reward of every caption, and processes do not share that memory"
            raise UsageError(f"{reason}; set runtime.nproc to 1")
        lengths = [len(caption) - 1 for id in data.ids for caption in data.captions[id]]  # with EOS, without BOS
        objective = RefocusPhases(captioner, caption_loss, options, sum(lengths) / len(lengths), rewards)
    training = Training(
        label="seeding",
        model=captioner,
        objective=objective,
        batches=data.batches(int(how.batch_size), how.captions_per_video, how.seed, weighed, how.frame_dropout, how.epoch_over),
        options=how,
        result="captioner.safetensors",
        metadata=data.metadata(captioner=options.captioner, seeding=how),
        validate=data.validation(captioner, how.validation, options.max_words, context.runtime.torch_device()),
        score_name="CIDEr",
        patience=int(how.patience),
        validate_every=how.validate_every,
        first_epoch=options.first_whole_epoch,
        metrics=lambda: _spread_of_videos(captioner),
        curve_point=_watched,
        extra_state=lambda: {"rewards": rewards.state()},
    )
    if options.rebuilds and how.reconstruction_after:
        training = _after_the_captioner(context, training, caption_loss, how)
    trained = run_training(context, training, found)
    epochs, best = len(trained.history), trained.best
    best_epoch = len(training.earlier) + best.epoch + 1
    summary: dict[str, Any] = {"epochs": epochs, "best_epoch": best_epoch, "val_cider": best.score}
    if warned := [point for point in trained.history if "warning" in point]:
        summary["warning"] = f"{warned[0]['warning']} (epoch {warned[0]['epoch']} was the first of {len(warned)})"
    return StageResult(epochs, summary)


def _spread_of_videos(captioner: Captioner) -> dict[str, float]:
    """Of vre: how much the representation o differs between the videos of a batch."""
    spread = captioner.spread if isinstance(captioner, VreCaptioner) and captioner.has_encoder else None
    return {} if spread is None else {"spread": spread.item()}


def _watched(epoch: int, means: dict[str, float]) -> dict[str, Any]:
    """The means of an epoch, and a warning beside them, printed at once, where vre no longer tells videos apart."""
    if means.get("spread", 1.0) >= LEAST_SPREAD:
        return dict(means)
    dead = f"vre's representations of all videos are nearly equal (their spread is {means['spread']:.2g}), so no frame can matter"
    warning = f"{dead}; set captioner.batch_norm, or lower seeding.learning_rate"
    console.print(f"  epoch {epoch}: {warning}", highlight=False, markup=False)
    return means | {"warning": warning}


def _after_the_captioner(context: StageContext, both: Training, alone: Objective, how: SeedingOptions) -> Training:
    """RecNet's two stages: train the captioner `alone`, then return the training of `both`, which starts from its best epoch."""
    until_best = how.reconstruction_after == "best"
    epochs = how.epochs if isinstance(how.reconstruction_after, str) else how.reconstruction_after
    first = replace(
        both,
        label="seeding without the reconstructor",
        objective=alone,
        options=how.model_copy(update={"epochs": epochs}),
        patience=int(how.patience) if until_best else epochs,
    )
    history = train_first(context, first)
    torch.manual_seed(how.seed)
    left = how.epochs if until_best else how.epochs - epochs
    return replace(both, options=how.model_copy(update={"epochs": left}), earlier=history)


class RefocusPhases:
    """VRE's objective, epoch by epoch: at first `alone`, which trains the first step; then both steps and the refocus loss
    (eq. 22), divided by the mean number of tokens in a caption. So all epochs have losses per token, as other captioners do,
    and the learning rate and the gradient clip mean the same to them."""

    def __init__(self, captioner: VreCaptioner, alone: Objective, options: SeedOptions, tokens: float, rewards: RewardMemory):
        how = options.seeding
        terms: dict[str, tuple[float, Term]] = {
            "step1": (1 / tokens, StepLoss(1, how.scheduled_sampling)),
            "step2": (1 / tokens, StepLoss(2, how.scheduled_sampling)),
        }
        if how.refocus and isinstance(options.captioner, VreOptions) and options.captioner.key_frames is None:
            terms["refocus"] = (how.refocus / tokens, RefocusLoss(rewards, how.scheduled_sampling))
        self.captioner, self.alone, self.both = captioner, alone, Objective(**terms)
        self.choice = how.refocus_choice
        self.first_of_both = options.first_whole_epoch

    def at(self, epoch: int) -> Objective:
        """The objective of an epoch (from 0); from now on the captioner speaks after the steps that it trains."""
        self.captioner.active_steps = 2 if epoch >= self.first_of_both else 1
        self.captioner.refocus_choice = self.choice
        return (self.both if epoch >= self.first_of_both else self.alone).at(epoch)
