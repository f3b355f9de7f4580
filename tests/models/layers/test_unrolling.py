"""Steps that are not taken, rows of logits that begin at cache lines: faster, and the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.captioner import Captioner
from models.captioners.gld import TopDownOptions
from models.captioners.glrg import GlRgOptions
from models.captioners.vre.captioner import VreOptions
from models.layers import attention
from models.layers.recurrent import Unrolling
from models.layers.words import OutputLayer
from models.types import EOS, PAD, Memory, ValidTokens
from models.zoo import build_captioner
from tests.models.captioners.captioner_checks import opinionated
from tests.models.toy_captions import SIZES, VOCABULARY, toy_batch, toy_captioner


def real_up_to(*lengths: int, steps: int) -> torch.Tensor:
    return torch.arange(steps) < torch.tensor(lengths).unsqueeze(1)


def on_cpu(real: torch.Tensor) -> ValidTokens:
    return ValidTokens(real, real.device)


def test_no_step_is_taken_behind_the_end_of_most_captions() -> None:
    steps = Unrolling(on_cpu(real_up_to(2, 5, 1, 5, 3, 5, 5, 5, 5, 5, steps=6)))
    # 10, 9, 8, 7, 7 and 0 rows are of use: to leave one of ten behind is not worth it, nor one of eight; two of ten are
    assert steps.counts == [10, 10, 8, 8, 8, 0]


def test_what_is_packed_comes_back_to_its_place() -> None:
    real = real_up_to(1, 4, 0, 2, 4, steps=5)
    steps, x = Unrolling(on_cpu(real)), torch.arange(5 * 5 * 2.0).view(5, 5, 2) + 1
    packed = steps.pack(x)
    assert len(packed) == sum(steps.counts) < 25
    assert torch.equal(steps.valid(packed), x[real])
    spread = steps.unpack(packed)
    assert torch.equal(spread[real], x[real]) and bool(((spread == x) | (spread == 0)).all())


def test_each_step_is_that_of_its_own_caption_and_memory() -> None:
    real = real_up_to(2, 4, 3, steps=4)
    names = torch.tensor([[10.0], [20.0], [30.0]])
    memory = Memory(names.unsqueeze(1), torch.ones(3, 1, dtype=torch.bool), names, {"again": names})
    entering = torch.arange(12.0).view(3, 4, 1)
    steps = Unrolling(on_cpu(real))

    def advance(now, state, memory):
        return ((state[0] + now + memory.extras["again"] * memory.tokens[:, 0],),)

    found = torch.cat([state[0] for (state,) in steps.run(advance, steps.pack(entering), memory, lambda m: (m.summary,))])
    expected = names.unsqueeze(1) + (entering + names.unsqueeze(1) ** 2).cumsum(1)
    assert torch.equal(steps.valid(found), expected[real])


def unrolled(kind: str) -> Captioner:
    if kind in ("sa_lstm", "mp_lstm"):
        return toy_captioner(kind)
    options = {
        "vre": VreOptions(temporal="rgb", spatial="motion", hidden=8, dropout=0),
        "glrg": GlRgOptions(features=("rgb", "motion"), projection=6, embedding=5, hidden=8, dropout=0),
        "top_down": TopDownOptions(features=("rgb", "motion"), embedding=5, hidden=8, attention=7, dropout=0),
    }
    torch.manual_seed(0)
    return opinionated(build_captioner(options[kind], SIZES, VOCABULARY))


@pytest.mark.parametrize("kind", ["sa_lstm", "mp_lstm", "vre", "top_down", "glrg"])
def test_leaving_steps_out_changes_neither_logits_nor_gradients(kind: str) -> None:
    captioner, batch = unrolled(kind), toy_batch(videos=6, captions=3, words=9)
    assert batch.tokens is not None
    real = batch.tokens[:, 1:] != PAD
    assert min(Unrolling(on_cpu(real)).counts) < len(real), "nothing is left out here"

    every = captioner(batch)[real]
    words = batch.tokens[:, 1:][real]
    every.gather(1, words.unsqueeze(1)).mean().backward()
    expected = {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}
    captioner.zero_grad()

    logits, said = captioner.word_logits(batch)
    some = torch.log_softmax(logits, -1)
    assert torch.equal(said, words) and (said == EOS).sum() == len(real)
    assert torch.allclose(some, every, atol=1e-5)
    some.gather(1, words.unsqueeze(1)).mean().backward()
    found = {name: p.grad for name, p in captioner.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in expected)


@pytest.mark.parametrize("kind", ["sa_lstm", "mp_lstm", "vre", "top_down", "glrg"])
def test_the_gradients_of_a_whole_caption_are_those_of_its_steps(kind: str) -> None:
    captioner, batch = unrolled(kind), toy_batch(videos=6, captions=3, words=9)
    assert batch.tokens is not None and batch.video_index is not None
    real = batch.tokens[:, 1:] != PAD
    memory = captioner.encode(batch.features, batch.masks).select(batch.video_index)
    state, said = captioner.decoder.start(memory), []
    for token in batch.tokens[:, :-1].unbind(1):
        logits, state, _ = captioner.decoder.step(token, state, memory)
        said.append(logits)
    nn.functional.cross_entropy(torch.stack(said, 1)[real], batch.tokens[:, 1:][real]).backward()
    expected = {name: p.grad.clone() for name, p in captioner.named_parameters() if p.grad is not None}
    captioner.zero_grad()
    nn.functional.cross_entropy(*captioner.word_logits(batch)).backward()
    found = {name: p.grad for name, p in captioner.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0 and torch.allclose(found[name], gradient, atol=1e-5), name


@pytest.mark.parametrize("rows_per_block", [1, 4, 100])
def test_an_unrolled_attention_is_the_attention_of_each_step(rows_per_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_BLOCK", rows_per_block * 5 * 7)
    torch.manual_seed(0)
    reader = attention.AdditiveAttention(memory=3, hidden=4, attention=7)
    rows, queries = torch.randn(6, 5, 3, requires_grad=True), torch.randn(3, 6, 4, requires_grad=True)
    mask = torch.rand(6, 5) < 0.7
    leaves = [rows, queries, *reader.parameters()]
    results = []
    for read in (reader, reader.unrolled()):
        memory = reader.prepare(Memory(rows, mask, rows[:, 0]))
        total = torch.zeros(())
        for n, query in zip((6, 5, 3), queries, strict=True):  # fewer captions take part in each step
            context, weights = read(query[:n], memory.first(n))
            assert weights is not None
            total = total + (context**2).sum() + weights[:, 0].sum()
        results.append((total, *torch.autograd.grad(total, leaves)))
    assert all(torch.allclose(found, expected, atol=1e-5) for found, expected in zip(*results, strict=True))


@pytest.mark.parametrize("words", [11, 16, 33])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (0,)])
def test_the_word_layer_is_a_linear_layer(words: int, shape: tuple[int, ...]) -> None:
    layer, plain = OutputLayer(7, words), nn.Linear(7, words)
    plain.load_state_dict(layer.state_dict())
    hidden = torch.randn(*shape, 7, requires_grad=True)
    again = hidden.detach().clone().requires_grad_()
    weigh = torch.randn(*shape, words)
    (layer(hidden) * weigh).sum().backward()
    (plain(again) * weigh).sum().backward()
    for found, expected in ((hidden, again), (layer.weight, plain.weight), (layer.bias, plain.bias)):
        assert found.grad is not None and expected.grad is not None
        assert torch.allclose(found.grad, expected.grad, atol=1e-5)
    with torch.no_grad():
        searched = layer(hidden)
        assert searched.shape == (*shape, words) and torch.allclose(searched, plain(again), atol=1e-5)
        assert searched.stride(-2) % 16 == 0 and layer(hidden).dtype == torch.float32
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(hidden).dtype == torch.bfloat16
