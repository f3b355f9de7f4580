"""An objective: named, weighted terms, so that curves show each of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import add
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class Term(Protocol):
    """(model, batch) -> a scalar to make small. Model and batch are of the kind that the term is about."""

    def __call__(self, model: Any, batch: Any, /) -> Tensor: ...


@runtime_checkable
class ScheduledTerm(Protocol):
    """A term that changes from epoch to epoch."""

    def at(self, epoch: int) -> Term:
        """The term of an epoch (from 0): a function of the epoch alone, so that a resume needs no state of it."""
        ...


@runtime_checkable
class CountingTerm(Protocol):
    """A term that is a mean over something else than videos."""

    def count(self, batch: Any, /) -> int:
        """How many tokens, words or captions of this batch its last loss is the mean of."""
        ...


@runtime_checkable
class SharingModel(Protocol):
    """A model whose passes over a batch can be shared by several terms."""

    def sharing(self) -> AbstractContextManager[None]: ...


class Objective:
    """`Objective(xe=(1.0, CrossEntropy()), reconstruction=(0.2, term))`: the weighted sum of its terms.

    Terms that need the same pass of a model share it: each is written as if it were alone."""

    def __init__(self, **terms: tuple[float, Term]):
        if not terms:
            raise ValueError("an objective needs at least one term, such as Objective(xe=(1.0, CrossEntropy()))")
        self.terms = terms

    def at(self, epoch: int) -> Objective:
        """The objective of an epoch (from 0): the same weights, and scheduled terms as they are then."""
        terms = dict(self.terms)
        for name, (weight, term) in terms.items():
            terms[name] = weight, term.at(epoch) if isinstance(term, ScheduledTerm) else term
        return Objective(**terms)

    def __call__(self, model: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The total to minimise, and each term before its weight, detached."""
        losses = self._losses(model, batch)
        total = reduce(add, (weight * losses[name] for name, (weight, _) in self.terms.items()))
        return total, {name: loss.detach() for name, loss in losses.items()}

    def counted(self, model: Any, batch: Any) -> dict[str, tuple[Tensor, int]]:
        """Each term before its weight, and how many things it is the mean of, so that shards of a batch can be added."""
        counted = {}
        for name, loss in self._losses(model, batch).items():
            term = self.terms[name][1]
            counted[name] = loss, term.count(batch) if isinstance(term, CountingTerm) else len(batch.video_ids)
        return counted

    def _losses(self, model: Any, batch: Any) -> dict[str, Tensor]:
        with model.sharing() if isinstance(model, SharingModel) else nullcontext():
            return {name: term(model, batch) for name, (_, term) in self.terms.items()}
