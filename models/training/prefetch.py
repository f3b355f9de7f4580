"""Batches on their way to the device: the next one is sent to a GPU while the current one is computed."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def on_device(batches: Iterable[Any], device: str) -> Iterator[Any]:
    """Each batch on the device. To a GPU the next one is sent ahead, on a stream of its own; batches whose tensors are pinned do
    not make the host wait. Not run on a GPU yet: 'longtake doctor --gpu-selftest' does."""
    if not device.startswith("cuda") or not torch.cuda.is_available():
        yield from (batch.to(device) for batch in batches)
        return
    sending, upcoming = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(sending):
            sent = batch.to(device), sending.record_event()
        if upcoming is not None:
            yield _received(*upcoming)
        upcoming = sent
    if upcoming is not None:
        yield _received(*upcoming)


def _received(batch: Any, sent: torch.cuda.Event) -> Any:
    """The batch, for the current stream, which waits until it is there; its memory is not reused before that stream is done."""
    stream = torch.cuda.current_stream()
    stream.wait_event(sent)
    for value in vars(batch).values():
        for tensor in value.values() if isinstance(value, dict) else [value]:
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(stream)
    return batch
