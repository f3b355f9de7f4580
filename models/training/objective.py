"""An objective: named, weighted terms, so that curves show each of them."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Term(Protocol):
    """(model, batch) -> a scalar to make small. Model and batch are of the kind that the term is about."""

    def __call__(self, model: Any, batch: Any, /) -> Tensor: ...


class Objective:
    """`Objective(xe=(1.0, CrossEntropy()), rebuild=(0.2, term))`: the weighted sum of its terms."""

    def __init__(self, **terms: tuple[float, Term]):
        if not terms:
            raise ValueError("an objective needs at least one term, such as Objective(xe=(1.0, CrossEntropy()))")
        self.terms = terms

    def __call__(self, model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The total to minimise, and each term before its weight, detached."""
        losses = {name: term(model, batch) for name, (_, term) in self.terms.items()}
        weighted = [weight * losses[name] for name, (weight, _) in self.terms.items()]
        total = weighted[0]
        for more in weighted[1:]:
            total = total + more
        return total, {name: loss.detach() for name, loss in losses.items()}
