"""What a training step costs, how much of it is matrix products, and how fast these are, in one run on one thread.

    python benches/training_step.py [--steps 5] [--captioners top_down glrg]

Steps of `fit`, with the objectives, sizes and optimiser of the recipes gld-coco-tda and glrg-msrvtt, on random features and
captions of 12 words on average that are in memory already:

    top_down  32 images of 9 x 9 cells of 1408 numbers x 5 captions, 5,003 words
    glrg      32 videos of 300 words, 400 actions and 1000 objects at 16 positions x 20 captions, 10,003 words

Seeding is cross-entropy (glrg: weighted, with a quarter of its own words as inputs, as in its first epoch); boosting is the
policy gradient of CIDEr-D with baseline b2, on as many samples as there are captions in seeding.

Printed are: the median of the processor time of --steps steps, in turns with the other trainings; the share of a step that
torch's profiler finds inside of matrix products and LSTM layers; the floating point operations of these, and how many of them
per second of the whole step, against a product of two matrices of 2048 x 2048 in turns with the steps. What the share lacks to
1 is other work; what the last column lacks to the share is products that are slower than a large one."""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from measuring import arguments
from scores import captions
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from models.captioner import Captioner
from models.captioners.gld import TopDownOptions
from models.captioners.glrg import GlRgOptions
from models.decoding.scheduled_sampling import ScheduledSampling
from models.losses.cross_entropy import CrossEntropy, DiscriminativeCrossEntropy
from models.losses.policy_gradient import PolicyGradient
from models.metrics.ngrams import NgramIndex
from models.rewards.consensus import Consensus
from models.training.loop import FitOptions, fit
from models.training.objective import Objective, Term
from models.types import BOS, EOS, SPECIAL_TOKENS, Batch
from models.zoo import build_captioner
from tasks.training.batches import pad

VIDEOS, BATCHES, LONGEST, LENGTH, FIRST = 32, 4, 30, 12, len(SPECIAL_TOKENS)
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_mkldnn_linear")


class Data:
    """Batches of random videos and captions, the same in every epoch; references of boosting are the captions."""

    def __init__(self, features: dict[str, tuple[int, ...]], words: int, each: int):
        draw = np.random.default_rng(0)
        written = captions(draw, BATCHES * VIDEOS, each, words - FIRST)
        # two captions of 5 to 15 words, of which the second lends its first words: 12 on average
        self.truth = [[[*a, *b[:2], EOS] for a, b in zip(video, video[::-1], strict=True)] for video in written]
        self.ids = [f"video{n}" for n in range(len(self.truth))]
        self.steps_per_epoch = BATCHES
        torch.manual_seed(1)
        self.batches = [self._batch(features, n * VIDEOS) for n in range(BATCHES)]

    def _batch(self, features: dict[str, tuple[int, ...]], first: int) -> Batch:
        rows = {name: torch.rand(VIDEOS, *shape) for name, shape in features.items()}
        masks = {name: torch.ones(VIDEOS, shape[0], dtype=torch.bool) for name, shape in features.items()}
        truth = self.truth[first : first + VIDEOS]
        tokens = pad([[BOS, *caption] for video in truth for caption in video])
        index = torch.arange(VIDEOS).repeat_interleave(len(truth[0]))
        return Batch(tuple(self.ids[first : first + VIDEOS]), rows, masks, tokens, index, (), torch.rand(len(index)))

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        yield from self.batches[skip:]


def talker(options: TopDownOptions | GlRgOptions, features: dict[str, tuple[int, ...]], words: int) -> Captioner:
    """A captioner with fresh weights whose words follow Zipf's law, LENGTH of them per caption on average."""
    torch.manual_seed(0)
    captioner = build_captioner(options, {name: shape[-1] for name, shape in features.items()}, words)
    probabilities = 1 / torch.arange(1, words - FIRST + 1)
    with torch.no_grad():
        bias: Tensor = captioner.decoder.predict.bias  # type: ignore[attr-defined]
        bias[FIRST:] = (probabilities / probabilities.sum()).log()
        bias[EOS] = float(torch.tensor(1 / LENGTH).log())
    return captioner


class Training:
    """A training of its own, and the processor time of each of its steps."""

    def __init__(self, name: str, boosting: bool):
        options, features, words, each = CAPTIONERS[name]
        data = Data(features, words, each)
        term: Term = CrossEntropy() if name == "top_down" else DiscriminativeCrossEntropy(sampling=SCHEDULE)
        if boosting:
            reward = Consensus(NgramIndex.build(data.truth))
            term = PolicyGradient(reward, {id: n for n, id in enumerate(data.ids)}, each, LONGEST)
        how = FitOptions(epochs=1000, learning_rate=1e-5, gradient_clip=0.25)
        self.name = f"{name}, {'boosting' if boosting else 'seeding'}"
        self.steps = fit(talker(options, features, words), Objective(loss=(1.0, term)), data, how)
        self.seconds: list[float] = []

    def step(self, seed: int) -> None:
        torch.manual_seed(seed)
        began = time.process_time()
        next(self.steps)
        self.seconds.append(time.process_time() - began)

    def share(self) -> float:
        """The part of a step's time that is inside of matrix products and LSTM layers."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            next(self.steps)
        times = {event.key.removeprefix("aten::"): event.self_cpu_time_total for event in profiler.key_averages()}
        return sum(times.get(name, 0.0) for name in PRODUCTS) / sum(times.values())

    def operations(self, seed: int) -> float:
        """The floating point operations of the matrix products of a step."""
        torch.manual_seed(seed)
        with CountingMode() as counting:
            next(self.steps)
        return counting.operations


class CountingMode(TorchDispatchMode):
    """Counts the operations of all products inside. torch's FlopCounterMode follows modules by hooks on gradients, and fails
    in a pass without any, as sampling is; and it does not know LSTM layers."""

    operations = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = function(*args, **(kwargs or {})), function._overloadpacket
        if name in flop_registry:
            self.operations += flop_registry[name](*args, **(kwargs or {}), out_val=result)
        elif name is torch.ops.aten.mkldnn_rnn_layer:
            self.operations += _of_lstm(*args[:3])
        elif name is torch.ops.aten.mkldnn_rnn_layer_backward:
            self.operations += 2 * _of_lstm(*args[:3])
        return result


def _of_lstm(x: Tensor, from_input: Tensor, from_hidden: Tensor) -> int:
    """x (steps, N, I), weights (4H, I) and (4H, H) of a layer -> operations of its forward pass."""
    return 2 * x.shape[:2].numel() * (from_input.numel() + from_hidden.numel())


SCHEDULE = ScheduledSampling(points=((0, 0.75), (10, 1.0), (29, 0.75)))
GRANULARITIES = {"words": (16, 300), "actions": (16, 400), "objects": (16, 1000)}
CAPTIONERS: dict[str, tuple[Any, dict[str, tuple[int, ...]], int, int]] = {
    "top_down": (TopDownOptions(features=("grid",)), {"grid": (1, 81, 1408)}, 5_003, 5),
    "glrg": (GlRgOptions(features=tuple(GRANULARITIES)), GRANULARITIES, 10_003, 20),
}


def large_product(matrix: Tensor) -> float:
    """Operations per second of a product of square matrices."""
    began = time.process_time()
    matrix @ matrix
    return 2 * len(matrix) ** 3 / (time.process_time() - began)


def main(steps: int, captioners: list[str]) -> None:
    trainings = [Training(name, boosting) for name in captioners for boosting in (False, True)]
    matrix, limits = torch.rand(2048, 2048), []
    for step in range(steps + 1):  # in turns, so that a busy moment hits all
        for training in trainings:
            training.step(step)
            limits.append(large_product(matrix))
    limit = statistics.median(limits)
    print(f"a product of 2048 x 2048: {limit / 1e9:.0f} GFLOP/s on one thread")
    print(f"{'':22}{'a step':>10}{'in products':>13}{'GFLOP':>8}{'GFLOP/s':>9}{'of the limit':>14}")
    for training in trainings:
        took = statistics.median(training.seconds[1:])  # the first step also sets everything up
        done, share = training.operations(steps), training.share()
        columns = f"{1e3 * took:>7.0f} ms{share:>13.0%}{done / 1e9:>8.0f}{done / took / 1e9:>9.0f}{done / took / limit:>14.0%}"
        print(f"{training.name:<22}{columns}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = arguments(__doc__, steps=5, captioners=list(CAPTIONERS))
    main(given.steps, given.captioners)
