"""The captioners of the zoo: what they compute, what must not matter to them, and that they learn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from models.captioners.lstm import LstmDecoder, SaLstmOptions
from models.decoding.greedy_and_sampling import greedy
from models.layers.attention import MeanContext
from models.losses.cross_entropy import CrossEntropy
from models.training.loop import FitOptions, fit
from models.training.objective import Objective
from models.types import BOS, EOS, PAD, Batch, Memory
from models.zoo import CAPTIONERS, CaptionerOptions, build_captioner
from tests.models.captioners.captioner_checks import check_forced_equals_steps
from tests.models.captioners.toy_captioners import toy_glrg
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch, toy_captioner

KINDS = ("sa_lstm", "mp_lstm")  # the others have files of their own


def test_every_option_class_has_its_row_in_the_table() -> None:
    kinds = [member.model_fields["kind"].default for member in get_args(get_args(CaptionerOptions)[0])]
    assert kinds == list(CAPTIONERS)


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"'sa_lstm', 'mp_lstm'"):
        TypeAdapter(CaptionerOptions).validate_python({"kind": "sa_lstn", "features": ["rgb"]})


def test_a_feature_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="audio that are not there; there are motion, rgb"):
        build_captioner(SaLstmOptions(features=("rgb", "audio")), SIZES, VOCABULARY)


@pytest.mark.parametrize("kind", KINDS)
def test_forcing_a_caption_equals_stepping_through_it(kind: str) -> None:
    captioner, batch = toy_captioner(kind), toy_batch()
    assert batch.tokens is not None and batch.video_index is not None
    forced = captioner(batch)
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    state = captioner.decoder.start(memory)
    for t in range(batch.tokens.shape[1] - 1):
        logits, state, weights = captioner.decoder.step(batch.tokens[:, t], state, memory)
        assert torch.allclose(torch.log_softmax(logits, -1), forced[:, t], atol=1e-5)
        assert (weights is None) == (kind == "mp_lstm")


def test_the_recurrence_equals_torchs_lstm_cell() -> None:
    decoder = LstmDecoder(MeanContext(), VOCABULARY, memory=3, embedding=4, hidden=5, dropout=0)
    cell = nn.LSTMCell(4 + 3, 5)
    with torch.no_grad():
        cell.weight_ih.copy_(torch.cat([decoder.gates_from_word.weight, decoder.gates_from_past.weight[:, :3]], 1))
        cell.weight_hh.copy_(decoder.gates_from_past.weight[:, 3:])
        cell.bias_ih.copy_(decoder.gates_from_word.bias)
        cell.bias_hh.zero_()
    memory = Memory(torch.zeros(2, 1, 3), torch.ones(2, 1, dtype=torch.bool), torch.randn(2, 3))
    state, token = decoder.start(memory), torch.tensor([4, 7])
    expected = cell(torch.cat([decoder.embed(token), memory.summary], 1), state)
    _, found, _ = decoder.step(token, state, memory)
    assert torch.allclose(found[0], expected[0], atol=1e-6) and torch.allclose(found[1], expected[1], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_eight_videos_at_once_equal_eight_times_one_without_their_padding(kind: str) -> None:
    captioner, batch = toy_captioner(kind), toy_batch(videos=8, captions=1, rows=6)
    assert batch.tokens is not None
    together = captioner(batch)
    for i in range(8):
        rows = int(batch.masks["rgb"][i].sum())
        length = int((batch.tokens[i] != PAD).sum())
        alone = captioner(
            Batch(
                (batch.video_ids[i],),
                {name: x[i : i + 1, :rows] for name, x in batch.features.items()},
                {name: x[i : i + 1, :rows] for name, x in batch.masks.items()},
                batch.tokens[i : i + 1, :length],
                torch.zeros(1, dtype=torch.int64),
            )
        )
        assert torch.allclose(together[i, : length - 1], alone[0], atol=1e-5)


def test_captions_go_with_their_owners_in_any_order() -> None:
    captioner, batch = toy_captioner(), toy_batch(videos=3, captions=2)
    assert batch.tokens is not None and batch.video_index is not None
    order = torch.tensor([5, 0, 3, 2, 4, 1])
    shuffled = replace(batch, tokens=batch.tokens[order], video_index=batch.video_index[order])
    assert torch.allclose(captioner(shuffled), captioner(batch)[order], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("join", ["depth", "time"])
def test_a_video_without_any_feature_gives_numbers_and_gradients(kind: str, join: str) -> None:
    captioner, batch = toy_captioner(kind, join=join), toy_batch()
    for name in SIZES:
        batch.features[name][1] = torch.nan
        batch.masks[name][1] = False
    loss = CrossEntropy()(captioner, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in captioner.parameters() if p.grad is not None)
    assert torch.isfinite(greedy(captioner, batch.features, batch.masks, 4).log_probs).all()


def test_a_batch_without_captions_is_refused() -> None:
    with pytest.raises(ValueError, match="no captions to force"):
        toy_captioner()(replace(toy_batch(), tokens=None, video_index=None))


GOLDEN: dict[str, list[float]] = {
    "sa_lstm": [-2.8551, -1.381231, -2.705516, -3.23282, -2.221238, -4.141999],
    "mp_lstm": [-1.412402, -3.564572, -3.923758, -2.87536, -2.900537, -1.559911],
}


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_of_seeded_weights_are_those_on_record(kind: str) -> None:
    found = toy_captioner(kind)(toy_batch())[3, 1, :6].tolist()
    assert found == pytest.approx(GOLDEN[kind], abs=1e-5)


class _Always:
    """The same batch at every step."""

    steps_per_epoch = 10

    def __init__(self, batch: Batch):
        self.batch = batch

    def __call__(self, epoch: int, skip: int) -> Any:
        return iter([self.batch] * (10 - skip))


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_eight_clips_by_heart(kind: str) -> None:
    torch.manual_seed(0)
    batch = toy_batch(videos=8, captions=1)
    assert batch.tokens is not None
    options: dict[str, Any] = {"kind": kind, "features": ("rgb", "motion"), "embedding": 16, "hidden": 32, "dropout": 0}
    captioner = build_captioner(TypeAdapter(CaptionerOptions).validate_python(options), SIZES, VOCABULARY)
    losses = [
        progress.losses["xe"]
        for progress in fit(
            captioner, Objective(xe=(1.0, CrossEntropy())), _Always(batch), FitOptions(epochs=15, learning_rate=1e-2)
        )
    ]
    assert losses[-1] < 0.05 < losses[0]
    found = greedy(captioner.eval(), batch.features, batch.masks, max_length=5).tokens[:, 0]
    assert torch.equal(found, batch.tokens[:, 1:])
    assert (found == EOS).sum(1).eq(1).all() and not (found == BOS).any()


def test_the_context_of_raw_attention_is_a_weighted_sum_of_the_rows() -> None:
    """RecNet eq. 3: c = sum of alpha_j v_j, of the features as they are."""
    captioner, batch = toy_captioner(attend_to="raw"), toy_batch(videos=2, captions=1)
    memory = captioner.encode(batch.features, batch.masks)
    hidden = torch.randn(2, 8)
    context, weights = captioner.decoder.reader(hidden, memory)  # type: ignore[attr-defined]
    rows = torch.cat([batch.features["rgb"], batch.features["motion"]], dim=2)
    for video in range(2):
        valid = int(batch.masks["rgb"][video].sum())
        expected = sum(weights[video, j] * rows[video, j] for j in range(valid))
        assert torch.allclose(context[video], expected, atol=1e-6) and context.shape == (2, 10)
    check_forced_equals_steps(captioner, batch)


@pytest.mark.parametrize("kind", ["sa_lstm", "mp_lstm", "glrg"])
def test_words_can_be_dropped_by_another_share_than_the_rest(kind: str) -> None:
    build = toy_glrg if kind == "glrg" else partial(toy_captioner, kind)
    alike = build(dropout=0.3, word_dropout=0.3).train()
    assert alike.decoder.word_dropout.p == 0.3  # type: ignore[attr-defined]
    batch, tokens = toy_batch(), torch.tensor([[1, 5, 6, 7, 2]])
    captioner = build(dropout=0.9, word_dropout=0.0).train()
    embedded = captioner.decoder.embed(tokens)  # type: ignore[attr-defined]
    assert torch.equal(captioner.decoder.word_dropout(embedded), embedded)  # type: ignore[attr-defined]
    assert build(dropout=0.4).decoder.word_dropout.p == 0.4  # type: ignore[attr-defined]
    torch.manual_seed(0)
    first = captioner(batch)
    assert not torch.equal(first, captioner(batch)), "outputs are still dropped"
