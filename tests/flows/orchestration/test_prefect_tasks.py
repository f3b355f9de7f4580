"""Stages as task runs of a real Prefect: tried again when input or output failed, never for bad input; slots are held."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from flows.orchestration.artifacts import quarantine_rows, score_rows
from storage.records import Problem

SCRIPT = """
import errno, json, sys
from collections import Counter
from pathlib import Path
from flows.orchestration.embedded_server import configure, prefect_api
from storage.errors import BadInput, TransientError, UsageError
from storage.options import Options
from storage.workspace import Workspace
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageResult, stage

space = Workspace.open(sys.argv[1])
configure()
tries, seen = Counter(), {}

@stage(version=1)
def flaky(context, options):
    tries["flaky"] += 1
    if tries["flaky"] < 3:
        raise OSError(errno.EIO, "Input/output error", "clip.mp4")
    return StageResult(1)

@stage(version=1)
def broken(context, options):
    tries["broken"] += 1
    raise OSError(errno.EIO, "Input/output error", "clip.mp4")

@stage(version=1)
def hopeless(context, options):
    tries["hopeless"] += 1
    raise BadInput("captions.csv has no column 'caption'; add it")

def active():
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name("slots-of-test").active_slots

@stage(version=1, device=True)
def busy(context, options):
    seen["while"] = active()
    return StageResult(1)

def attempt(each, **runtime):
    try:
        return run_as_task(each.bind(space, Path("."), Runtime(**runtime), Options(), {}), each.name, False)[1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"

with prefect_api():
    import tasks.framework.prefect_task
    tasks.framework.prefect_task.RETRY_SECONDS[:] = [0.0, 0.0, 0.0]
    from prefect import flow
    from prefect.client.orchestration import get_client
    from flows.orchestration.deployments import ensure_slots
    from tasks.framework.prefect_task import run_as_task

    @flow
    def everything():
        ensure_slots("slots-of-test", 1)
        ensure_slots("slots-of-test", 2)
        answers = {each.name: attempt(each) for each in (flaky, broken, hopeless)}
        answers["nowhere"] = attempt(busy, concurrency_limit="no-such-limit")
        answers["busy"] = attempt(busy, concurrency_limit="slots-of-test")
        return answers, active()

    answers, after = everything()
print(json.dumps({"answers": answers, "tries": tries, "during": seen, "after": after}))
"""


@pytest.fixture(scope="module")
def told(served: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("prefect")
    done = subprocess.run([sys.executable, "-c", SCRIPT, place / "w"], env=served, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_input_and_output_that_failed_is_tried_again(told: dict[str, Any]) -> None:
    assert told["answers"]["flaky"] is True and told["tries"]["flaky"] == 3


def test_what_fails_again_and_again_ends_in_words(told: dict[str, Any]) -> None:
    assert told["tries"]["broken"] == 4
    assert told["answers"]["broken"].startswith("TransientError: cannot write clip.mp4: Input/output error; check the disk")


def test_bad_input_is_not_tried_again(told: dict[str, Any]) -> None:
    assert told["tries"]["hopeless"] == 1 and "BadInput" in told["answers"]["hopeless"]


def test_a_stage_that_uses_the_device_holds_a_slot_and_gives_it_back(told: dict[str, Any]) -> None:
    assert told["answers"]["busy"] is True and (told["during"]["while"], told["after"]) == (1, 0)


def test_a_limit_that_is_not_there_is_named_with_the_command_that_makes_it(told: dict[str, Any]) -> None:
    assert "no concurrency limit 'no-such-limit'" in told["answers"]["nowhere"]
    assert "prefect global-concurrency-limit create no-such-limit --limit 1" in told["answers"]["nowhere"]


def test_scores_stand_beside_those_of_the_last_run() -> None:
    rows = score_rows({"CIDEr": 0.5, "METEOR": 0.25, "BLEU-4": 0.1}, {"CIDEr": 0.4, "BLEU-4": 0.10004})
    assert [(r["score"], r["this run"], r["last run"], r["change"]) for r in rows] == [
        ("CIDEr", "50.0", "40.0", "+10.0"),
        ("METEOR", "25.0", "", ""),
        ("BLEU-4", "10.0", "10.0", "+0.0"),
    ]
    assert score_rows({"CIDEr": 0.5}, {}) == [{"score": "CIDEr", "this run": "50.0"}], "no empty columns"


def test_a_long_quarantine_is_cut_and_says_so() -> None:
    rows = quarantine_rows([Problem(f"v{n}", "empty", "the file is empty", "", True) for n in range(300)])
    assert len(rows) == 201 and rows[-1]["item"] == "... and 100 more"
