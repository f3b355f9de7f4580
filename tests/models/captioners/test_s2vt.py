"""S2VT: two LSTMs in a loop by hand, padded frames left out, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models.captioner import Captioner
from models.captioners.s2vt import S2vtDecoder, S2vtOptions, build_s2vt
from models.losses.cross_entropy import CrossEntropy
from models.training.objective import Objective
from models.types import PAD, Memory
from tests.models.captioners.captioner_checks import (
    array,
    check_forced_equals_steps,
    check_it_learns_eight_clips_by_heart,
    check_padding_plays_no_part,
    linear,
    log_softmax,
    lstm_step,
    opinionated,
)
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch


def toy_s2vt(**changes: Any) -> Captioner:
    values = {"features": ("rgb", "motion"), "embedding": 5, "hidden": 8, "dropout": 0.0} | changes
    torch.manual_seed(0)
    return opinionated(build_s2vt(S2vtOptions(**values), SIZES, VOCABULARY))


def test_it_equals_two_lstms_that_read_frames_and_then_say_words() -> None:
    captioner, batch = toy_s2vt(), toy_batch(videos=3, captions=1)
    decoder = captioner.decoder
    assert isinstance(decoder, S2vtDecoder) and batch.tokens is not None
    found = captioner(batch)
    memory = captioner.encoder(batch.features, batch.masks)
    embedding, rows = array(decoder.embed.weight), array(memory.tokens)
    for n, caption in enumerate(batch.tokens.tolist()):
        h1 = c1 = h2 = c2 = np.zeros(8)
        for t in range(rows.shape[1]):
            if memory.mask[n, t]:
                h1, c1 = lstm_step(decoder.first, rows[n, t], h1, c1)
                h2, c2 = lstm_step(decoder.second, np.concatenate([np.zeros(5), h1]), h2, c2)
        for i, token in enumerate(caption[:-1]):
            h1, c1 = lstm_step(decoder.first, np.zeros(8), h1, c1)
            h2, c2 = lstm_step(decoder.second, np.concatenate([embedding[token], h1]), h2, c2)
            if caption[i + 1] != PAD:
                expected = log_softmax(linear(decoder.predict, h2))
                assert found[n, i].tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_order_of_frames_matters_and_holes_between_them_do_not() -> None:
    decoder = toy_s2vt().decoder
    rows = torch.randn(1, 3, 8)

    def known(tokens: torch.Tensor, mask: list[bool]) -> torch.Tensor:
        prepared = decoder.prepare(Memory(tokens, torch.tensor([mask]), tokens.mean(1)))
        return torch.cat(decoder.start(prepared), 1)

    plain = known(rows, [True] * 3)
    holes = torch.cat([torch.ones(1, 1, 8), rows[:, :2], torch.ones(1, 1, 8), rows[:, 2:]], 1)
    assert torch.allclose(known(holes, [False, True, True, False, True]), plain, atol=1e-6)
    assert not torch.allclose(known(rows.flip(1), [True] * 3), plain, atol=1e-2)


def test_forcing_equals_stepping_and_padding_plays_no_part() -> None:
    captioner = toy_s2vt()
    check_forced_equals_steps(captioner, toy_batch())
    check_padding_plays_no_part(captioner)


@pytest.mark.parametrize("join", ["depth", "time"])
def test_a_video_without_any_feature_gives_numbers_and_gradients(join: str) -> None:
    captioner, batch = toy_s2vt(join=join), toy_batch()
    for name in SIZES:
        batch.features[name][1] = torch.nan
        batch.masks[name][1] = False
    loss = CrossEntropy()(captioner, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in captioner.parameters() if p.grad is not None)


GOLDEN = [-3.21558, -3.41558, -2.04633, -3.44524, -2.71794, -1.61379]


def test_log_probabilities_of_seeded_weights_are_those_on_record() -> None:
    assert toy_s2vt()(toy_batch())[3, 1, :6].tolist() == pytest.approx(GOLDEN, rel=1e-3)


def test_it_learns_eight_clips_by_heart() -> None:
    torch.manual_seed(0)
    options = S2vtOptions(features=("rgb", "motion"), embedding=16, hidden=32, dropout=0)
    captioner = build_s2vt(options, SIZES, VOCABULARY)
    check_it_learns_eight_clips_by_heart(captioner, Objective(xe=(1.0, CrossEntropy())))
