"""RecNet by its equations: the decoder's attention and the four reconstructors in numpy loops; and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.captioners.lstm import LstmDecoder, SaLstmOptions, build_lstm
from models.captioners.recnet.captioner import RecNetOptions, build_recnet
from models.captioners.recnet.reconstruction_loss import ReconstructionLoss
from models.captioners.recnet.reconstructors import GlobalReconstructor, LocalReconstructor, TransposedReconstructor
from models.layers.attention import AdditiveAttention
from models.losses.cross_entropy import CrossEntropy
from models.training.objective import Objective
from models.types import EOS, TeacherForcedStates
from tests.models.captioners.captioner_checks import (
    Array,
    alone,
    array,
    check_forced_equals_steps,
    check_it_learns_eight_clips_by_heart,
    check_padding_plays_no_part,
    linear,
    lstm_step,
)
from tests.models.captioners.toy_captioners import recnet_options, toy_recnet
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch

BASES = ("sa_lstm", "mp_lstm", "s2vt")
WORDS = torch.tensor([[True, True, True, False], [True, True, False, False]])
FRAMES = torch.tensor([[True, True, True], [True, True, False]])


def toy_states() -> TeacherForcedStates:
    """Two captions of 3 and 2 real steps, hidden size 2, over 3 frames."""
    torch.manual_seed(3)
    attention = torch.softmax(torch.randn(4, 2, 3), -1)
    return TeacherForcedStates(torch.randn(2, 4, 2), attention.transpose(0, 1))


def additive(attention: AdditiveAttention, rows: list[Array], query: Array) -> Array:
    """Weights over rows: e_j = w . tanh(W_v v_j + W_h h + b), then softmax."""
    energies = np.array(
        [
            linear(attention.score, np.tanh(linear(attention.from_memory, row) + linear(attention.from_hidden, query)))[0]
            for row in rows
        ]
    )
    return np.asarray(np.exp(energies) / np.exp(energies).sum())


def test_a_forced_pass_returns_the_states_and_attention_of_its_steps() -> None:
    captioner, batch = toy_recnet(), toy_batch(videos=3, captions=1)
    said = captioner.teacher_forced_pass(batch)
    decoder = captioner.decoder
    assert isinstance(decoder, LstmDecoder) and isinstance(decoder.reader, AdditiveAttention)
    assert said.states is not None and batch.tokens is not None
    attention, embedding = array(said.states.attention), array(decoder.embed.weight)
    gates, past = decoder.gates_from_word, array(decoder.gates_from_past.weight)
    for n, caption in enumerate(batch.tokens.tolist()):
        rows = [array(v) for v, there in zip(said.memory.tokens[n], said.memory.mask[n], strict=True) if there]
        summary = array(said.memory.summary[n])
        hidden = np.tanh(linear(decoder.start_hidden, summary))
        cell = np.tanh(linear(decoder.start_cell, summary))
        for i, token in enumerate(caption[: caption.index(EOS)]):
            weights = additive(decoder.reader, rows, hidden)  # eq. 4 and 5, with the state of the step before
            assert attention[n, i].tolist() == pytest.approx([*weights, *[0.0] * (5 - len(rows))], abs=1e-5)
            context = sum(w * v for w, v in zip(weights, rows, strict=True))  # eq. 3
            enter, keep, new, leave = np.split(linear(gates, embedding[token]) + past @ np.concatenate([context, hidden]), 4)
            cell = cell / (1 + np.exp(-keep)) + np.tanh(new) / (1 + np.exp(-enter))
            hidden = np.tanh(cell) / (1 + np.exp(-leave))
            assert said.states.hidden[n, i].tolist() == pytest.approx(hidden.tolist(), abs=1e-5)
        assert i == said.valid[n].sum() - 1  # the step that says EOS is the last


def test_the_global_reconstructor_equals_equations_6_and_7() -> None:
    states, net = toy_states(), GlobalReconstructor(hidden=2, size=5)
    rebuilt = net(states, WORDS, FRAMES)
    for n in range(2):
        real = [array(h) for h, there in zip(states.hidden[n], WORDS[n], strict=True) if there]
        sentence = sum(real) / len(real)
        z, m = np.zeros(5), np.zeros(5)
        for t, h in enumerate(real):
            z, m = lstm_step(net.lstm, np.concatenate([h, sentence]), z, m)
            assert rebuilt.rows[n, t].tolist() == pytest.approx(z.tolist(), abs=1e-6)
    assert torch.equal(rebuilt.mask, WORDS) and not rebuilt.per_frame and rebuilt.length == 3


def test_the_local_reconstructor_equals_equations_9_to_11() -> None:
    states, net = toy_states(), LocalReconstructor(hidden=2, size=5, attention=4)
    rebuilt = net(states, WORDS, FRAMES)
    for n in range(2):
        real = [array(h) for h, there in zip(states.hidden[n], WORDS[n], strict=True) if there]
        z, m = np.zeros(5), np.zeros(5)
        for t in range(int(FRAMES[n].sum())):
            weights = additive(net.attention, real, z)  # eq. 10, with the frame rebuilt before
            context = sum(w * h for w, h in zip(weights, real, strict=True))  # eq. 9
            z, m = lstm_step(net.cell, np.asarray(context), z, m)
            assert rebuilt.rows[n, t].tolist() == pytest.approx(z.tolist(), abs=1e-6)
    assert torch.equal(rebuilt.mask, FRAMES) and rebuilt.per_frame


def test_the_transposed_reconstructor_reads_words_as_the_decoder_read_frames() -> None:
    states, net = toy_states(), TransposedReconstructor(hidden=2, size=5)
    rebuilt, alpha = net(states, WORDS, FRAMES), array(states.attention)
    for n in range(2):
        z, m = np.zeros(5), np.zeros(5)
        for t in range(int(FRAMES[n].sum())):
            context = sum(alpha[n, i, t] * array(states.hidden[n, i]) for i in range(int(WORDS[n].sum())))
            z, m = lstm_step(net.cell, np.asarray(context), z, m)
            assert rebuilt.rows[n, t].tolist() == pytest.approx(z.tolist(), abs=1e-6)


def test_frames_that_are_not_real_change_nothing_wherever_they_stand() -> None:
    states, net = toy_states(), LocalReconstructor(hidden=2, size=5, attention=4)
    plain = net(states, WORDS, torch.ones(2, 2, dtype=torch.bool)).rows
    holes = net(states, WORDS, torch.tensor([[False, True, False, True]] * 2)).rows
    assert torch.allclose(holes[:, [1, 3]], plain, atol=1e-6)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("reconstructor", ["global", "both"])
def test_forcing_equals_stepping_and_padding_plays_no_part(base: str, reconstructor: str) -> None:
    captioner = toy_recnet(base, reconstructor)
    check_forced_equals_steps(captioner, toy_batch())
    check_padding_plays_no_part(captioner)
    batch = toy_batch(videos=4, captions=1, rows=6)
    which = recnet_options(base, reconstructor).loss
    term = ReconstructionLoss(which)
    together = term(captioner, batch).item() * term.count(batch)
    each = [term(captioner, alone(batch, i)).item() * term.count(batch) for i in range(4)]
    assert together == pytest.approx(sum(each), rel=1e-5)


def test_it_captions_like_its_base_whose_weights_it_takes() -> None:
    options, batch = recnet_options(), toy_batch()
    assert options.features == ("rgb", "motion")
    torch.manual_seed(5)
    assert isinstance(options.base, SaLstmOptions)
    base = build_lstm(options.base, SIZES, VOCABULARY).eval()
    captioner = build_recnet(options, SIZES, VOCABULARY).eval()
    missing, unexpected = captioner.load_state_dict(base.state_dict(), strict=False)
    assert not unexpected and missing and all(name.startswith("reconstructor.") for name in missing)
    assert torch.equal(captioner(batch), base(batch))


def test_a_transposed_reconstructor_wants_a_base_with_attention() -> None:
    with pytest.raises(ValidationError, match="attention of an sa_lstm, a s2vt has none"):
        recnet_options("s2vt", "transpose")


def test_rows_of_different_sizes_in_time_cannot_be_rebuilt() -> None:
    with pytest.raises(ValueError, match=r"rgb 6, motion 4.*join to 'depth'"):
        build_recnet(recnet_options(join="time"), SIZES, VOCABULARY)


def test_another_captioner_as_base_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="'sa_lstm', 'mp_lstm', 's2vt'"):
        RecNetOptions.model_validate({"base": {"kind": "glrg", "features": ["rgb"]}})


GOLDEN = {
    ("sa_lstm", "global"): [-1.93978, -2.6156, -2.9747, 2.0787],
    ("sa_lstm", "local"): [-1.93978, -2.6156, -2.9747, 3.54925],
    ("sa_lstm", "both"): [-1.93978, -2.6156, -2.9747, 6.05175],
    ("sa_lstm", "transpose"): [-1.93978, -2.6156, -2.9747, 3.3734],
    ("s2vt", "both"): [-3.21558, -3.41558, -2.04633, 5.66978],
}


@pytest.mark.parametrize(("base", "reconstructor"), GOLDEN)
def test_numbers_of_seeded_weights_are_those_on_record(base: str, reconstructor: str) -> None:
    captioner, batch = toy_recnet(base, reconstructor), toy_batch()
    term = ReconstructionLoss(recnet_options(base, reconstructor).loss)
    distance = term(captioner, batch).item() * term.count(batch) / 8  # of a caption
    found = [*captioner(batch)[3, 1, :3].tolist(), distance]
    assert found == pytest.approx(GOLDEN[base, reconstructor], rel=1e-3)


@pytest.mark.parametrize(
    ("base", "reconstructor"),
    [("sa_lstm", "global"), ("sa_lstm", "both"), ("sa_lstm", "transpose"), ("mp_lstm", "local"), ("s2vt", "local")],
)
def test_it_learns_eight_clips_by_heart_and_rebuilds_them_better(base: str, reconstructor: str) -> None:
    torch.manual_seed(0)
    options = recnet_options(base, reconstructor, embedding=16, hidden=32)
    captioner = build_recnet(options, SIZES, VOCABULARY)
    objective = Objective(xe=(1.0, CrossEntropy()), rebuild=(0.1, ReconstructionLoss(options.loss)))
    losses = check_it_learns_eight_clips_by_heart(captioner, objective)
    assert losses[-1]["rebuild"] < 0.9 * losses[0]["rebuild"]
