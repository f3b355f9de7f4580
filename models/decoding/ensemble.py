"""An ensemble of captioners, itself a captioner: at each step the mean of their probabilities (GLD, Table II). Its members share
a vocabulary; each reads the features it was trained on, by name, from one batch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

import torch
from torch import Tensor, nn

from models.captioner import Captioner
from models.types import Memory, State, ValidTokens


class Ensemble(Captioner):
    """The attention that it returns is that of its first member: the others may attend to other rows."""

    def __init__(self, members: Sequence[Captioner]):
        if not members:
            raise ValueError("an ensemble needs at least one captioner")
        together = nn.ModuleList(members)
        super().__init__(_Encoders(together), _Decoders(together))


class _Encoders(nn.Module):
    """Features -> the memory of the first member, with the memories of the others among its extras."""

    def __init__(self, members: nn.ModuleList):
        super().__init__()
        self.members = members

    def forward(self, features: dict[str, Tensor], masks: dict[str, Tensor]) -> Memory:
        return _packed([member.encode(features, masks) for member in _captioners(self.members)])


class _Decoders(nn.Module):
    """A step of all members; the state is theirs, one after the other."""

    def __init__(self, members: nn.ModuleList):
        super().__init__()
        self.members = members
        self._sizes = [0] * len(members)  # how many tensors each member's state has; known from the first start

    def prepare(self, memory: Memory) -> Memory:
        return memory  # each member has prepared its own

    def start(self, memory: Memory) -> State:
        states = [member.decoder.start(own) for member, own in self._each(memory)]
        self._sizes = [len(state) for state in states]
        return tuple(chain(*states))

    def step(
        self, token: Tensor, state: State, memory: Memory, wanted: Tensor | None = None
    ) -> tuple[Tensor, State, Tensor | None]:
        """token (N,), state, memory of N -> log of the mean probabilities (N, V), new state, attention of the first."""
        rest, outputs = iter(state), []
        for (member, own), size in zip(self._each(memory), self._sizes, strict=True):
            outputs.append(member.decoder.step(token, tuple(islice(rest, size)), own, wanted))
        logits, states, attention = zip(*outputs, strict=True)
        return mean_log_probs(logits), tuple(chain(*states)), attention[0]

    def teacher_forced(self, tokens: Tensor, memory: Memory, valid: ValidTokens | None = None) -> Tensor:
        """As `Decoder.teacher_forced`: the log of the mean probabilities."""
        return mean_log_probs([member.decoder.teacher_forced(tokens, own, valid) for member, own in self._each(memory)])

    def _each(self, memory: Memory) -> Iterator[tuple[Captioner, Memory]]:
        for index, member in enumerate(_captioners(self.members)):
            yield member, _unpacked(memory, index)


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """M members' logits (..., V) -> the logarithm of the mean of their probabilities (..., V)."""
    sizes = [x.shape[-1] for x in logits]
    if len(set(sizes)) > 1:
        have = f"these have {', '.join(map(str, sizes))} words; take those that were trained on the same text"
        raise ValueError(f"the captioners of an ensemble must share a vocabulary, {have}")
    own = torch.stack([torch.log_softmax(x.float(), dim=-1) for x in logits])
    return torch.logsumexp(own, dim=0) - math.log(len(logits))


def _captioners(members: nn.ModuleList) -> Iterator[Captioner]:
    for member in members:
        assert isinstance(member, Captioner)  # a ModuleList forgets what it holds
        yield member


def _packed(memories: Sequence[Memory]) -> Memory:
    """M memories of B -> one, so that its rows can be selected like those of any other."""
    extras: dict[str, Tensor] = {}
    for index, memory in enumerate(memories):
        extras |= {f"{index}/{name}": x for name, x in memory.extras.items()}
        if index:
            extras |= {f"{index}.{name}": getattr(memory, name) for name in ("tokens", "mask", "summary")}
    return replace(memories[0], extras=extras)


def _unpacked(memory: Memory, index: int) -> Memory:
    """The memory of one member."""
    prefix = f"{index}/"
    extras = {name.removeprefix(prefix): x for name, x in memory.extras.items() if name.startswith(prefix)}
    if not index:
        return replace(memory, extras=extras)
    tokens, mask, summary = (memory.extras[f"{index}.{name}"] for name in ("tokens", "mask", "summary"))
    return Memory(tokens, mask, summary, extras)
