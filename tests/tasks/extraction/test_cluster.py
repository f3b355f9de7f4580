"""Shards on clusters: the same rows as on one machine, a net loaded once per worker, workers lost, and plain words where
there is no cluster."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from storage.errors import BadMedia, MissingFeatures, TransientError, UsageError
from storage.features.store import FeatureStore
from storage.workspace import Workspace
from tasks import extract_features
from tasks.extraction import cluster
from tasks.extraction.engine import RowResult
from tasks.extraction.shards import Shard, run_shards
from tasks.framework import runtime
from tasks.framework.quarantine import gather_problems
from tasks.framework.runtime import Runtime
from tasks.framework.stage import Stage, StageRun
from tests.tasks.process_family import MARK, busy_workers, family, kill_a_busy_worker, wait_for
from tests.tasks.toy_run import ToyRun

NO_SHARD = Shard((), (), None, Runtime())
LOCAL = Runtime(device="cpu", decoders=1, threads=1, shard=3, batch=2)
DASK = LOCAL.model_copy(update={"runner": "dask", "workers": 2})
RAY = LOCAL.model_copy(update={"runner": "ray", "workers": 2})


def first_result(**settings: Any) -> RowResult:
    return next(cluster.run_on_cluster([NO_SHARD], Runtime(**settings)))


@pytest.mark.parametrize("runner", ["dask", "ray"])
def test_without_its_packages_the_error_says_what_to_install(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"prefect_{runner}", None)
    with pytest.raises(UsageError, match=rf"pip install 'longtake\[{runner}\]'"):
        first_result(runner=runner)


@pytest.mark.parametrize("runner", ["dask", "ray"])
def test_an_address_where_nothing_listens_is_named_at_once(runner: str) -> None:
    pytest.importorskip(f"prefect_{runner}", reason=f"the extra '{runner}' is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(UsageError, match=f"no {runner} cluster with a worker answers at {address}.*check runtime.addr"):
        first_result(runner=runner, address=address)


def test_an_address_that_does_not_speak_dask_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT", 1.0)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        somewhere = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"})
        with somewhere, pytest.raises(UsageError, match="silence for 1 s"):
            first_result(runner="dask", address=address)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("address", ["somewhere", "tcp://host", "host:port", "//"])
def test_an_address_without_a_port_is_wrong_usage(address: str) -> None:
    with pytest.raises(UsageError, match="give HOST:PORT of the dask cluster"):
        first_result(runner="dask", address=address)


def test_workers_that_live_on_need_a_prefect_server_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as there, pytest.raises(UsageError, match="set PREFECT_API_URL"):
        first_result(runner="dask", address=f"127.0.0.1:{there.getsockname()[1]}")


def test_no_shards_start_no_cluster() -> None:
    began = time.monotonic()
    assert list(cluster.run_on_cluster([], DASK)) == []
    assert time.monotonic() - began < 1


def test_workers_of_this_machine_share_its_cores_and_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "usable_cores", lambda: 8)
    there = cluster.worker_runtime(Runtime(runner="dask", workers=3, decoders=4))
    assert (there.runner, there.net_processes, there.decoders) == ("local", 3, 2)
    assert cluster.worker_runtime(Runtime(runner="ray", workers=12)).net_processes == 1
    assert cluster.worker_runtime(Runtime(runner="dask", workers=2, threads=7, decoders=0)).threads == 7
    apart = cluster.worker_runtime(Runtime(runner="dask", workers=2, decoders=0, net_processes=0))
    assert (apart.decoders, apart.net_processes) == (0, 0)
    far = cluster.worker_runtime(Runtime(runner="dask", address="host:1", workers=3, decoders=4))
    assert (far.runner, far.net_processes, far.decoders) == ("local", 1, 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server of these tests' own."""
    from prefect.testing.utilities import prefect_test_harness

    results = tmp_path_factory.mktemp("results")
    with prefect_test_harness(server_startup_timeout=180), temporary_settings({PREFECT_LOCAL_STORAGE_PATH: results}):
        yield
    assert list(results.iterdir()) == [], "shards leave no pickles behind"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Everything that the test starts is gone after it, the decoders of killed workers too."""
    name = uuid4().hex
    monkeypatch.setenv(MARK, name)
    yield name
    monkeypatch.delenv(MARK)
    wait_for(lambda: not [member for member in family(name) if "multiprocessing.resource_tracker" not in member.command])


@pytest.fixture
def undisturbed(toy: ToyRun, workspace: Workspace) -> dict[str, str]:
    """The digests of features that were extracted in this process; then they are removed."""
    toy.features()
    found = digests(workspace)
    shutil.rmtree(workspace.features)
    return found


def digests(workspace: Workspace) -> dict[str, str]:
    stores = [FeatureStore.open(path) for path in workspace.features.glob("*/*")]
    assert stores and all(store.verify() == [] and len(store.view()) == 18 for store in stores)
    return {store.path.name: store.view().digest() for store in stores}


def features_on(runtime: Runtime, toy: ToyRun, workspace: Workspace) -> StageRun:
    def alone(stage: Stage, options: Any, data: Path, **inputs: Any) -> StageRun:
        job = stage.bind(workspace, data, runtime, options, inputs)
        job.execute()
        return job

    return ToyRun(alone, toy.data).features()


def disturbed(monkeypatch: pytest.MonkeyPatch, disturb: Callable[[], None]) -> None:
    """Have something happen once the first shard is done."""

    def wrapped(shards: Iterable[Shard], runtime: Runtime) -> Iterator[RowResult]:
        results = run_shards(shards, runtime)
        first = next(results)
        disturb()
        yield first
        yield from results

    monkeypatch.setattr(extract_features, "run_shards", wrapped)


@pytest.fixture
def own_cluster() -> Iterator[Any]:
    """A Dask cluster that runs already, as a user would start one."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, scheduler_kwargs={"dashboard_address": "127.0.0.1:0"}) as own:
        yield own


def loads() -> tuple[int, int]:
    from tasks.extraction.nets import open_net

    return open_net.cache_info().misses, open_net.cache_info().hits


@pytest.mark.slow
def test_a_cluster_at_an_address_gives_the_same_rows_and_loads_a_net_once_per_worker(
    server: None, toy: ToyRun, workspace: Workspace, undisturbed: dict[str, str], mark: str, own_cluster: Any
) -> None:
    from distributed import Client

    features_on(DASK.model_copy(update={"address": own_cluster.scheduler_address}), toy, workspace)
    assert digests(workspace) == undisturbed
    with Client(own_cluster) as client:
        found = list(client.run(loads).values())
    assert len(found) == 2 and all(misses == 1 for misses, _ in found)
    assert sum(misses + hits for misses, hits in found) == 6, "one for each of the 6 shards of 3"


@pytest.mark.slow
def test_a_worker_killed_midway_costs_its_shard_only(
    server: None, toy: ToyRun, workspace: Workspace, undisturbed: dict[str, str], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []
    disturbed(monkeypatch, lambda: killed.append(kill_a_busy_worker(mark)))
    features_on(DASK, toy, workspace)
    assert digests(workspace) == undisturbed and len(killed) == 1


@pytest.mark.slow
def test_a_shard_whose_worker_is_lost_every_time_ends_the_run_with_words(
    server: None, toy: ToyRun, workspace: Workspace, undisturbed: dict[str, str], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, killed = threading.Event(), set()

    def kill_on() -> None:
        while not over.wait(0.02):
            for pid in busy_workers(mark):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)

    killer = threading.Thread(target=kill_on)
    killer.start()
    try:
        with pytest.raises(cluster.ClusterLost, match=r"its worker was lost again and again.*what was extracted is kept"):
            features_on(DASK.model_copy(update={"workers": 1, "shard": 18}), toy, workspace)
    finally:
        over.set()
        killer.join()
    assert len(killed) == 3


@pytest.mark.slow
def test_workers_that_are_killed_as_they_start_end_the_try_with_words(
    server: None, toy: ToyRun, workspace: Workspace, undisturbed: dict[str, str], mark: str
) -> None:
    over = threading.Event()

    def kill_on() -> None:
        while not over.wait(0.02):
            for member in family(mark):
                if member.is_worker:
                    os.kill(member.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_on)
    killer.start()
    try:
        with pytest.raises(TransientError, match="the dask cluster of this machine does not start"):
            features_on(DASK, toy, workspace)
    finally:
        over.set()
        killer.join()


@pytest.mark.slow
def test_a_shard_that_fails_is_raised_here_as_it_was_there(
    server: None, toy: ToyRun, workspace: Workspace, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def misled(shards: Iterable[Shard], runtime: Runtime) -> Iterator[RowResult]:
        for shard in shards:
            features = tuple(replace(each, store=str(workspace.root / "nowhere")) for each in shard.features)
            yield from run_shards([replace(shard, features=features)], runtime)

    monkeypatch.setattr(extract_features, "run_shards", misled)
    with pytest.raises(MissingFeatures, match="nowhere"):
        features_on(DASK, toy, workspace)


@pytest.mark.slow
def test_a_bad_video_is_set_aside_and_the_others_are_extracted(
    server: None, toy: ToyRun, workspace: Workspace, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(shards: Iterable[Shard], runtime: Runtime) -> Iterator[RowResult]:
        first, *others = shards
        bad = replace(first.videos[0], probe=BadMedia("truncated", "it ends too soon"))
        yield from run_shards([replace(first, videos=(bad, *first.videos[1:])), *others], runtime)

    monkeypatch.setattr(extract_features, "run_shards", spoilt)
    job = features_on(DASK, toy, workspace)
    done = job.find_completion()
    assert done is not None and done.summary["rows"] == 17
    assert [problem.reason for problem in gather_problems(workspace, [job.ref])] == ["it ends too soon"]


@pytest.mark.slow
def test_a_cluster_that_goes_away_ends_the_run_with_words(
    server: None,
    toy: ToyRun,
    workspace: Workspace,
    undisturbed: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    own_cluster: Any,
) -> None:
    disturbed(monkeypatch, own_cluster.close)
    with pytest.raises(cluster.ClusterLost, match="the cluster went away"):
        features_on(DASK.model_copy(update={"address": own_cluster.scheduler_address}), toy, workspace)


@pytest.mark.slow
def test_ray_gives_the_same_rows_with_a_worker_killed_midway(
    server: None, toy: ToyRun, workspace: Workspace, undisturbed: dict[str, str], mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prefect_ray", reason="the extra 'ray' is not installed")
    killed = []
    disturbed(monkeypatch, lambda: killed.append(kill_a_busy_worker(mark)))
    features_on(RAY, toy, workspace)
    assert digests(workspace) == undisturbed and len(killed) == 1
