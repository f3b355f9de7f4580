"""What every captioner must pass, and an LSTM written out in numpy to hold them against."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.captioner import Captioner
from models.decoding.greedy_and_sampling import greedy
from models.training.loop import FitOptions, fit
from models.training.objective import Objective
from models.types import PAD, Batch
from tests.models.toy_captions import toy_batch

Array = npt.NDArray[np.float64]


def opinionated(captioner: Captioner) -> Captioner:
    """In eval mode, with weights scaled up, so that captions of different videos differ."""
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.mul_(2.5)
    return captioner.eval()


def check_forced_equals_steps(captioner: Captioner, batch: Batch) -> None:
    assert batch.tokens is not None and batch.video_index is not None
    forced = captioner(batch)
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    state = captioner.decoder.start(memory)
    for t in range(batch.tokens.shape[1] - 1):
        logits, state, _ = captioner.decoder.step(batch.tokens[:, t], state, memory)
        assert torch.allclose(torch.log_softmax(logits, -1), forced[:, t], atol=1e-5)


def alone(batch: Batch, i: int) -> Batch:
    """Video i and its caption i of a batch with one caption a video, without their padding."""
    assert batch.tokens is not None
    length = int((batch.tokens[i] != PAD).sum())
    rows = {name: int(mask[i].sum()) for name, mask in batch.masks.items()}
    return Batch(
        (batch.video_ids[i],),
        {name: x[i : i + 1, : rows[name]] for name, x in batch.features.items()},
        {name: x[i : i + 1, : rows[name]] for name, x in batch.masks.items()},
        batch.tokens[i : i + 1, :length],
        torch.zeros(1, dtype=torch.int64),
    )


def check_padding_plays_no_part(captioner: Captioner) -> None:
    """Eight videos at once equal eight times one without padding, even if what is not real is not a number."""
    batch = toy_batch(videos=8, captions=1, rows=6)
    assert batch.tokens is not None
    for name, mask in batch.masks.items():
        batch.features[name][~mask] = torch.nan
    together = captioner(batch)
    for i in range(8):
        one = captioner(alone(batch, i))[0]
        assert torch.allclose(together[i, : len(one)], one, atol=1e-5)


class Always:
    """The same batch at every step."""

    steps_per_epoch = 10

    def __init__(self, batch: Batch):
        self.batch = batch

    def __call__(self, epoch: int, skip: int) -> Any:
        return iter([self.batch] * (10 - skip))


def check_it_learns_eight_clips_by_heart(captioner: Captioner, objective: Objective, epochs: int = 15) -> list[dict[str, float]]:
    """Trained on one toy batch, greedy search says its captions; returns the losses of every step."""
    batch = toy_batch(videos=8, captions=1)
    assert batch.tokens is not None
    options = FitOptions(epochs=epochs, learning_rate=1e-2)
    losses = [progress.losses for progress in fit(captioner, objective, Always(batch), options)]
    assert losses[-1]["xe"] < 0.1 < losses[0]["xe"]
    found = greedy(captioner.eval(), batch.features, batch.masks, max_length=5).tokens[:, 0]
    assert torch.equal(found, batch.tokens[:, 1:])
    return losses


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm_step(lstm: torch.nn.LSTM | torch.nn.LSTMCell, x: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
    """One step of one item with the weights of a torch LSTM: x (X,), hidden (H,), cell (H,)."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().double().numpy() for p in lstm.parameters())
    enter, keep, new, leave = np.split(w_ih @ x + b_ih + w_hh @ hidden + b_hh, 4)
    cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(new)
    return sigmoid(leave) * np.tanh(cell), cell


def linear(layer: torch.nn.Linear, x: Array) -> Array:
    """layer(x) of one item (X,)."""
    out = layer.weight.detach().double().numpy() @ x
    return np.asarray(out if layer.bias is None else out + layer.bias.detach().double().numpy())


def log_softmax(x: Array) -> Array:
    return np.asarray(x - np.log(np.exp(x).sum()))


def array(x: torch.Tensor) -> Array:
    return np.asarray(x.detach().double().numpy())
