"""bfloat16 by autocast, on the CPU: rewards keep their bits, losses stay near, cells and scores stay float32."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from models.layers.recurrent import GRU, LSTM, LSTMCell, gru_step, lstm_step
from models.losses.cross_entropy import CrossEntropy
from models.losses.policy_gradient import PolicyGradient
from models.metrics.ngrams import NgramIndex
from models.metrics.sentences import VideoCaptions
from models.rewards.consensus import Consensus
from models.vse import scores
from tests import ROOT

BOUND = 0.02
"""of a loss in bfloat16 from the same in float32, as a share of it"""


def check_losses_and_rewards() -> None:
    from tests.devices.test_pretend_gpu import batch_of
    from tests.models.captioners.test_every_captioner import SMALL, small

    references = [[[4 + (v + w) % 7 for w in range(4)]] * 3 for v in range(5)]
    reward = Consensus(NgramIndex.build(VideoCaptions.from_lists(references)))
    batch = batch_of(0)
    for kind in SMALL:
        captioner = small(kind)
        plain = CrossEntropy()(captioner, batch).item()
        with torch.autocast("cpu", torch.bfloat16):
            half = CrossEntropy()(captioner, batch)
            memory = captioner.encode(batch.features, batch.masks)
            _, state, _ = captioner.decoder.step(torch.ones(5, dtype=torch.int64), captioner.decoder.start(memory), memory)
        assert abs(half.item() - plain) <= BOUND * plain, (kind, half.item(), plain)
        assert all(part.dtype == torch.float32 for part in state), kind

        seen: list[torch.Tensor] = []

        def noting(samples: torch.Tensor, video_of: torch.Tensor, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            assert not torch.is_autocast_enabled("cpu")
            seen.extend([samples, found := reward(samples, video_of)])
            return found

        policy = PolicyGradient(noting, {f"v{n}": n for n in range(5)}, 2, 3)
        with torch.autocast("cpu", torch.bfloat16):
            policy(captioner, batch).backward()
        samples, rewards = seen
        assert rewards.dtype == torch.float32
        assert torch.equal(rewards, reward(samples, torch.arange(5).repeat_interleave(2)))


def test_rewards_are_equal_losses_near_and_cells_float32() -> None:
    # In a process of its own, told to leave AMX alone: on some machines that advertise it, torch's bfloat16 ends with SIGILL.
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "PYTHONPATH": str(ROOT)}
    code = "from tests.models.test_half_precision import check_losses_and_rewards as check; check()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layer", [LSTM(4, 3, batch_first=True), GRU(4, 3, batch_first=True), LSTMCell(4, 3)])
def test_recurrent_layers_stay_float32(layer: torch.nn.Module) -> None:
    inputs = torch.randn(2, 4) if isinstance(layer, LSTMCell) else torch.randn(2, 5, 4)
    expected = layer(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(inputs.bfloat16().float())
    assert found[0].dtype == torch.float32
    assert torch.allclose(found[0], layer(inputs.bfloat16().float())[0]) and found[0].shape == expected[0].shape


def test_steps_and_scores_of_half_precision_are_float32() -> None:
    gates, cell = torch.randn(2, 12).bfloat16(), torch.randn(2, 3).bfloat16()
    assert all(part.dtype == torch.float32 for part in lstm_step(gates, cell))
    assert gru_step(gates[:, :9], gates[:, :9], cell).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert scores(torch.randn(2, 4), torch.randn(3, 4)).dtype == torch.float32
