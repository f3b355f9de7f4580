"""Everything that a GPU computes, on a pretended one: nothing mixes devices, results are the CPU's, and the host waits no more
often than its budget allows: once for each word that is searched or sampled, once in a training step, for the logged losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models.backbones.backbone import Backbone
from models.backbones.zoo import open_backbone
from models.captioner import Captioner
from models.captioners.recnet.reconstruction_loss import ReconstructionLoss
from models.captioners.vre.key_frame_loss import RefocusLoss, RewardMemory, StepLoss
from models.decoding.beam_search import beam
from models.decoding.greedy_and_sampling import greedy, sample
from models.decoding.scheduled_sampling import ScheduledSampling
from models.losses.cross_entropy import CrossEntropy, DiscriminativeCrossEntropy
from models.losses.policy_gradient import PolicyGradient
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import VideoCaptions
from models.neighbours import NearestItems
from models.rewards.baselines import (
    BaselineOptions,
    GreedyBaseline,
    NoBaseline,
    SampleBaseline,
    SecondSampleBaseline,
    TruthBaseline,
)
from models.rewards.combined import SumOfRewards
from models.rewards.consensus import Consensus
from models.rewards.global_discriminative import GlobalDiscriminative
from models.rewards.local_discriminative import LocalDiscriminative
from models.tagger import TagBatch, TaggerOptions, TagLoss, WordTagger
from models.training.loop import FitOptions, fit
from models.training.objective import Objective
from models.types import Batch
from models.vse import MaxOfHinges, VisualSemantic, VseOptions, recalls
from tasks.evaluation.self_retrieval import log_probabilities
from tests.devices.pretend import MixedDevices, PretendTensor, on_cpu, pretend_gpu
from tests.models.captioners.test_every_captioner import SIZES, SMALL, WORDS, small, videos
from tests.models.toy_captions import toy_batch

VIDEOS, LONGEST, SAMPLES = 5, 3, 2
BASELINES = (NoBaseline(), GreedyBaseline(), TruthBaseline(), SampleBaseline(), SecondSampleBaseline())
# torch's packed sequences want their lengths on the CPU and send their order back: S2VT waits twice for each batch it encodes
PACKED = {"s2vt": 2}


def batch_of(seed: int) -> Batch:
    captions = toy_batch(VIDEOS, 2, 5, LONGEST, seed)
    features, masks = ({name: x[:VIDEOS] for name, x in part.items()} for part in videos())
    return replace(captions, features=features, masks=masks, weights=torch.arange(2.0 * VIDEOS))


class Batches:
    """Some steps of one epoch."""

    def __init__(self, of: Callable[[int], Any] = batch_of, steps: int = 1):
        self.of, self.steps_per_epoch = of, steps

    def __call__(self, epoch: int, skip: int) -> Iterator[Any]:
        return (self.of(step) for step in range(skip, self.steps_per_epoch))


def trained(model: nn.Module, objective: Objective, device: str, batches: Batches) -> tuple[Any, int]:
    """The losses of a step and its gradient; and how often the host waited, if the device is a pretended GPU."""
    torch.manual_seed(1)
    with pretend_gpu() as gpu:
        model.to(device)
        gpu.waits.clear()
        losses = [step.losses for step in fit(model, objective, batches, FitOptions(epochs=1, learning_rate=1e-2), device=device)]
        gradients = on_cpu([p.grad for p in model.parameters() if p.grad is not None])
    return (losses, gradients), sum(gpu.waits.values())


def check_training(build: Callable[[], nn.Module], objective: Callable[[], Objective], budget: int, batches: Any = None) -> None:
    batches = batches or Batches()
    expected, _ = trained(build(), objective(), "cpu", batches)
    found, waits = trained(build(), objective(), "cuda", batches)
    assert waits <= budget, f"the host waited {waits} times in a step; {budget} are allowed"
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


SEEDING: dict[str, Callable[[], Objective]] = {
    "xe": lambda: Objective(xe=(1.0, CrossEntropy(0.1))),
    "dxe": lambda: Objective(xe=(1.0, DiscriminativeCrossEntropy())),
    "argmax": lambda: Objective(xe=(1.0, CrossEntropy(sampling=ScheduledSampling(points=((0, 0.5),))))),
    "sample": lambda: Objective(xe=(1.0, CrossEntropy(sampling=ScheduledSampling(points=((0, 0.5),), own="sample")))),
}


@pytest.mark.parametrize(("kind", "how"), [(kind, how) for kind in SMALL for how in SEEDING if how != "dxe" or kind == "glrg"])
def test_a_step_of_seeding_waits_for_its_losses_alone(kind: str, how: str) -> None:
    check_training(lambda: small(kind), SEEDING[how], 1 + PACKED.get(kind, 0))


def reward_of(device: str) -> SumOfRewards:
    """All kinds of reward at once."""
    references = [[[4 + (v + w) % 7 for w in range(4)]] * 3 for v in range(VIDEOS)]
    index = NgramIndex.build(VideoCaptions.from_lists(references))
    torch.manual_seed(3)
    embedding = VisualSemantic(VseOptions(features=("frames",), size=6, embedding=5), SIZES, WORDS).eval()
    vectors, nearest = nn.functional.normalize(torch.randn(VIDEOS, 6), dim=-1), torch.tensor([1, 0, 3, 2, -1])
    with pretend_gpu():
        beyond = GlobalDiscriminative(embedding.to(device), vectors.to(device), nearest.to(device))
    return SumOfRewards(Consensus(index), LocalDiscriminative(index), beyond)


def policy(baseline: BaselineOptions, reward: Any = None) -> Objective:
    index = NgramIndex.build(VideoCaptions.from_lists([[[4 + (v + w) % 7 for w in range(4)]] * 3 for v in range(VIDEOS)]))
    truth = torch.linspace(0, 1, VIDEOS, dtype=torch.float64)
    ids = {f"v{n}": n for n in range(VIDEOS)}
    return Objective(policy=(1.0, PolicyGradient(reward or Consensus(index), ids, SAMPLES, LONGEST, baseline, truth)))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("baseline", BASELINES, ids=lambda baseline: baseline.kind)
def test_a_step_of_boosting_waits_once_for_each_word_and_for_the_samples(kind: str, baseline: BaselineOptions) -> None:
    # a wait for each word that is sampled, two for the samples and their log-probabilities, one for the losses
    searches = 2 if isinstance(baseline, GreedyBaseline) else 1
    budget = searches * (LONGEST + 1 + PACKED.get(kind, 0)) + 3 + (searches - 1) + PACKED.get(kind, 0)
    check_training(lambda: small(kind), lambda: policy(baseline), budget)


def test_rewards_of_all_kinds_are_the_cpus() -> None:
    samples, of = toy_batch(VIDEOS, 2, 5, LONGEST).tokens[:, 1:], torch.arange(VIDEOS).repeat_interleave(2)  # type: ignore[index]
    expected = reward_of("cpu")(samples, of)
    reward = reward_of("cuda")
    with pretend_gpu():
        found = reward(samples, of)
    assert not isinstance(found, PretendTensor)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", ["recnet", "vre"])
def test_losses_of_single_captioners_are_the_cpus(kind: str) -> None:
    def objective() -> Objective:
        if kind == "recnet":
            return Objective(xe=(1.0, CrossEntropy()), rebuild=(0.2, ReconstructionLoss("local")))
        rewards = RewardMemory({f"v{n // 2}#{n}": (-1, 1.0) for n in range(2 * VIDEOS)})
        return Objective(step1=(1.0, StepLoss(1)), step2=(1.0, StepLoss(2)), refocus=(0.5, RefocusLoss(rewards)))

    check_training(lambda: small(kind), objective, 1 if kind == "recnet" else 2)  # VRE's rewards are remembered on the host


SEARCHES: dict[str, Callable[..., Any]] = {
    "greedy": lambda captioner, features, masks: greedy(captioner, features, masks, LONGEST, attention=True),
    "sample": lambda captioner, features, masks: sample(captioner, features, masks, LONGEST, SAMPLES, top_p=0.9),
    "beam": lambda captioner, features, masks: beam(captioner, features, masks, LONGEST, 3, n_best=2, block_trigrams=True),
}


def check_search(captioner: Captioner, how: str, budget: int) -> None:
    batch = batch_of(0)
    torch.manual_seed(2)
    expected = SEARCHES[how](captioner, batch.features, batch.masks)
    with pretend_gpu() as gpu:
        captioner.to("cuda")
        moved = batch.to("cuda")
        gpu.waits.clear()
        torch.manual_seed(2)
        found = on_cpu(vars(SEARCHES[how](captioner, moved.features, moved.masks)))
    assert sum(gpu.waits.values()) <= budget, f"the host waited: {dict(gpu.waits)}; {budget} are allowed"
    assert torch.equal(found["tokens"], expected.tokens)
    torch.testing.assert_close(found, vars(expected), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("how", SEARCHES)
def test_a_search_waits_once_for_each_word(kind: str, how: str) -> None:

    check_search(small(kind), how, LONGEST + 1 + PACKED.get(kind, 0))


@pytest.mark.parametrize("kind", SMALL)
def test_self_retrieval_gives_the_cpus_probabilities(kind: str) -> None:
    batch = batch_of(0)
    queries = [[1, 5, 6, 2], [1, 5, 7, 8, 2], [1, 2]]

    def read(ids: Any, device: str) -> Any:
        moved = batch.to(device)
        return moved.features, moved.masks

    ids = list(batch.video_ids)
    expected = log_probabilities(small(kind), read, queries, ids, WORDS, "cpu")
    with pretend_gpu():
        found = log_probabilities(small(kind).to("cuda"), read, queries, ids, WORDS, "cuda")
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


NETS = {
    "timm:test_resnet": (2, 1, 64, 64, 3),
    "r3d_18": (1, 16, 32, 32, 3),
    "resnext101_3d": (1, 16, 32, 32, 3),
    "fasterrcnn_resnet50_fpn_v2@64": (1, 1, 64, 64, 3),
    "vggish": (2, 96, 64),
}


@pytest.mark.parametrize("name", NETS)
def test_a_backbone_gives_the_cpus_outputs(name: str) -> None:
    backbone: Backbone = open_backbone(name, None, 0)
    torch.manual_seed(0)
    items = torch.rand(NETS[name]) if name == "vggish" else torch.randint(0, 256, NETS[name], dtype=torch.uint8)
    expected = backbone(items)
    with pretend_gpu():
        backbone.net.to("cuda")
        found = on_cpu(backbone(items.to("cuda")))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_word_tagger_trains_as_on_the_cpu() -> None:
    def clips(seed: int) -> TagBatch:
        random = torch.Generator().manual_seed(seed)
        pixels = torch.randint(0, 256, (3, 2, 3, 16, 16, 3), dtype=torch.uint8, generator=random)
        return TagBatch(("a", "b", "c"), pixels, torch.rand(3, 5, generator=random))

    def tagger() -> WordTagger:
        torch.manual_seed(0)
        return WordTagger(TaggerOptions(words=5, size=16, channels=(4, 6), feature_size=8))

    check_training(tagger, lambda: Objective(tags=(1.0, TagLoss())), 1, Batches(clips))


def embedding() -> VisualSemantic:
    torch.manual_seed(0)
    return VisualSemantic(VseOptions(features=("frames", "cells"), size=6, embedding=5), SIZES, WORDS)


@pytest.mark.parametrize("easy", [0, 1])
def test_the_embedding_trains_as_on_the_cpu(easy: int) -> None:
    check_training(embedding, lambda: Objective(vse=(1.0, MaxOfHinges(easy))), 1)


def test_recalls_and_neighbours_are_the_cpus() -> None:
    net, batch = embedding().eval(), batch_of(0)
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    with torch.no_grad():
        expected = recalls(net.sentences(batch.tokens[:, 1:]), net.videos(batch.features, batch.masks), batch.video_index)  # type: ignore
        with pretend_gpu():
            net, moved = net.to("cuda"), batch.to("cuda")
            found = recalls(net.sentences(moved.tokens[:, 1:]), net.videos(moved.features, moved.masks), moved.video_index)  # type: ignore
            nearest = NearestItems(rows, 3, device="cuda").of_items(0, 40)
    assert found == expected
    np.testing.assert_array_equal(nearest.indices, NearestItems(rows, 3).of_items(0, 40).indices)


def test_a_snapshot_of_the_gpu_goes_on_as_if_nothing_had_happened() -> None:
    batches, objective, how = (
        Batches(),
        Objective(xe=(1.0, CrossEntropy())),
        FitOptions(epochs=2, learning_rate=1e-2, ema_decay=0.9),
    )
    with pretend_gpu():
        torch.manual_seed(1)
        through = small("sa_lstm")
        for progress in fit(through, objective, batches, how, device="cuda"):
            if progress.step == 1:
                kept = progress.snapshot()
        assert not any(isinstance(tensor, PretendTensor) for tensor in kept.tensors.values())
        resumed = small("sa_lstm")
        for progress in fit(resumed, objective, batches, how, kept, "cuda"):
            last = progress.snapshot()
        for name, weight in through.state_dict().items():
            assert torch.equal(last.tensors[f"model.{name}"], on_cpu(weight))


# Seeded defects: each must fail what is checked above.


def with_defect(defect: Callable[[Any, Any], Any]) -> Captioner:
    captioner = small("sa_lstm")
    advance = captioner.decoder.reader.forward  # type: ignore[attr-defined]
    captioner.decoder.reader.forward = lambda hidden, memory: advance(defect(hidden, memory), memory)  # type: ignore[attr-defined]
    return captioner


DEFECTS: dict[str, Callable[[Any, Any], Any]] = {
    "a CPU index": lambda hidden, memory: hidden[torch.arange(len(hidden))],
    "an index list": lambda hidden, memory: hidden[list(range(len(hidden)))],
    "a tensor without a device": lambda hidden, memory: hidden + torch.zeros(len(hidden), 1),
    "an item in the step": lambda hidden, memory: hidden + 0 * hidden[0, 0].item(),
    "a mask index in the step": lambda hidden, memory: hidden[torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)],
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_fails_these_tests(defect: str) -> None:
    expected: Any = AssertionError if "step" in defect else MixedDevices
    with pytest.raises(expected):
        check_search(with_defect(DEFECTS[defect]), "greedy", LONGEST + 1)


def test_an_item_in_the_training_step_fails_these_tests() -> None:
    class Careless(CrossEntropy):
        def __call__(self, captioner: Captioner, batch: Batch) -> torch.Tensor:
            loss = super().__call__(captioner, batch)
            return loss if loss.item() > 0 else -loss

    with pytest.raises(AssertionError, match="waited 2 times"):
        check_training(lambda: small("glrg"), lambda: Objective(xe=(1.0, Careless())), 1)
