"""Data-parallel training: each process takes a shard of every batch, all take the same step.

Gradients are added up here, not by DistributedDataParallel: an objective asks a captioner for several passes, not for its
`forward`. A loss is a mean over tokens or captions, of which every process has another number; so each process's loss is
weighted by its share of them, and the sum is the mean over the whole batch, as one process alone would have it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.training.objective import Objective


class Ranks:
    """This process's rank and the number of processes: from torch.distributed where it is initialised, else 0 of 1.

    Every method is called by all of them, in the same order."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes, validates and decides."""
        return self.rank == 0

    def losses(self, objective: Objective, model: nn.Module, batch: Any) -> tuple[Tensor | None, Mapping[str, Tensor | float]]:
        """This process's share of the total to minimise (None: its shard of this batch is empty), and the terms of the whole
        batch before their weights, their weighted sum as "total"; of one process as tensors, which a GPU may still compute."""
        if self.size == 1:
            total, detached = objective(model, batch)
            return total, detached | {"total": total.detach()}
        terms = objective.counted(model, batch) if batch.video_ids else {}
        sums = torch.zeros(len(objective.terms), 2, dtype=torch.float64)
        for row, name in enumerate(objective.terms):
            if name in terms:
                loss, count = terms[name]
                sums[row] = torch.tensor([loss.item() * count, count], dtype=torch.float64)
        dist.all_reduce(sums)
        counts = dict(zip(objective.terms, sums[:, 1].clamp(min=1).tolist(), strict=True))
        losses = {name: total / counts[name] for name, total in zip(objective.terms, sums[:, 0].tolist(), strict=True)}
        losses["total"] = sum(weight * losses[name] for name, (weight, _) in objective.terms.items())
        mine: Tensor | None = None
        for name, (loss, count) in terms.items():
            share = objective.terms[name][0] * count / counts[name] * loss
            mine = share if mine is None else mine + share
        return mine, losses

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give every process the sum of all gradients. A weight that none of them used stays without one."""
        if self.size == 1:
            return
        every = list(parameters)
        gradients = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in every]
        used = torch.tensor([p.grad is not None for p in every], dtype=gradients[0].dtype, device=gradients[0].device)
        flat = torch.cat([*gradients, used])
        dist.all_reduce(flat)
        *sums, counts = flat.split([*(p.numel() for p in every), len(every)])
        for p, gradient, count in zip(every, sums, counts.tolist(), strict=True):
            p.grad = gradient.view_as(p) if count else None

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

    def broadcast(self, value: int) -> int:
        """The main process's value."""
        if self.size == 1:
            return value
        received = torch.tensor([value])
        dist.broadcast(received, src=0)
        return int(received)

    def mean(self, metrics: Mapping[str, float], weight: int) -> dict[str, float]:
        """Metrics of each process's shard of a batch, weighted by its size -> those of the whole batch."""
        if self.size == 1:
            return dict(metrics)
        known = [(each, share) for each, share in self.gather([dict(metrics), weight]) if share]
        total = sum(share for _, share in known)
        return {name: sum(each[name] * share for each, share in known) / total for name in known[0][0]}

    def random_states(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The states of the generators of this process -> those of all but the main process, as "<rank>.<kind>"."""
        states: dict[str, Tensor] = {}
        for kind, state in own.items() if self.size > 1 else ():
            found = [torch.zeros_like(state) for _ in range(self.size)]
            dist.all_gather(found, state)
            states |= {f"{rank}.{kind}": found[rank] for rank in range(1, self.size)}
        return states

    def shard(self, videos: list[Any]) -> list[Any]:
        """This process's shard of a batch; empty where a batch has fewer videos than there are processes."""
        return videos[self.rank :: self.size]
