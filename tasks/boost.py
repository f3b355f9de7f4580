"""Boosting: train a seeded captioner by policy gradient on what its own captions earn; choose its best epoch by validation CIDEr,
the seeded captioner among them, so that it never ends worse than it began; resume exactly."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from models.captioners.recnet.captioner import RecNetOptions
from models.captioners.recnet.reconstruction_loss import ReconstructionLoss, SampledReconstructionLoss
from models.losses.cross_entropy import CrossEntropy
from models.losses.policy_gradient import Dropout, PolicyGradient, Reward, signs_of_collapse
from models.rewards.baselines import BaselineOptions, SampleBaseline, TruthBaseline, truth_means
from models.rewards.combined import SumOfRewards
from models.rewards.consensus import Consensus, ConsensusOptions
from models.rewards.global_discriminative import GlobalDiscriminative, GlobalOptions, nearest_indices
from models.rewards.local_discriminative import LocalDiscriminative, WordRewardOptions
from models.rewards.two_judges import TwoJudges
from models.training.loop import undisturbed
from models.training.objective import Objective, Term
from models.training.parallel import Ranks
from storage.checkpoints import Checkpoint
from storage.errors import MissingFeatures, UsageError
from storage.neighbours import Neighbours
from storage.options import Options
from storage.records import ArtifactRef
from storage.text.references import References
from tasks.framework.feature_access import FeatureAccess
from tasks.framework.progress import console
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.prepare_text import open_index, open_weights
from tasks.train_embedding import embed_videos, half_of
from tasks.training.batches import CaptionData, EpochOver, ValidationSearch
from tasks.training.data_size import BatchSize, DataSizedOptions, Patience
from tasks.training.distributed import train_in_processes
from tasks.training.loading import captioner_options, embedding_options, load_captioner, load_embedding
from tasks.training.trainer import BestEpoch, Training, half_done, run_training


class BoostingOptions(DataSizedOptions):
    """Training by policy gradient."""

    epochs: int = Field(70, ge=1)
    """Passes over the training videos (or captions, see `epoch_over`)."""
    epoch_over: EpochOver = "videos"
    """What an epoch is a pass over: all videos, or as many batches as all true captions fill, `captions_per_video` at a time."""
    learning_rate: float = Field(1e-4, gt=0)
    """The highest learning rate."""
    gradient_clip: float = Field(0.25, ge=0)
    """Longest gradient (norm over all weights); 0 lets every gradient through."""
    batch_size: BatchSize = "auto"
    """Videos per batch; auto: 32, or fewer where an epoch would have less than 16 steps, but no fewer than 4."""
    frame_dropout: float = Field(0.0, ge=0, lt=1)
    """Part of a video's rows of features that is hidden from training, others at every step; captions are drawn and learnt from
    the same rows."""
    samples: int = Field(5, ge=1)
    """Captions drawn for each video."""
    temperature: float = Field(1.0, gt=0)
    """How boldly captions are drawn: below 1 the likely words are preferred even more. A captioner seeded with label smoothing
    wants about 0.5: at 1 most of its samples are too wild to learn from."""
    dropout: Dropout = "both"
    """When units are dropped: "both" when captions are drawn and when they are learnt from, as the papers' code does;
    "gradient" only in the pass that gradients come from, which can drift; "none" never."""
    reward: ConsensusOptions = ConsensusOptions()
    """What a caption earns."""
    word_rewards: WordRewardOptions | None = None
    """What each word earns (GLD), in place of `reward`."""
    global_reward: GlobalOptions | None = None
    """What a caption earns on top for fitting its own video better than others (GLD); the recipe's sections `embedding` and
    `neighbours` say by what."""
    baseline: BaselineOptions = SampleBaseline()
    """What the reward is compared with."""
    xe: float = Field(0.0, ge=0)
    """Weight of the cross-entropy of true captions beside the policy gradient."""
    reconstruction: float = Field(0.2, ge=0)
    """Weight (lambda) of a caption's reconstruction distance beside its policy loss, for captioners that have a reconstructor."""
    reconstruction_from: Literal["samples", "truth"] = "samples"
    """The captions that videos are reconstructed from: the sampled ones, whose pass is shared, or true ones."""
    captions_per_video: int = Field(5, ge=1)
    """True captions of each video in a batch, where `xe` or `reconstruction_from` want some."""
    patience: Patience = "auto"
    """Stop after so many epochs without a better validation CIDEr; auto: 10, or as many as 300 steps take."""
    validate_every: int = Field(1, ge=1)
    """Epochs between two validations."""
    validation: ValidationSearch = ValidationSearch()
    """How validation captions are decoded."""
    seed: int = Field(0, ge=0)
    """Seed of samples, dropout and the order of videos."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.word_rewards is not None and self.reward != ConsensusOptions():
            raise ValueError("word_rewards take the place of reward: leave one of them out")
        if isinstance(self.baseline, SampleBaseline) and self.samples < 2:
            raise ValueError("baseline b2 compares the samples of a video with each other: set samples to 2 or more")
        if isinstance(self.baseline, TruthBaseline) and self.global_reward is not None:
            reason = "baseline b1 knows what true captions score, not how well they fit their video in this batch"
            raise ValueError(f"{reason}: with global_reward choose second_sample, scst, b2 or none")
        return self


class BoostOptions(Options):
    """How a captioner is boosted."""

    boosting: BoostingOptions
    max_words: int = 20
    """Longest caption that is drawn, and longest caption in validation."""


# 2: reconstruction from samples, lambda of eq. 22 per caption
@stage(version=2, device=True, launch=partial(train_in_processes, "boost", "boosting"), half_done=half_done)
def boost(
    context: StageContext,
    options: BoostOptions,
    seeded: ArtifactRef,
    features: ArtifactRef,
    text: ArtifactRef,
    embedding: tuple[ArtifactRef, ...] = (),
    neighbours: ArtifactRef | None = None,
) -> StageResult:
    """`embedding` (one, or two judges) and `neighbours` are read where the global reward is asked for."""
    device = context.runtime.torch_device()
    start = context.path(seeded) / "captioner.safetensors"
    net = captioner_options(start)
    access = FeatureAccess.for_captioner(context.workspace, context.path(features), net)
    data = CaptionData(context, text, access)
    how = data.sized(options.boosting, options.boosting.captions_per_video, options.boosting.epoch_over)
    references = data.references
    captioner = load_captioner(start, access, references.vocabulary).to(device)
    beyond: OpenGlobalReward | None = None
    if how.global_reward is not None:
        beyond = partial(_open_judges, context, how.global_reward, references, features, embedding, neighbours)
    policy = policy_gradient(references, how, options.max_words, beyond)
    terms: dict[str, tuple[float, Term]] = {"policy": (1.0, policy)}
    if how.xe:
        terms["xe"] = (how.xe, CrossEntropy())
    from_samples = how.reconstruction_from == "samples"
    if isinstance(net, RecNetOptions) and how.reconstruction:
        rebuild = SampledReconstructionLoss(net.loss, policy) if from_samples else ReconstructionLoss(net.loss)
        terms["rebuild"] = (how.reconstruction, rebuild)
    # where no true caption is looked at: the fewest that a batch can have
    looked_at = how.epoch_over == "captions" or "xe" in terms or ("rebuild" in terms and not from_samples)
    wanted = how.captions_per_video if looked_at else 1
    torch.manual_seed(how.seed)
    seeded_captioner = Checkpoint.load(start)
    validate = data.validation(captioner, how.validation, options.max_words, device)

    def evaluate_start() -> tuple[dict[str, Any], BestEpoch]:
        """The seeded captioner is the best so far."""
        point: dict[str, Any] = {"epoch": 0, "step": 0}
        if validate:
            with undisturbed(captioner):
                point |= validate()[1]
        before = Checkpoint(seeded_captioner.tensors, seeded_captioner.values | {"epoch": -1})
        if Ranks().is_main_process:
            before.save(context.folder / "captioner.safetensors")
        return point, BestEpoch(point.get("val_cider", -1.0))

    about = {name: value for name, value in seeded_captioner.values.items() if name != "epoch"}
    training = Training(
        label="boosting",
        model=captioner,
        objective=Objective(**terms),
        batches=data.batches(int(how.batch_size), wanted, how.seed, None, how.frame_dropout, how.epoch_over),
        options=how,
        result="captioner.safetensors",  # in the form that seeding gave it, so that whoever takes one takes the other
        metadata=about | {"boosting": how.model_dump(mode="json")},
        validate=validate,
        score_name="CIDEr",
        patience=int(how.patience),
        validate_every=how.validate_every,
        evaluate_start=evaluate_start,
        metrics=lambda: policy.statistics,
        curve_point=lambda epoch, means: _watched(epoch, means, how),
    )
    trained = run_training(context, training)
    history, best = trained.history, trained.best
    summary: dict[str, Any] = {"epochs": len(history) - 1, "best_epoch": best.epoch + 1, "val_cider": best.score}
    summary |= {"start_cider": history[0].get("val_cider", -1.0), "reward": history[-1]["reward"]}
    if warned := [point for point in history if "warning" in point]:
        first = f"first in {warned[0]['epoch']}: {warned[0]['warning']}"
        summary["warning"] = f"boosting collapsed in {len(warned)} epochs, {first}"
    return StageResult(len(history) - 1, summary)


OpenGlobalReward = Callable[[Sequence[str]], Reward]
"""the ids of the videos in the order of their indices -> the global reward of captions for them"""


def policy_gradient(
    references: References, how: BoostingOptions, max_words: int, global_reward: OpenGlobalReward | None = None
) -> PolicyGradient:
    """The loss with the tables of the training split behind its rewards; tables made for other words are refused. What
    `global_reward` gives is added to them."""
    index, table = open_index(references)
    consensus = Consensus(index, how.reward, table.origin.eos)
    reward: Reward = consensus
    truth: Tensor | None = None  # what true captions earn on average, each compared with the others: (V,)
    if isinstance(how.baseline, TruthBaseline):
        weights = open_weights(references)
        scores = {score: weights.of_references(score, table) for score in consensus.options.weights}
        truth = torch.from_numpy(truth_means(consensus.mix(scores), table.videos))
    if how.word_rewards is not None:
        reward = LocalDiscriminative(index, how.word_rewards, table.origin.eos)
    if global_reward is not None:
        reward = SumOfRewards(global_reward(table.video_ids), reward)
    indices = {id: index for index, id in enumerate(table.video_ids)}
    return PolicyGradient(reward, indices, how.samples, max_words, how.baseline, truth, how.temperature, how.dropout)


def _watched(epoch: int, means: dict[str, float], how: BoostingOptions) -> dict[str, Any]:
    """The means of an epoch, and a warning beside them, told at once, where boosting collapses."""
    warning = "; ".join(signs_of_collapse(means, how.samples))
    if not warning:
        return dict(means)
    remedy = "a lower learning_rate, some xe or another baseline may help"
    console.print(f"  boosting collapses in epoch {epoch}: {warning}; {remedy}", highlight=False, markup=False)
    return means | {"warning": warning}


def _open_judges(
    context: StageContext,
    options: GlobalOptions,
    references: References,
    features: ArtifactRef,
    embedding: tuple[ArtifactRef, ...],
    neighbours: ArtifactRef | None,
    ids: Sequence[str],
) -> Reward:
    """The global reward of captions for the videos `ids`, which it addresses by their indices; by two judges, each for the half
    of the videos that it was not trained on."""
    if not embedding or (neighbours is None and options.neighbour):
        reason = "the global reward compares captions by an embedding, and with nearest neighbours"
        remedy = "add the sections 'embedding' and 'neighbours' to the recipe, or leave boosting.global_reward out"
        raise UsageError(f"{reason}; {remedy}")
    judges = [_open_global_reward(context, options, references, features, trained, neighbours, ids) for trained in embedding]
    return judges[0] if len(judges) == 1 else TwoJudges(judges[0], judges[1], torch.tensor([half_of(id) for id in ids]))


def _open_global_reward(
    context: StageContext,
    options: GlobalOptions,
    references: References,
    features: ArtifactRef,
    embedding: ArtifactRef,
    neighbours: ArtifactRef | None,
    ids: Sequence[str],
) -> GlobalDiscriminative:
    """A video without the features that the embedding reads is left out of all comparisons."""
    device, path = context.runtime.torch_device(), context.path(embedding) / "embedding.safetensors"
    access = FeatureAccess.open(context.workspace, context.path(features), embedding_options(path).features)
    net = load_embedding(path, access, references.vocabulary).to(device)
    usable = access.usable(ids)
    if not usable:
        reason = f"no training video has the features {', '.join(access.names)} that the embedding reads"
        raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")
    videos = torch.zeros(len(ids), net.options.size, device=device)
    index = {id: n for n, id in enumerate(ids)}
    videos[[index[id] for id in usable]] = embed_videos(net, access, usable, device)
    nearest: dict[str, str] = {}  # training video -> its nearest neighbour, where it has one
    if neighbours and options.neighbour:
        table = Neighbours.open(context.path(neighbours))
        nearest = {id: found[0][0] for id in table.ids("train") if (found := table.of(id))}
    return GlobalDiscriminative(net, videos, nearest_indices(ids, nearest).to(device), options)
