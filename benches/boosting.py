"""Where the time of a boosting step goes, and what a dict-based CIDEr-D would make of it, in one run on one thread.

    python benches/boosting.py [--steps 4]

The sizes are those of MSVD: 32 videos x 5 samples, 4,065 words, 20 to 40 references a video, rows of 28 x 1536 from a feature
store; SA-LSTM of 512, baseline b2. The words of references and of samples follow Zipf's law, 8 or so a caption.

Rewards and baseline, and whole steps, by processor time, the median of --steps (at most 5); against the same loop with rewards
from dictionaries: once with the references weighed whenever a caption is scored, as the reward code in the field does, once with
all of them weighed beforehand. All must give the same rewards. Then the first way alone: how much of its time waits for data.

A run ends with an error if rewards take more than 5 % of a step or waiting for data more than 2 %."""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import AwaitedBatches, arguments, best_of, exit_by_limits, filled_store, require
from scores import DictCiderD, captions
from torch import Tensor

from models.captioner import Captioner
from models.captioners.lstm import SaLstmOptions, build_lstm
from models.losses.policy_gradient import PolicyGradient, Reward
from models.metrics.ngrams import NgramIndex
from models.rewards.baselines import against_samples
from models.rewards.consensus import Consensus
from models.rewards.local_discriminative import LocalDiscriminative
from models.training.loop import FitOptions, fit
from models.training.objective import Objective
from models.types import BOS, EOS, PAD
from tasks.framework.feature_access import FeatureAccess
from tasks.training.batches import CaptionBatches

CORPUS, VIDEOS, SAMPLES, WORDS, ROWS, SIZE, LONGEST = 400, 32, 5, 4065, 28, 1536, 20
FIRST = 4


def by_dict(scorer: DictCiderD, beforehand: bool, samples: Tensor, video_of: Tensor) -> Tensor:
    """The reward from dictionaries of words: CIDEr-D with the document frequencies of the training split."""
    sampled = [[str(word) for word in row if word != PAD] for row in samples.tolist()]
    earned = [scorer.score(words, video, beforehand) for words, video in zip(sampled, video_of.tolist(), strict=True)]
    return torch.tensor(earned, dtype=torch.float32)


def talker() -> Captioner:
    """SA-LSTM with fresh weights whose words follow Zipf's law: 8 of them a caption, on average."""
    torch.manual_seed(0)
    options = SaLstmOptions(features=("frames",), embedding=468, hidden=512, attention=256, dropout=0.5)
    captioner = build_lstm(options, {"frames": SIZE}, WORDS)
    probabilities = 1 / torch.arange(1, WORDS - FIRST + 1)
    with torch.no_grad():
        bias: Tensor = captioner.decoder.predict.bias  # type: ignore[attr-defined]
        bias[FIRST:] = (probabilities / probabilities.sum()).log()
        bias[EOS] = float(torch.tensor(1 / 8).log())
    return captioner


def references() -> list[list[list[int]]]:
    draw = np.random.default_rng(0)
    written = captions(draw, CORPUS, 40, WORDS - FIRST)
    counts = draw.integers(20, 41, CORPUS)
    return [[[*words, EOS] for words in video[:count]] for video, count in zip(written, counts, strict=True)]


def store(folder: Path) -> FeatureAccess:
    draw = np.random.default_rng(1)
    arrays = (draw.random((ROWS, SIZE), np.float32).astype(np.float16) for _ in range(CORPUS))
    kept = filled_store(folder / "frames", arrays)
    rows = {"frames": {f"video{n}": "key" for n in range(CORPUS)}}
    return FeatureAccess(("frames",), {"frames": kept.view()}, rows, {"frames": {"size": SIZE}})


class Boosting:
    """A training of its own; what each step took."""

    def __init__(self, access: FeatureAccess, truth: list[list[list[int]]], reward: Reward):
        ids = list(access.rows["frames"])
        captions = {id: [[BOS, *words] for words in video] for id, video in zip(ids, truth, strict=True)}
        batches = CaptionBatches(access, captions, {id: list(range(40)) for id in ids}, ids, VIDEOS, 1, seed=0)
        self.batches, self.reward, self.took = AwaitedBatches(batches), reward, 0.0
        policy = PolicyGradient(self.rewarded, {id: n for n, id in enumerate(ids)}, SAMPLES, LONGEST)
        options = FitOptions(epochs=1, learning_rate=1e-4, gradient_clip=0.25)
        self.loop = fit(talker(), Objective(policy=(1.0, policy)), self.batches, options)
        self.steps: list[float] = []
        self.rewards: list[float] = []

    def rewarded(self, samples: Tensor, video_of: Tensor) -> Tensor:
        """The reward; notes how much processor time it took, and what it was asked last."""
        began = time.thread_time()
        rewards = self.reward(samples, video_of)
        self.took += time.thread_time() - began
        self.asked = samples, video_of
        return rewards

    def step(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.took = 0.0
        began = time.process_time()
        next(self.loop)
        self.steps.append(time.process_time() - began)
        self.rewards.append(self.took)

    def waiting(self, steps: int) -> float:
        """The share of the time that some steps more, one after the other, wait for their batches."""
        next(self.loop)  # its batch was read while others had their turn
        self.batches.waited, began = 0.0, time.perf_counter()
        for _ in range(steps):
            next(self.loop)
        return self.batches.waited / (time.perf_counter() - began)


def main(steps: int) -> None:
    truth = references()
    index = NgramIndex.build(truth)
    texts = [[list(map(str, words)) for words in video] for video in truth]
    plain = DictCiderD(texts, texts)
    ours, words = Consensus(index), LocalDiscriminative(index)
    ways: dict[str, Reward] = {
        "CIDEr-D on token ids": ours,
        "word rewards (GLD) on token ids": words,
        "dictionaries": partial(by_dict, plain, False),
        "dictionaries, references weighed beforehand": partial(by_dict, plain, True),
    }
    print(f"{VIDEOS} videos x {SAMPLES} samples, {WORDS} words, {sum(map(len, truth)) / CORPUS:.0f} references a video")
    print(f"{'':46}{'steps/s':>8}{'a step':>10}{'rewards':>11}")
    with tempfile.TemporaryDirectory() as folder:
        access = store(Path(folder))
        trained = {name: Boosting(access, truth, way) for name, way in ways.items()}
        for step in range(steps + 1):  # in turns, with equal samples, so that a busy moment hits all
            for training in trained.values():
                training.step(step)
        waited = trained["CIDEr-D on token ids"].waiting(steps)
    # The first step also sets everything up.
    took = {name: statistics.median(training.steps[1:]) for name, training in trained.items()}
    for name, training in trained.items():
        rewards = statistics.median(training.rewards[1:])
        share = rewards / took[name]
        columns = f"{1 / took[name]:>8.2f}{1e3 * took[name]:>7.0f} ms{1e3 * rewards:>8.1f} ms{share:>9.2%}"
        print(f"{name:<46}{columns}")
        if ways[name] in (ours, words):
            earned, of = ways[name](*training.asked), torch.arange(VIDEOS).repeat_interleave(SAMPLES)
            baseline = best_of([partial(against_samples, earned, of)], 20)[0].cpu
            print(f"{'  and the baseline':<46}{'':>18}{1e3 * baseline:>8.1f} ms{baseline / took[name]:>9.2%}")
            share += baseline / took[name]
            require(share < 0.05, f"{name}: rewards take {share:.1%} of a step")
        else:
            gap = float((ways[name](*training.asked) - ours(*training.asked)).abs().max())
            require(gap < 1e-6, f"{name}: rewards differ by {gap:.1e}")
    print(f"waiting for data: {waited:.2%} of the time")
    require(waited < 0.02, f"{waited:.1%} of the time waits for data")
    for name in list(ways)[2:]:
        print(f"steps on token ids are {took[name] / took['CIDEr-D on token ids']:.2f} times as fast as with {name}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(arguments(__doc__, steps=4).steps)
    exit_by_limits()
