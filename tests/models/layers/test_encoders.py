"""Encoders and attention: by hand on toys, and indifferent to padding and missing features."""

from __future__ import annotations

import math

import pytest
import torch

from models.layers.attention import (
    AdditiveAttention,
    AttentionSoftmax,
    MeanContext,
    attention_modules,
    dropping_smallest_weights,
    masked_softmax,
)
from models.layers.temporal_encoder import TemporalEncoder, masked_mean
from models.types import Memory


def test_additive_attention_equals_the_equations_worked_out_by_hand() -> None:
    attention = AdditiveAttention(memory=2, hidden=1, attention=2)
    with torch.no_grad():
        attention.from_memory.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        attention.from_memory.bias.copy_(torch.tensor([0.1, -0.1]))
        attention.from_hidden.weight.copy_(torch.tensor([[0.5], [-0.5]]))
        attention.score.weight.copy_(torch.tensor([[1.0, 3.0]]))
    rows = [(0.2, 0.4), (-1.0, 0.3), (9.0, 9.0)]
    memory = Memory(torch.tensor([rows]), torch.tensor([[True, True, False]]), torch.zeros(1, 2))
    context, weights = attention(torch.tensor([[0.6]]), attention.prepare(memory))

    # eq. 4: e_j = w . tanh(W_v v_j + W_h h + b), then eq. 5 over the two real rows
    energies = [1.0 * math.tanh(a + 0.3 + 0.1) + 3.0 * math.tanh(2 * b - 0.3 - 0.1) for a, b in rows[:2]]
    alphas = [math.exp(e) / sum(math.exp(x) for x in energies) for e in energies]
    assert weights[0].tolist() == pytest.approx([*alphas, 0.0], abs=1e-6)
    assert context[0].tolist() == pytest.approx(
        [sum(alpha * row[i] for alpha, row in zip(alphas, rows[:2], strict=True)) for i in (0, 1)], abs=1e-6
    )


def test_weights_are_zero_and_not_nan_without_any_real_row() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    weights = masked_softmax(scores, torch.tensor([[False, False, False], [True, False, True]]))
    assert weights[0].tolist() == [0, 0, 0]
    assert weights[1].sum().item() == pytest.approx(1) and weights[1, 1] == 0
    weights.square().sum().backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()


def test_mean_context_is_the_summary_and_has_no_weights() -> None:
    memory = Memory(torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool), torch.randn(2, 4))
    reader = MeanContext()
    context, weights = reader(torch.zeros(2, 5), reader.prepare(memory))
    assert torch.equal(context, memory.summary) and weights is None


def test_masked_mean_counts_real_rows_only() -> None:
    rows = torch.tensor([[[1.0], [3.0], [100.0]], [[5.0], [5.0], [5.0]]])
    assert masked_mean(rows, torch.tensor([[True, True, False], [False] * 3])).tolist() == [[2.0], [0.0]]


def test_depth_joins_row_beside_row_and_time_joins_row_after_row() -> None:
    features = {"a": torch.randn(2, 3, 4), "b": torch.randn(2, 3, 5)}
    masks = {"a": torch.tensor([[True, True, True], [True, False, False]]), "b": torch.zeros(2, 3, dtype=torch.bool)}
    deep = TemporalEncoder({"a": 4, "b": 5}, hidden=6, join="depth", dropout=0)(features, masks)
    assert deep.tokens.shape == (2, 3, 6) and torch.equal(deep.mask, masks["a"])
    long = TemporalEncoder({"a": 4, "b": 5}, hidden=6, join="time", dropout=0)(features, masks)
    assert long.tokens.shape == (2, 6, 6) and torch.equal(long.mask, torch.cat([masks["a"], masks["b"]], 1))


@pytest.mark.parametrize("join", ["depth", "time"])
def test_rows_that_are_not_real_change_nothing(join: str) -> None:
    encoder = TemporalEncoder({"a": 4}, hidden=6, join=join, dropout=0)  # type: ignore[arg-type]
    rows, mask = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    short = encoder({"a": rows}, {"a": mask})
    nothing = torch.full((2, 2, 4), torch.nan)
    padded = encoder({"a": torch.cat([rows, nothing], 1)}, {"a": torch.cat([mask, torch.zeros_like(mask[:, :2])], 1)})
    assert torch.allclose(padded.tokens[:, :3], short.tokens, atol=1e-6)
    assert (padded.tokens[:, 3:] == 0).all()
    assert torch.allclose(padded.summary, short.summary, atol=1e-6)


def test_a_feature_that_the_whole_batch_lacks_may_have_any_length() -> None:
    encoder = TemporalEncoder({"a": 4, "b": 5}, hidden=6, join="depth", dropout=0)
    a, mask = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    found = [
        encoder({"a": a, "b": torch.zeros(2, T, 5)}, {"a": mask, "b": torch.zeros(2, T, dtype=torch.bool)}) for T in (0, 1, 3)
    ]
    assert torch.equal(found[0].tokens, found[1].tokens) and torch.equal(found[0].tokens, found[2].tokens)


def test_lengths_that_disagree_are_refused_with_a_remedy() -> None:
    encoder = TemporalEncoder({"a": 4, "b": 5}, hidden=6, join="depth", dropout=0)
    features = {"a": torch.zeros(1, 3, 4), "b": torch.zeros(1, 2, 5)}
    masks = {name: torch.ones(rows.shape[:2], dtype=torch.bool) for name, rows in features.items()}
    with pytest.raises(ValueError, match=r"a 3, b 2.*join to 'time'"):
        encoder(features, masks)


def test_a_missing_feature_is_named() -> None:
    encoder = TemporalEncoder({"a": 4, "b": 5}, hidden=6, join="depth", dropout=0)
    with pytest.raises(ValueError, match="no b; it has a"):
        encoder({"a": torch.zeros(1, 3, 4)}, {"a": torch.ones(1, 3, dtype=torch.bool)})


def test_the_smallest_weights_are_ignored_on_request_and_the_others_sum_to_one_again() -> None:
    scores = torch.tensor([[0.4, 0.1, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25], [0.1, 0.9, 5.0, 5.0], [9.0, 9.0, 9.0, 9.0]]).log()
    mask = torch.tensor([[True] * 4, [True] * 4, [True, True, False, False], [False] * 4])
    softmax, plain = AttentionSoftmax(), masked_softmax(scores, mask)
    expected = {
        0.0: plain.tolist(),
        0.49: [[4 / 9, 0, 3 / 9, 2 / 9], [1 / 3, 1 / 3, 1 / 3, 0], [0.1, 0.9, 0, 0], [0] * 4],
        0.5: [[4 / 7, 0, 3 / 7, 0], [0.5, 0.5, 0, 0], [0, 1, 0, 0], [0] * 4],
        0.75: [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0] * 4],
        1.0: [[0] * 4] * 4,
    }
    for share, rows in expected.items():
        with dropping_smallest_weights(softmax, share):
            found = softmax(scores, mask)
        assert torch.allclose(found, torch.tensor(rows, dtype=torch.float32), atol=1e-6), share
    assert torch.equal(softmax(scores, mask), plain)


def test_how_many_weights_are_ignored_does_not_depend_on_how_a_share_is_rounded() -> None:
    mask, softmax = torch.ones(1, 100, dtype=torch.bool), AttentionSoftmax()
    for hundredths in range(101):
        with dropping_smallest_weights(softmax, hundredths / 100):
            assert int((softmax(torch.arange(100.0).unsqueeze(0) / 50, mask) == 0).sum()) == hundredths


def test_one_attention_can_be_masked_by_itself() -> None:
    scores, mask = torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)
    both = torch.nn.ModuleDict({"a": AttentionSoftmax("frames"), "b": AttentionSoftmax("clips")})
    assert attention_modules(both) == ["frames", "clips"]
    with dropping_smallest_weights(both, 0.5, "clips"):
        assert both["a"](scores, mask)[0, 0] > 0 and both["b"](scores, mask)[0, 0] == 0


def test_without_a_projection_the_memory_is_the_rows_themselves() -> None:
    features = {"a": torch.randn(2, 3, 4), "b": torch.randn(2, 3, 5)}
    masks = {name: torch.tensor([[True, True, False], [True, True, True]]) for name in features}
    encoder = TemporalEncoder({"a": 4, "b": 5}, hidden=None, join="depth", dropout=0)
    memory = encoder(features, masks)
    assert encoder.size == 9 and list(encoder.parameters()) == []
    assert torch.equal(memory.tokens[1], torch.cat([features["a"][1], features["b"][1]], dim=1))
    assert not memory.tokens[0, 2].any() and torch.allclose(memory.summary[0], memory.tokens[0, :2].mean(0))
    with pytest.raises(ValueError, match="cannot follow each other as they are"):
        TemporalEncoder({"a": 4, "b": 5}, hidden=None, join="time", dropout=0)
