"""Stages as Prefect tasks: cached under the stage's own key, JSON results, readable run names, retries where they help.

Prefect's cache is asked only when the done-marker is there; otherwise it is refreshed, because to Prefect a hit is a hit
even if the files were deleted."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from prefect import Task
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.serializers import JSONSerializer
from prefect.states import State

from storage.errors import TransientError, UsageError
from tasks.framework.progress import console
from tasks.framework.stage import Stage, StageRun

RETRY_SECONDS = [5.0, 20.0, 60.0]
"""How long to wait before each new try of a stage whose input or output failed."""
LEASE_SECONDS = 60.0
"""How long a slot stays taken after its holder was killed, at most; Prefect allows no less. The server looks every 15 s."""


@contextmanager
def gpu_slot(run: StageRun) -> Iterator[None]:
    """A slot of the limit that the runtime names, while a stage uses the device. On a cluster the device is elsewhere."""
    elsewhere = run.stage.name == "extract_features" and run.runtime.runner != "local"
    if not run.runtime.concurrency_limit or not run.stage.device or elsewhere:
        yield
        return
    limit = run.runtime.concurrency_limit
    console.print_line(f"  {run.label}: takes a slot of '{limit}'", markup=False)
    # A renewal that fails, because the server restarts, must not end hours of training.
    how: dict[str, Any] = {"lease_duration": LEASE_SECONDS, "strict": True, "raise_on_lease_renewal_failure": False}
    with ExitStack() as held:
        try:
            held.enter_context(concurrency(limit, **how))
        except ConcurrencySlotAcquisitionError as error:
            raise UsageError(
                f"Prefect has no concurrency limit '{limit}', which the runtime names; make it with "
                f"'prefect global-concurrency-limit create {limit} --limit 1'"
            ) from error
        yield


def _is_transient(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Whether another try can help: a disk or a network may answer the next time, bad input stays bad."""
    return isinstance(state.result(raise_on_failure=False), TransientError)


def _cache_key(_context: Any, parameters: dict[str, Any]) -> str:
    return f"{parameters['self'].stage.name}-{parameters['self'].ref.key}"


@lru_cache
def as_prefect_task(stage: Stage) -> Task[..., tuple[int, bool]]:
    return Task(
        StageRun.execute,
        name=stage.name,
        version=str(stage.version),
        task_run_name="{title}",
        tags=[f"stage:{stage.name}"],
        cache_key_fn=_cache_key,
        persist_result=True,
        result_serializer=JSONSerializer(),
        retries=len(RETRY_SECONDS),
        retry_delay_seconds=RETRY_SECONDS,
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
    )


@dataclass
class Begun:
    """How many task runs this process has begun: what a history must hold, however a run ended."""

    count: int = 0


BEGUN = Begun()


def run_as_task(run: StageRun, title: str, force: bool = False) -> tuple[int, bool]:
    """Run a stage inside a flow: (items, whether it did the work). The work is not done if the result was there."""
    BEGUN.count += 1
    there = run.find_completion() is not None and not force
    task = as_prefect_task(run.stage).with_options(refresh_cache=not there)
    count, computed = task(run, force, title, gpu_slot)
    return count, computed and not there
