"""Shared toys: a tiny drawn world, workspaces, and a way to run one stage alone, without a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from storage.datasets.demo import DemoOptions, draw_world
from storage.records import ArtifactRef
from storage.workspace import Workspace
from tasks.framework.runtime import Runtime
from tasks.framework.stage import Stage, StageRun

TINY_WORLD = DemoOptions(seed=1, train=10, val=4, test=4, size=48, captions=4)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished world of 18 tiny clips. Tests must not change it."""
    root = tmp_path_factory.mktemp("world")
    draw_world(root, TINY_WORLD, workers=1)
    return root


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "workspace")


@pytest.fixture
def alone(workspace: Workspace) -> Callable[..., StageRun]:
    """alone(stage, options, data, **inputs) runs a stage by itself and returns its run; decoding stays in process."""

    def run_stage(stage: Stage, options: Any, data: Path, force: bool = False, **inputs: ArtifactRef) -> StageRun:
        run = stage.bind(
            workspace, data, Runtime(decoders=0, net_processes=0, engine="torch", device="cpu", threads=1), options, inputs
        )
        run.execute(force)
        return run

    return run_stage


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Equal thread counts give equal bits, and two test processes share two cores."""
    import torch

    torch.set_num_threads(1)
    yield


@pytest.fixture
def toy(alone: Callable[..., StageRun], world: Path) -> Any:
    """The pipeline's stages on the tiny world, one by one."""
    from tests.tasks.toy_run import ToyRun

    return ToyRun(alone, world)
