"""Shards on several GPUs of this machine: one process per GPU, each with its share of the decoders. Not run on GPUs yet; its
processes, their shards and their failures are tested on a CPU."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from typing import Any

from storage.errors import TransientError
from tasks.extraction.engine import RowResult
from tasks.extraction.shards import Shard, extract_shard
from tasks.framework.runtime import Runtime


def run_on_gpus(shards: Iterable[Shard], runtime: Runtime, gpus: int) -> Iterator[RowResult]:
    """The result of every row, shard by shard in their order. At most two shards per process wait or run."""
    decoders = -(-runtime.decoders // gpus)
    each = runtime.model_copy(update={"decoders": decoders, "gpus": 1, "nproc": 1})
    context = get_context("spawn")
    cards: Any = context.Queue()
    for card in range(gpus):
        cards.put(card)
    running: deque[Future[list[RowResult]]] = deque()
    with ProcessPoolExecutor(gpus, context, _take_card, (cards,)) as pool:
        try:
            for shard in shards:
                running.append(pool.submit(extract_shard, replace(shard, runtime=each)))
                if len(running) > 2 * gpus:
                    yield from running.popleft().result()
            while running:
                yield from running.popleft().result()
        except BrokenProcessPool as error:
            remedy = "look at the machine's memory, lower runtime.batch, and run the same command: what was extracted is kept"
            raise TransientError(f"a process that extracts on a GPU was lost; {remedy}") from error


def _take_card(cards: Any) -> None:
    use_card(cards.get())


@cache
def take_card_once(index: int) -> None:
    """`use_card`, in a worker that gets one shard after another."""
    use_card(index)


def use_card(index: int) -> None:
    """Let this process see one GPU alone, the index-th of those that it would see. To be called before torch looks for GPUs."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[index % len(visible)] if visible else str(index)
