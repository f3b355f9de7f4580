"""Stages as Prefect tasks: cached under the stage's own key, JSON results, readable run names.

Prefect's cache is asked only when the done-marker is there; otherwise it is refreshed, because to Prefect a hit is a hit
even if the files were deleted."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from prefect import Task
from prefect.serializers import JSONSerializer

from storage.records import ArtifactRef
from tasks.stage import Job, Stage


def _carry_out(job: Job, sentence: str, force: bool) -> dict[str, Any]:
    ref, worked = job.carry_out(force)
    return {"ref": ref.to_json(), "worked": worked}


def _cache_key(_context: Any, parameters: dict[str, Any]) -> str:
    job: Job = parameters["job"]
    return f"{job.stage.name}-{job.ref.key}"


@lru_cache
def as_prefect_task(stage: Stage) -> Task[..., dict[str, Any]]:
    return Task(
        _carry_out,
        name=stage.name,
        version=str(stage.version),
        task_run_name="{sentence}",
        tags=[f"stage:{stage.name}"],
        cache_key_fn=_cache_key,
        persist_result=True,
        result_serializer=JSONSerializer(),
        retries=stage.retries,
        retry_delay_seconds=10,
    )


def run_stage(job: Job, sentence: str, force: bool) -> tuple[ArtifactRef, bool]:
    """Run a stage inside a flow; True if it did the work, False if its result was there."""
    there = job.done() is not None and not force
    task = as_prefect_task(job.stage).with_options(refresh_cache=not there)
    answer = task(job, sentence, force)
    ref = ArtifactRef.from_json(answer["ref"])
    return ref, answer["worked"] and not there
