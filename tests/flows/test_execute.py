"""Executing a plan: what a run that fails leaves behind and tells."""

from __future__ import annotations

import shutil

import pytest

from flows import execute as module
from storage.errors import StorageError
from storage.runs import load_runs
from tests.flows.toy_place import Place


def test_a_run_that_fails_is_noted_as_failed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise StorageError("cannot write features: the disk is full")

    monkeypatch.setattr("tasks.framework.prefect_task.run_as_task", fails)
    before = len(load_runs(place.workspace))
    with pytest.raises(StorageError, match="cannot write features"):
        module.run_plan(place.plan(), "a run")
    runs = load_runs(place.workspace)
    assert len(runs) == before + 1 and runs[0].state == "failed"


def test_a_failure_that_cannot_be_noted_is_still_the_one_that_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        shutil.rmtree(place.workspace.root / "runs")
        (place.workspace.root / "runs").write_text("in the way")  # refuses even root
        raise StorageError("cannot write features: the disk is full")

    monkeypatch.setattr("tasks.framework.prefect_task.run_as_task", fails)
    with pytest.raises(StorageError, match="cannot write features") as told:
        module.run_plan(place.plan(), "a run")
    assert "nor can the run be noted as failed: cannot write" in told.value.__notes__[0]
