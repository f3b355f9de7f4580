"""What a stage promises: a key of all it depends on and nothing else, work done once, failures in words that lose nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage.catalogue import problem_table
from storage.errors import BadInput
from storage.files.atomic import write_parquet, write_text
from storage.options import Options
from storage.records import ArtifactRef, Problem
from storage.workspace import Completion, Workspace
from tasks.framework.quarantine import gather_problems
from tasks.framework.runtime import Runtime
from tasks.framework.stage import KeyInputs, Stage, StageContext, StageResult, StageRun, stage

SLOW = """
import sys, time
from pathlib import Path
from storage.options import Options
from storage.workspace import Workspace
from tasks.framework.runtime import Runtime
from tasks.framework.stage import StageResult, stage

@stage(version=1)
def slow(context, options):
    with (context.data / "log").open("a") as log:
        log.write("worked\\n")
    time.sleep(0.3)
    return StageResult(1)

data = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(slow.bind(Workspace.open(sys.argv[2]), data, Runtime(), Options(), {}, 'slow[toy]').execute()[1])
"""


class ToyOptions(Options):
    size: int = 1
    path: str | None = None


CAPTIONS = ArtifactRef("catalogue", "artifacts/catalogue/k1", "k1")


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def toy_stage(log: list[str]) -> Stage:
    """Writes one file and notes that it worked."""

    @stage(version=1)
    def toy(context: StageContext, options: ToyOptions, **inputs: ArtifactRef) -> StageResult:
        assert not (context.folder / "done.json").exists(), "the marker is written last"
        log.append("worked")
        write_text(context.folder / "result.txt", "x" * options.size)
        return StageResult(options.size, {"size": options.size})

    return toy


def job(toy: Stage, workspace: Workspace, options: Options | None = None, **inputs: ArtifactRef) -> StageRun:
    return toy.bind(workspace, workspace.root, Runtime(decoders=0), options or ToyOptions(), inputs)


def test_the_key_follows_name_version_options_and_inputs(workspace: Workspace, toy_stage: Stage) -> None:
    base = job(toy_stage, workspace, captions=CAPTIONS).ref
    others = [
        job(replace(toy_stage, version=2), workspace, captions=CAPTIONS),
        job(replace(toy_stage, name="other"), workspace, captions=CAPTIONS),
        job(toy_stage, workspace, ToyOptions(size=2), captions=CAPTIONS),
        job(toy_stage, workspace, captions=replace(CAPTIONS, key="k2")),
        job(toy_stage, workspace, text=CAPTIONS),
        job(toy_stage, workspace),
        job(replace(toy_stage, key_inputs=lambda *_, **__: KeyInputs(extra="weights")), workspace, captions=CAPTIONS),
    ]
    keys = {base.key, *(other.ref.key for other in others)}
    assert len(keys) == 1 + len(others)
    assert base.uri == f"artifacts/toy/{base.key}" and base.made_by == "toy v1"


def test_the_key_does_not_follow_places_and_machines(workspace: Workspace, toy_stage: Stage, tmp_path: Path) -> None:
    base = job(toy_stage, workspace, captions=CAPTIONS).ref.key
    assert job(toy_stage, workspace, ToyOptions(path="/elsewhere"), captions=CAPTIONS).ref.key == base
    moved = replace(CAPTIONS, uri="artifacts/catalogue/elsewhere", count=5)
    assert job(toy_stage, workspace, captions=moved).ref.key == base
    other = Workspace.open(tmp_path / "other")
    fast = Runtime(decoders=3, threads=2, retry_quarantined=True)
    assert toy_stage.bind(other, tmp_path, fast, ToyOptions(), {"captions": CAPTIONS}, "label").ref.key == base


def test_the_key_is_the_same_in_every_process(workspace: Workspace) -> None:
    script = (
        "import sys; from pathlib import Path; from storage.text.vocabulary import TextOptions; from storage.records import *;"
        "from tasks.prepare_text import prepare_text; from tasks.framework.runtime import Runtime;"
        "from storage.workspace import Workspace;"
        "parts = {f'captions/{s}': s for s in SPLITS}; ref = ArtifactRef('catalogue', 'u', 'k', parts=parts);"
        "job = prepare_text.bind(Workspace.open(sys.argv[1]), Path('.'), Runtime(), TextOptions(), {'captions': ref});"
        "print(job.ref.key, sorted(job.ref.parts.items()))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script, str(workspace.root)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1 and b"train" in answers.pop()


def test_a_result_is_made_once(workspace: Workspace, toy_stage: Stage, log: list[str]) -> None:
    assert job(toy_stage, workspace, ToyOptions(size=3)).execute() == (3, True)
    assert job(toy_stage, workspace, ToyOptions(size=3)).execute() == (3, False)
    assert log == ["worked"]
    done = job(toy_stage, workspace, ToyOptions(size=3)).find_completion()
    assert done is not None and done.summary == {"size": 3} and done.files == {"result.txt": 3}
    assert done.ingredients["options"] == {"size": 3}


def test_force_makes_it_again_from_nothing(workspace: Workspace, toy_stage: Stage, log: list[str]) -> None:
    made = job(toy_stage, workspace)
    made.execute()
    (made.folder / "left over").write_text("old")
    assert made.execute(force=True)[1]
    assert log == ["worked", "worked"]
    assert sorted(path.name for path in made.folder.iterdir()) == ["done.json", "result.txt"]


def test_a_result_whose_file_was_deleted_is_made_again(workspace: Workspace, toy_stage: Stage, log: list[str]) -> None:
    made = job(toy_stage, workspace)
    made.execute()
    (made.folder / "result.txt").unlink()
    assert made.find_completion() is None and made.execute()[1] and log == ["worked", "worked"]


def test_what_lies_outside_the_folder_counts_too(workspace: Workspace, toy_stage: Stage) -> None:
    outside = workspace.root / "outside"

    def is_valid(context: StageContext, done: Completion) -> bool:
        return outside.exists()

    made = job(replace(toy_stage, is_valid=is_valid), workspace)
    outside.write_text("rows")
    made.execute()
    assert made.find_completion() is not None
    outside.unlink()
    assert made.find_completion() is None


@pytest.mark.parametrize("failure", [BadInput("no captions"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_failing_stage_leaves_no_marker_and_goes_on_from_its_files(workspace: Workspace, failure: BaseException) -> None:
    seen: list[bool] = []

    @stage(version=1)
    def fails(context: StageContext, options: ToyOptions) -> StageResult:
        seen.append((context.folder / "half").exists())
        write_text(context.folder / "half", "so far")
        if len(seen) == 1:
            raise failure
        return StageResult(1)

    made = job(fails, workspace)
    with pytest.raises(type(failure)):
        made.execute()
    assert made.find_completion() is None and not workspace.locked(f"fails-{made.ref.key}")
    assert made.execute()[1] and seen == [False, True]


def test_threads_that_want_the_same_result_share_it(workspace: Workspace, log: list[str]) -> None:
    @stage(version=1)
    def slow(context: StageContext, options: ToyOptions) -> StageResult:
        log.append("worked")
        time.sleep(0.2)
        return StageResult(1)

    did: list[bool] = []
    wanted = [threading.Thread(target=lambda: did.append(job(slow, workspace).execute()[1])) for _ in range(4)]
    for thread in wanted:
        thread.start()
    for thread in wanted:
        thread.join()
    assert log == ["worked"] and sorted(did) == [False, False, False, True]


def test_processes_that_want_the_same_result_share_it(workspace: Workspace, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, str(tmp_path), str(workspace.root)]
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=30) for process in both]
    assert sorted(out.strip() for out, _ in answers) == ["False", "True"], answers
    assert (tmp_path / "log").read_text() == "worked\n"
    told = [err for _, err in answers if err]
    assert len(told) == 1 and re.fullmatch(
        r"  slow\[toy\]: (process \d+ since [\d:]+|another process) is at it; waiting\n", told[0]
    )


def test_problems_of_several_stages_are_gathered_once_quarantined_first(workspace: Workspace) -> None:
    def noted(name: str, problems: list[Problem]) -> ArtifactRef:
        write_parquet(workspace.folder("catalogue", name) / "quarantine.parquet", problem_table(problems))
        return ArtifactRef("catalogue", f"artifacts/catalogue/{name}", name)

    note, bad = Problem("a", "no_captions", "none"), Problem("b", "truncated", "ends early", "b.mp4", quarantined=True)
    refs = [noted("one", [note, bad]), noted("two", [bad, replace(bad, kind="timeout")]), replace(CAPTIONS)]
    found = gather_problems(workspace, refs)
    assert [(p.item, p.kind) for p in found] == [("b", "timeout"), ("b", "truncated"), ("a", "no_captions")]
    assert found[1] == bad and found[2] == note


def test_a_part_that_is_not_there_is_an_error_that_lists_the_parts() -> None:
    parts: Mapping[str, Any] = {"videos": "1", "videos/train": "2", "captions": "3"}
    ref = ArtifactRef("catalogue", "uri", "key", 5, parts=dict(parts))
    assert ref.part("videos").parts == {"videos/train": "2"} and ref.part("videos").key == "1"
    both = ref.part("videos/train", "captions")
    assert both.parts == {"videos/train": "2", "captions": "3"} and both.selected == ("videos/train", "captions")
    assert both.key == ref.part("captions", "videos/train").key not in ("2", "3") and both.uri == "uri"
    assert ArtifactRef.from_json(both.to_json()) == both and "selected" not in ref.to_json()
    with pytest.raises(KeyError, match="no part 'audio'; it has captions, videos, videos/train"):
        ref.part("audio")
