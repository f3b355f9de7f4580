"""How many operations a GPU would be sent, and how often the host would wait for it: by step, without a GPU.

    python benches/gpu_steps.py

On the pretended GPU of tests/devices: dispatched operations and synchronisations of one training step by cross-entropy, of one
by policy gradient with baseline b2, and of one beam search, for four captioners. 20 videos x 5 captions or samples of at most 20
words, a beam of 5; sizes of layers are small, since they do not change the counts."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from pydantic import TypeAdapter

from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions, search
from models.losses.cross_entropy import CrossEntropy
from models.losses.policy_gradient import PolicyGradient
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import VideoCaptions
from models.rewards.consensus import Consensus
from models.training.loop import FitOptions, fit
from models.training.objective import Objective
from models.types import EOS, Batch
from models.zoo import CaptionerOptions, build_captioner
from tests.devices.pretend import pretend_gpu
from tests.models.toy_captions import toy_batch

VIDEOS, CAPTIONS, ROWS, WORDS, LONGEST, SIZES = 20, 5, 10, 60, 20, {"rgb": 6, "motion": 4}
SMALL = {"embedding": 8, "hidden": 8, "dropout": 0.5}
CAPTIONERS: dict[str, dict[str, Any]] = {
    "sa_lstm": {"features": ["rgb", "motion"], "attention": 8},
    "glrg": {"features": ["rgb", "motion"], "projection": 8},
    "top_down": {"features": ["rgb", "motion"], "attention": 8},
    "g2l": {"frames": "rgb", "clips": "motion", "projection": 8, "attention": 8, "aligned": 8},
}


class OneBatch:
    """An epoch of a single batch."""

    steps_per_epoch = 1

    def __init__(self, batch: Batch):
        self.batch = batch

    def __call__(self, epoch: int, skip: int) -> Iterator[Batch]:
        return iter([self.batch])


def captioner_of(kind: str) -> Captioner:
    """Fresh weights; captions of some twenty words."""
    torch.manual_seed(0)
    options = TypeAdapter(CaptionerOptions).validate_python({"kind": kind, **SMALL, **CAPTIONERS[kind]})
    captioner = build_captioner(options, SIZES, WORDS)
    with torch.no_grad():
        captioner.decoder.predict.bias[EOS] += 1.0  # type: ignore[attr-defined]
    return captioner


def counts(kind: str) -> Iterator[tuple[str, int, int]]:
    """What is done -> dispatched operations and synchronisations."""
    batch = toy_batch(VIDEOS, CAPTIONS, ROWS, LONGEST)
    references = [[[4 + (v + w) % 7 for w in range(5)]] * 3 for v in range(VIDEOS)]
    reward = Consensus(NgramIndex.build(VideoCaptions.from_lists(references)))
    policy = PolicyGradient(reward, {id: n for n, id in enumerate(batch.video_ids)}, CAPTIONS, LONGEST)
    for what, objective in (("XE", Objective(xe=(1.0, CrossEntropy()))), ("RL, b2", Objective(policy=(1.0, policy)))):
        with pretend_gpu(strict=False) as gpu:
            steps = fit(captioner_of(kind), objective, OneBatch(batch), FitOptions(epochs=2, learning_rate=1e-3), device="cuda")
            next(steps)  # the first step also moves the weights
            gpu.waits.clear()
            gpu.operations = 0
            next(steps)
            yield what, gpu.operations, sum(gpu.waits.values())
    with pretend_gpu(strict=False) as gpu:
        captioner = captioner_of(kind)
        with torch.no_grad():
            captioner.decoder.predict.bias[EOS] -= 9.0  # type: ignore[attr-defined]  # so that the search goes on to the longest
        captioner, on_gpu = captioner.to("cuda").eval(), batch.to("cuda")
        gpu.waits.clear()
        gpu.operations = 0
        search(captioner, on_gpu.features, on_gpu.masks, SearchOptions(width=5, max_length=LONGEST), attention=False)
        yield "beam 5", gpu.operations, sum(gpu.waits.values())


if __name__ == "__main__":
    print(f"{'captioner':10} {'what':8} {'operations':>10} {'synchronisations':>17}")
    for kind in CAPTIONERS:
        for what, operations, waits in counts(kind):
            print(f"{kind:10} {what:8} {operations:10,} {waits:17}", flush=True)
