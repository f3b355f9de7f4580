"""`longtake report`: the page of a run, from what the run left; several runs on one page."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flows.execute import new_record
from storage.runs import RunRecord, load_runs, new_run_id, save_run
from storage.workspace import Workspace
from tests.flows.conftest import Longtake
from tests.flows.toy_place import Place


def recorded(place: Place, name: str = "toy", **changes: object) -> RunRecord:
    """Carry a variant of the toy recipe out, and keep its record as a run does."""
    plan = place.plan(**changes)
    for step in plan.steps:
        step.execute()
    recipe = plan.recipe.model_dump(mode="json") | {"name": name}
    run = replace(new_record(plan), recipe_name=name, recipe=recipe, started_at="2024-01-01T00:00:00Z", state="done")
    save_run(place.workspace, run)
    return run


def test_a_run_recorded_before_records_named_their_results_has_its_report_too(place: Place, longtake: Longtake) -> None:
    run = recorded(place)
    (path,) = (place.workspace.root / "runs").glob(f"*/{run.id}.json")
    old = {name: value for name, value in json.loads(path.read_bytes()).items() if name != "results"}
    path.write_text(json.dumps(old))
    assert load_runs(place.workspace)[0].results == run.results
    answer = longtake("report", run.id, "--workspace", place.workspace.root, "--json")
    assert (answer.code, answer.json["made"]) == (0, False)


def test_the_newest_runs_report_is_found_and_not_made_again(place: Place, longtake: Longtake) -> None:
    run = recorded(place)
    answer = longtake("report", "--workspace", place.workspace.root, "--json")
    made = answer.json
    assert (answer.code, made["made"], made["runs"][0]["id"]) == (0, False, run.id)
    assert Path(made["report"]) == place.folder("report") / "report.html"
    told = longtake("report", run.id[:20], "--workspace", place.workspace.root)
    assert f"Report: {made['report']}" in told.out and "there already" in told.out


def test_a_report_that_is_gone_is_built_from_what_the_run_left(place: Place, longtake: Longtake) -> None:
    recorded(place)
    before = place.folder("report")
    shutil.rmtree(before)
    shutil.rmtree(place.data / "videos") if (place.data / "videos").exists() else None
    made = longtake("report", "toy", "--workspace", place.workspace.root, "--json").json
    assert made["made"] and Path(made["report"]) == before / "report.html"
    assert "What was run" in Path(made["report"]).read_text()


def test_two_runs_share_one_page_with_paired_differences(place: Place, longtake: Longtake) -> None:
    first, second = recorded(place), recorded(place, "wide", decoding__width=1)
    made = longtake("report", "toy", "wide", "--workspace", place.workspace.root, "--json").json
    page = Path(made["report"]).read_text()
    assert [run["id"] for run in made["runs"]] == [first.id, second.id]
    assert "Paired differences" in page and "decoding.width" in page and "A · " not in page.split("<title>")[0]
    assert page.count('<article class="clip"') == 4 and page.count("data:image/webp") == 4 * 8
    again = longtake("report", "toy", "wide", "--workspace", place.workspace.root, "--json").json
    assert again == made | {"made": False}


def test_runs_on_other_videos_are_shown_without_differences(place: Place, longtake: Longtake) -> None:
    recorded(place)
    recorded(place, "val", evaluation__split="val")
    made = longtake("report", "toy", "val", "--workspace", place.workspace.root, "--json").json
    page = Path(made["report"]).read_text()
    assert "not scored on the same videos" in page and '<tr class="sure">' not in page
    assert page.count('<article class="clip"') == 8


@pytest.mark.parametrize(
    ("name", "why"), [("nobody", "no scored run is called 'nobody'"), ("20", "3 runs begin with '20'; give more of the id")]
)
def test_a_run_that_is_not_there_is_answered_with_those_that_are(place: Place, longtake: Longtake, name: str, why: str) -> None:
    run = recorded(place)
    save_run(place.workspace, replace(run, id=new_run_id()))
    answer = longtake("report", name, "--workspace", place.workspace.root, "--json")
    assert answer.code == 2 and why in json.loads(answer.out)["error"] and run.short_id in answer.err.replace("\n", "")


def test_a_workspace_without_scores_says_what_to_do(tmp_path: Path, longtake: Longtake) -> None:
    Workspace.open(tmp_path / "empty")
    answer = longtake("report", "--workspace", tmp_path / "empty")
    assert answer.code == 2 and "longtake demo" in answer.err


def test_a_result_that_was_collected_is_named(place: Place, longtake: Longtake) -> None:
    run = recorded(place)
    shutil.rmtree(place.folder("caption"))
    shutil.rmtree(place.folder("report"))
    answer = longtake("report", run.id, "--workspace", place.workspace.root)
    assert answer.code == 2 and "used caption" in answer.err and "recomputes it" in answer.err.replace("\n", " ")
