"""Shards on a Dask or Ray cluster: one Prefect task run per shard, on workers of this machine or of an existing cluster.

    run_on_cluster -> prefect-dask / prefect-ray -> worker process -> run_shards

Both runners restart a shard elsewhere when its worker is lost, and shards are idempotent, so a lost worker costs one shard.
The third loss in a row fails the run: then the cause is not chance."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain
from queue import SimpleQueue
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.futures import PrefectFuture
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner

from storage.errors import LongtakeError, TransientError, UsageError
from tasks.extraction.engine import RowResult
from tasks.extraction.gpu_processes import take_card_once
from tasks.extraction.shards import Shard, extract_shard
from tasks.framework.broken_pipe import survive_broken_pipe
from tasks.framework.runtime import Runtime

T = TypeVar("T")

CONNECT_TIMEOUT = 30.0
"""Seconds that a cluster may take to answer at its address."""
MAX_LOSSES = 3
"""How often the worker of one shard may be lost."""
_RECORD_TIMEOUT = 10.0
_RAY_OBJECT_STORE = 100_000_000  # bytes; Ray would take a third of the memory, and shards are small
_PAGE = 200  # task runs in one response of Prefect's server


class ClusterLost(LongtakeError):
    """The cluster was lost, or the workers of one shard again and again."""


@dataclass(frozen=True)
class _Cluster:
    """A connected cluster, and the exceptions that it raises when a shard's workers were lost too often, or all of it."""

    runner: TaskRunner[Any]
    worker_lost: tuple[type[BaseException], ...]
    cluster_lost: tuple[type[BaseException], ...] = ()
    submit_options: Callable[[], AbstractContextManager[Any]] = nullcontext
    """the settings under which shards are submitted"""


def run_on_cluster(shards: Iterable[Shard], runtime: Runtime) -> Iterator[RowResult]:
    """The result of every row, as shards finish. Shards are submitted while earlier ones run."""
    remaining = iter(shards)
    first = next(remaining, None)
    if first is None:
        return
    shown: dict[str, Any] = {"task_run_name": "{title}", "tags": ["shard:extract_features"]}
    task = Task(extract_in_worker, name="extract_shard", cache_policy=NO_CACHE, persist_result=False, **shown)
    in_worker = worker_runtime(runtime)
    local = runtime.runner == "dask" and not runtime.address
    cards = runtime.gpu_count() if local else 0  # Ray gives its tasks cards itself
    if cards and runtime.workers > cards:
        reason = f"runtime.workers is {runtime.workers}, and this machine has {cards} GPUs for them"
        raise UsageError(f"{reason}; lower runtime.workers to {cards}, or set runtime.device to cpu")
    finished: SimpleQueue[PrefectFuture[list[RowResult]]] = SimpleQueue()
    titles: dict[UUID, str] = {}
    with _connect(runtime) as cluster:
        with get_client(sync_client=True) as client:
            api_url = str(client.api_url)  # workers report to it; without it each of them would start one of its own
        waiting = 0
        for n, shard in enumerate(chain([first], remaining), 1):
            title = f"shard {n}: {len(shard.videos)} videos from {shard.videos[0].id} on"
            values = {"shard": replace(shard, runtime=in_worker), "title": title, "cards": cards}
            with cluster.submit_options(), temporary_settings({PREFECT_API_URL: api_url}):
                future = cluster.runner.submit(task, values)
            titles[future.task_run_id] = title
            future.add_done_callback(finished.put)
            waiting += 1
            while not finished.empty():
                waiting -= 1
                yield from _results(finished.get(), titles, cluster)
        for _ in range(waiting):
            yield from _results(finished.get(), titles, cluster)
        _wait_until_recorded(list(titles))


def extract_in_worker(shard: Shard, title: str, cards: int = 0) -> list[RowResult]:
    """One shard in a worker; of a Dask cluster of this machine's processes, each takes one of so many `cards`."""
    survive_broken_pipe()
    if cards:
        from distributed import get_worker

        name = get_worker().name  # LocalCluster counts its workers from 0
        take_card_once(int(name) % cards)
    return extract_shard(shard)


def worker_runtime(runtime: Runtime) -> Runtime:
    """The runtime inside a worker. Workers of this machine share its cores and decoders; those of an existing cluster use
    what it gives them."""
    update: dict[str, Any] = {"runner": "local", "gpus": 1, "nproc": 1}
    if runtime.address:
        update["net_processes"] = 1 if runtime.net_processes is None else runtime.net_processes
    else:
        shared = {"decoders": runtime.decoders, "net_processes": runtime.net_count}
        update |= {name: -(-count // runtime.workers) for name, count in shared.items()}
    return runtime.model_copy(update=update)


def _results(future: PrefectFuture[list[RowResult]], titles: dict[UUID, str], cluster: _Cluster) -> list[RowResult]:
    title = titles[future.task_run_id]
    try:
        return future.result()
    except (*cluster.worker_lost, *cluster.cluster_lost) as error:
        lost = "its worker was lost again and again; look at the machine's memory, lower runtime.workers or runtime.batch,"
        if isinstance(error, cluster.cluster_lost):
            lost = "the cluster went away; start it again"
        raise ClusterLost(f"{title}: {lost} and run the same command: what was extracted is kept") from error


@contextmanager
def _connect(runtime: Runtime) -> Iterator[_Cluster]:
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context((_dask if runtime.runner == "dask" else _ray)(runtime))
        except ModuleNotFoundError as error:
            needs = f"runtime.runner '{runtime.runner}' needs '{error.name}'"
            raise UsageError(f"{needs}; run: pip install 'longtake[{runtime.runner}]'") from error
        yield cluster


@contextmanager
def _dask(runtime: Runtime) -> Iterator[_Cluster]:
    import dask
    from distributed import CancelledError, KilledWorker
    from prefect_dask import DaskTaskRunner

    if runtime.address:
        _check_address(runtime)
        runner = DaskTaskRunner(address=runtime.address, client_kwargs={"timeout": CONNECT_TIMEOUT})
    else:
        runner = DaskTaskRunner(
            cluster_kwargs={
                "n_workers": runtime.workers,
                "threads_per_worker": 1,
                "processes": True,
                "memory_limit": 0,  # Dask would stop workers by its own guess of what they need
                "security": True,  # else anyone on this machine could send code to the workers
                "scheduler_kwargs": {"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                "silence_logs": logging.CRITICAL,
            }
        )
    # A worker holds one shard at a time and no spare one, so that a loss counts against that shard alone.
    scheduler = "distributed.scheduler"
    settings = {f"{scheduler}.allowed-failures": MAX_LOSSES - 1, f"{scheduler}.worker-saturation": 1.0}
    with ExitStack() as stack:
        try:
            stack.enter_context(runner)
            with dask.config.set(settings):
                client = _with_timeout(lambda: runner.client) if runtime.address else runner.client
                client.wait_for_workers(1, timeout=CONNECT_TIMEOUT)
        except (OSError, TimeoutError) as error:
            raise _no_answer(runtime, error) from error
        except RuntimeError as error:  # a worker that was killed before it had started
            if runtime.address:
                raise
            reason = f"the dask cluster of this machine does not start ({error})"
            raise TransientError(f"{reason}; look at its memory, then run the same command") from error
        yield _Cluster(runner, (KilledWorker,), (CancelledError,))


@contextmanager
def _ray(runtime: Runtime) -> Iterator[_Cluster]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read at import
    import ray
    from prefect_ray import RayTaskRunner
    from prefect_ray.context import remote_options

    if runtime.address:
        _check_address(runtime)
        runner = RayTaskRunner(address=runtime.address, init_kwargs={"log_to_driver": False})
    else:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
        sizes = {"num_cpus": runtime.workers, "object_store_memory": _RAY_OBJECT_STORE}
        runner = RayTaskRunner(address="local", init_kwargs=sizes | quiet)
    with ExitStack() as stack:
        try:
            stack.enter_context(runner)
        except (OSError, RuntimeError) as error:
            raise _no_answer(runtime, error) from error
        options: dict[str, Any] = {"max_retries": MAX_LOSSES - 1}
        if runtime.address:
            options["num_cpus"] = max(1, runtime.threads) * (runtime.net_processes or 1)
        gpus = ray.cluster_resources().get("GPU", 0) if runtime.device != "cpu" else 0
        if gpus:  # a task sees only the GPUs that it asks for
            options["num_gpus"] = 1 if runtime.address else min(1, gpus / runtime.workers)
        worker_lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
        yield _Cluster(runner, worker_lost, submit_options=lambda: remote_options(**options))


def _with_timeout(function: Callable[[], T]) -> T:
    """The function's result, or TimeoutError: Dask waits for ever where something listens that does not answer."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # raised again by the caller
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(timeout=CONNECT_TIMEOUT)


def _check_address(runtime: Runtime) -> None:
    """Fail at once where nothing listens, or where the workers could not report to Prefect."""
    address = runtime.address
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise UsageError(f"runtime.address is '{address}'; give HOST:PORT of the {runtime.runner} cluster")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise _no_answer(runtime, error) from error
    # A worker process keeps the first server that it reported to, and the embedded one ends with this run.
    if not PREFECT_API_URL.value():
        reason = f"the workers at {address} live on after this run, so they need a Prefect server that does"
        remedy = "start one where they can reach it ('prefect server start') and set PREFECT_API_URL to its address"
        raise UsageError(f"{reason}: {remedy}")


def _no_answer(runtime: Runtime, error: Exception) -> UsageError:
    reason = str(error) or f"silence for {CONNECT_TIMEOUT:g} s"
    if not runtime.address:
        local = f"the {runtime.runner} cluster of this machine"
        return UsageError(f"{local} does not start ({reason}); 'longtake doctor' checks")
    return UsageError(
        f"no {runtime.runner} cluster with a worker answers at {runtime.address} ({reason}); check runtime.address, or "
        "leave it empty to start workers on this machine"
    )


def _wait_until_recorded(runs: list[UUID]) -> None:
    """Keep the workers until they have told Prefect how the last shards ended."""
    from httpx import HTTPError
    from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterId
    from prefect.exceptions import PrefectException

    last, deadline = runs[-_PAGE:], time.monotonic() + _RECORD_TIMEOUT
    mine = TaskRunFilter(id=TaskRunFilterId(any_=last))
    with get_client(sync_client=True) as client, suppress(HTTPError, PrefectException):
        while time.monotonic() < deadline:
            found = client.read_task_runs(task_run_filter=mine)
            if len(found) == len(last) and all(run.state and run.state.is_final() for run in found):
                return
            time.sleep(0.2)
