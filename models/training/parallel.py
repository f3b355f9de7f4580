"""Several processes that train one model together: each takes its part of every batch, all take the same step.

Gradients are added up by hand, not by DistributedDataParallel: an objective asks a captioner for several passes, not for its
`forward`. A loss is a mean over tokens, words or captions, of which every process has another number; so each process's part is
weighed by its share of them, and the sum is the mean over the whole batch, as one process alone would have it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.training.objective import Objective


class Ranks:
    """All processes, and which of them this one is: from torch.distributed where it is set up, else one alone.

    Every method is called by all of them, in the same order."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes, validates and decides."""
        return self.rank == 0

    def losses(self, objective: Objective, model: nn.Module, batch: Any) -> tuple[Tensor | None, dict[str, float]]:
        """This process's share of the total to minimise (None: it has no part of this batch), and the terms of the whole
        batch before their weights, their weighted sum as "total"."""
        if self.size == 1:
            total, terms = objective(model, batch)
            return total, {name: loss.item() for name, loss in terms.items()} | {"total": total.item()}
        parts = objective.parts(model, batch) if batch.video_ids else {}
        sums = torch.zeros(len(objective.terms), 2, dtype=torch.float64)
        for row, name in enumerate(objective.terms):
            if name in parts:
                loss, count = parts[name]
                sums[row] = torch.tensor([loss.item() * count, count], dtype=torch.float64)
        dist.all_reduce(sums)
        counts = dict(zip(objective.terms, sums[:, 1].clamp(min=1).tolist(), strict=True))
        losses = {name: total / counts[name] for name, total in zip(objective.terms, sums[:, 0].tolist(), strict=True)}
        losses["total"] = sum(weight * losses[name] for name, (weight, _) in objective.terms.items())
        mine: Tensor | None = None
        for name, (loss, count) in parts.items():
            share = objective.terms[name][0] * count / counts[name] * loss
            mine = share if mine is None else mine + share
        return mine, losses

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give every process the sum of all gradients. A weight that none of them used stays without one."""
        if self.size == 1:
            return
        every = list(parameters)
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in every]
        used = torch.tensor([p.grad is not None for p in every], dtype=parts[0].dtype, device=parts[0].device)
        flat = torch.cat([*parts, used])
        dist.all_reduce(flat)
        *summed, users = flat.split([*(p.numel() for p in every), len(every)])
        for p, gradient, users_of in zip(every, summed, users.tolist(), strict=True):
            p.grad = gradient.view_as(p) if users_of else None

    def gather(self, value: Any) -> list[Any]:
        """A JSON value of each process -> all of them, in the order of ranks."""
        if self.size == 1:
            return [value]
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)]))
        longest = max(int(length) for length in lengths)
        padded = torch.cat([text, torch.zeros(longest - len(text), dtype=torch.uint8)])
        found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(found, padded)
        return [json.loads(bytes(each[: int(length)].tolist())) for each, length in zip(found, lengths, strict=True)]

    def agree(self, value: int) -> int:
        """What the leading process says."""
        if self.size == 1:
            return value
        told = torch.tensor([value])
        dist.broadcast(told, src=0)
        return int(told)

    def mean(self, figures: Mapping[str, float], weight: int) -> dict[str, float]:
        """Figures of each process's part of a batch, weighed by its size -> those of the whole."""
        if self.size == 1:
            return dict(figures)
        known = [(each, share) for each, share in self.gather([dict(figures), weight]) if share]
        total = sum(share for _, share in known)
        return {name: sum(each[name] * share for each, share in known) / total for name in known[0][0]}

    def random_states(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The states of the generators of this process -> those of all but the leading one, as "<rank>.<kind>"."""
        states: dict[str, Tensor] = {}
        for kind, state in own.items() if self.size > 1 else ():
            found = [torch.zeros_like(state) for _ in range(self.size)]
            dist.all_gather(found, state)
            states |= {f"{rank}.{kind}": found[rank] for rank in range(1, self.size)}
        return states

    def part(self, videos: list[Any]) -> list[Any]:
        """This process's part of a batch; nothing where a batch has fewer videos than there are processes."""
        return videos[self.rank :: self.size]
