"""The log-likelihood of tokens is that of torch's cross_entropy, values and gradients, with all that a policy changes."""

import pytest
import torch
from torch import Tensor, nn

import models.losses.token_likelihood as token_likelihood
from models.layers.words import OutputLayer
from models.losses.token_likelihood import token_log_likelihood


@pytest.fixture(autouse=True)
def blocks_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_likelihood, "_BLOCK", 70)  # six rows of 11 logits


def by_cross_entropy(logits: Tensor, tokens: Tensor, smoothing: float, temperature: float, excluded: tuple[int, ...]) -> Tensor:
    allowed = logits.index_fill(1, torch.tensor(excluded, dtype=torch.int64), -torch.inf) / temperature
    return -nn.functional.cross_entropy(allowed, tokens, reduction="none", label_smoothing=smoothing)


@pytest.mark.parametrize(
    ("smoothing", "temperature", "excluded"),
    [(0.0, 1.0, ()), (0.2, 1.0, ()), (0.0, 0.5, ()), (0.0, 1.0, (0, 3)), (0.0, 2.0, (0, 3))],
)
@pytest.mark.parametrize("rows", [0, 1, 20])
def test_values_and_gradients_are_those_of_cross_entropy(
    smoothing: float, temperature: float, excluded: tuple[int, ...], rows: int
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(rows, 11, dtype=torch.float64, requires_grad=True)
    again, weigh = logits.detach().clone().requires_grad_(), torch.randn(rows, dtype=torch.float64)
    tokens = torch.tensor([1, 2, *range(4, 11)])[torch.randint(9, (rows,))]
    found = token_log_likelihood(logits, tokens, smoothing, temperature, excluded)
    expected = by_cross_entropy(again, tokens, smoothing, temperature, excluded)
    assert torch.allclose(found, expected, atol=1e-12)
    (found * weigh).sum().backward()
    (expected * weigh).sum().backward()
    assert logits.grad is not None and again.grad is not None
    assert torch.allclose(logits.grad, again.grad, atol=1e-12)


def test_logits_stay_as_they_are_and_the_output_layer_learns_as_a_linear_layer_would() -> None:
    torch.manual_seed(0)
    layer, plain = OutputLayer(7, 11), nn.Linear(7, 11)
    plain.load_state_dict(layer.state_dict())
    hidden, tokens = torch.randn(20, 7), torch.randint(1, 11, (20,))
    logits = layer(hidden)
    before = logits.detach().clone()
    likelihood = token_log_likelihood(logits, tokens, temperature=0.7, excluded=(0,))
    likelihood.mean().backward()
    assert torch.equal(logits, before)
    by_cross_entropy(plain(hidden), tokens, 0.0, 0.7, (0,)).mean().backward()
    for found, expected in zip(layer.parameters(), plain.parameters(), strict=True):
        assert found.grad is not None and expected.grad is not None and torch.allclose(found.grad, expected.grad, atol=1e-6)
