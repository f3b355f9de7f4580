"""The command line: help for everything, exit codes that tell what happened, one-line errors, JSON that parses."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.pipeline import plan_pipeline
from flows.recipe import load_recipe, shipped_recipes
from storage.records import ArtifactRef
from storage.runs import RunRecord, new_run_id, save_run
from storage.workspace import Completion, Workspace
from tests import ROOT
from tests.flows.cli.command_list import commands
from tests.flows.conftest import Longtake
from tests.flows.toy_place import TOY, Place

TINY = ["dataset.train=2", "dataset.val=1", "dataset.test=1", "dataset.size=32", "dataset.captions=1"]


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_option_has_a_help_text(name: str, command: Any) -> None:
    assert inspect.getdoc(inspect.unwrap(command.callback)), f"{name} has no docstring"
    assert command.help and command.help[0].isupper() and command.help.rstrip().endswith(".")
    for parameter in command.params:
        assert parameter.help, f"{name} {parameter.name} has no help"


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_has_an_example_that_parses(name: str, command: Any) -> None:
    assert command.epilog and command.epilog.startswith(f"Example: {name}"), f"{name} has no example"
    arguments = shlex.split(command.epilog.removeprefix(f"Example: {name}"))
    assert command.make_context(name, arguments, resilient_parsing=False).params


def test_help_lists_the_commands_and_exits_well(longtake: Longtake) -> None:
    shown = longtake("--help")
    assert shown.code == 0 and all(word in shown.out for word in ("demo", "run", "status", "gc", "recipes", "features"))
    assert "verify" in longtake("features", "--help").out
    assert "--workspace" in longtake("run", "--help").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command"),
        (["run"], "Missing argument"),
        (["run", "demo", "--nonsense"], "No such option"),
        (["gc", "--keep", "-1"], "Invalid value"),
        (["run", "dmo"], "did you mean 'demo'?"),
        (["run", "mine.yaml"], "there is no recipe file mine.yaml"),
        (["run", "demo", "--set", "seeding.epocs=3"], "did you mean 'epochs'?"),
        (["run", "demo", "--set", "seeding"], "is not of the form key.subkey=value"),
        (["run", "demo", "--kind", "youtube"], "there is no kind 'youtube'; valid kinds: 'msvd'"),
        (["demo", "--set", "dataset.kind=folder"], "'longtake demo' draws its own data"),
        (["status"], "there is no workspace at longtake-workspace; 'longtake demo' or 'longtake run' creates one"),
        (["gc", "--workspace", "nowhere"], "there is no workspace at nowhere"),
        (["features", "list", "-w", "nowhere"], "there is no workspace at nowhere"),
        (["features", "verify", "-w", "nowhere"], "there is no workspace at nowhere"),
    ],
)
def test_wrong_usage_exits_with_2_and_makes_nothing(longtake: Longtake, tmp_path: Path, arguments: list[str], said: str) -> None:
    answer = longtake(*arguments)
    assert answer.code == 2 and said in " ".join(answer.err.replace("│", " ").split())
    assert "Traceback" not in answer.err and answer.out == ""
    assert not (tmp_path / "nowhere").exists() and not (tmp_path / "longtake-workspace" / "artifacts").exists()


@pytest.mark.parametrize("option", ["--until", "--force"])
def test_an_unknown_stage_exits_with_2_and_lists_the_stages(longtake: Longtake, recipe: Path, world: Path, option: str) -> None:
    answer = longtake("run", recipe, "--data", world, option, "sed", "--dry-run")
    assert answer.code == 2 and "there is no stage 'sed'; stages: boost, caption, catalogue" in answer.err


def spoiled(root: Path, captions: str | None) -> Path:
    root.mkdir()
    (root / "a.mp4").write_bytes(b"")
    if captions is not None:
        (root / "captions.jsonl").write_text(captions)
    return root


GOOD = '{"video": "a", "caption": "a ball", "split": "train"}\n'


@pytest.mark.parametrize(
    ("captions", "said"),
    [
        (None, "captions"),
        ("", "not one usable caption"),
        ('{"video": "a", "caption": "", "split": "train"}\n', "not one usable caption"),
        (GOOD + GOOD + '{"video": "a", "capt\n' + GOOD, "captions.jsonl, line 3, column 16: "),
        (GOOD + '["a", "a ball"]\n', "captions.jsonl"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_one_line_and_exit_code_1(
    longtake: Longtake, recipe: Path, tmp_path: Path, captions: str | None, said: str
) -> None:
    answer = longtake("run", recipe, "--data", spoiled(tmp_path / "data", captions), "--dry-run")
    assert answer.code == 1 and answer.out == "" and said in answer.err
    assert answer.err.startswith("error: ") and len(answer.err.splitlines()) == 1 and "Traceback" not in answer.err


def test_one_malformed_entry_among_good_ones_stops_nothing(longtake: Longtake, recipe: Path, tmp_path: Path) -> None:
    data = spoiled(tmp_path / "data", GOOD + '{"video": 1}\n{"video": "no-such-clip.mp4", "caption": "x"}\n')
    answer = longtake("run", recipe, "--data", data, "--dry-run")
    assert answer.code == 0 and "\nmissing: 1, no-such-clip\n" in answer.out and "not used" not in answer.out


def test_a_data_folder_that_is_not_there_is_one_line_and_exit_code_1(longtake: Longtake, recipe: Path) -> None:
    answer = longtake("run", recipe, "--data", "nowhere", "--dry-run")
    assert answer.code == 1 and len(answer.err.splitlines()) == 1
    assert "nowhere does not exist; pass the data folder with --data" in answer.err
    missing = longtake("run", recipe, "--dry-run", "--json")
    assert missing.code == 1 and "does not say where its data is" in missing.json["error"]


@pytest.mark.parametrize("workspace", ["mine.yaml/below", "mine.yaml", "/proc/sys/longtake", "data"])
def test_a_workspace_that_cannot_be_written_is_one_line_and_exit_code_1(
    longtake: Longtake, recipe: Path, tmp_path: Path, workspace: str
) -> None:
    data = spoiled(tmp_path / "data", GOOD)
    answer = longtake("run", recipe, "--data", data, "--workspace", workspace, "--dry-run")
    assert answer.code == 1 and answer.err.startswith("error: ") and len(answer.err.splitlines()) == 1
    assert workspace in answer.err and ("--workspace" in answer.err or "check the disk" in answer.err)


def test_the_real_command_fails_without_a_traceback_before_anything_starts(recipe: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "run", str(recipe), "--data", str(tmp_path / "nowhere"), "--json"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PREFECT_HOME": str(tmp_path / "prefect")}
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert answer.returncode == 1 and "Traceback" not in answer.stderr
    assert "nowhere does not exist" in json.loads(answer.stdout)["error"]
    assert not (tmp_path / "prefect").exists(), "Prefect is not started for what cannot be planned"


@pytest.fixture
def begun(recipe: Path, world: Path, tmp_path: Path) -> Path:
    """A workspace in which the first two stages of the recipe are done."""
    workspace = Workspace.open(tmp_path / "space")
    plan = plan_pipeline(load_recipe(str(recipe), data=world), workspace, until="prepare_text")
    for step in plan.steps:
        step.execute()
    place = ("mine", plan.recipe.dataset.name, str(world), plan.recipe.model_dump(mode="json"), plan.keys, ())
    save_run(workspace, RunRecord(new_run_id(), *place, "2024-01-01T00:00:00Z", "done", scores={"CIDEr": 0.5}))
    return workspace.root


def test_a_dry_run_says_what_would_be_done_and_does_nothing(longtake: Longtake, recipe: Path, world: Path, begun: Path) -> None:
    before = sorted((begun / "artifacts").rglob("*"))
    arguments = ("run", recipe, "--data", world, "--workspace", begun, "--dry-run")
    shown = longtake(*arguments)
    assert shown.code == 0 and "7 of 9 stages would run" in shown.out and "sample_frames[clips]" in shown.out
    stages = longtake(*arguments, "--json").json["stages"]
    assert [stage["state"] for stage in stages] == ["done"] * 2 + ["missing"] * 7
    assert stages[0]["items"] == 18 and stages[2]["why"] == "not computed yet"
    changed = longtake(*arguments, "--set", "text.min_count=1", "--json").json["stages"]
    assert (changed[1]["state"], changed[1]["why"]) == ("stale", "min_count 3 -> 1")
    short = longtake(*arguments, "--until", "prepare_text")
    assert "Nothing to do: every stage is cached." in short.out
    forced = longtake(*arguments, "--until", "prepare_text", "--force", "prepare_text", "--json").json["stages"]
    assert [stage["state"] for stage in forced] == ["done", "forced"]
    assert sorted((begun / "artifacts").rglob("*")) == before


def test_a_dry_run_of_the_demo_draws_nothing(longtake: Longtake, tmp_path: Path) -> None:
    settings = [word for setting in TINY for word in ("--set", setting)]
    answer = longtake("demo", "--dry-run", *settings)
    assert answer.code == 1 and "run 'longtake demo' to draw one" in answer.err
    assert list(tmp_path.rglob("*.mp4")) == []


def test_status_finds_the_data_of_the_last_run(longtake: Longtake, recipe: Path, world: Path, begun: Path) -> None:
    told = longtake("status", recipe, "--workspace", begun, "--json").json
    assert (told["recipe"], told["data"]) == ("mine", str(world))
    assert told["features"] == [{"feature": "scene", "fresh": 0, "wanted": 18}]
    assert told["problems"] == [] and [run["scores"] for run in told["runs"]] == [{"CIDEr": 0.5}]
    shown = longtake("status", recipe, "--workspace", begun)
    assert shown.code == 0 and "7 of 9 stages to do" in shown.out and "0 of 18 videos" in shown.out
    assert f"Next: longtake run {recipe} --data {world} --workspace space" in shown.out
    changed = longtake("status", recipe, "-w", begun, "--set", "text.min_count=1", "--data", world)
    assert f"longtake run {recipe} --data {world} --set text.min_count=1 --workspace space" in changed.out


def test_status_reads_the_data_as_the_last_run_did(longtake: Longtake, recipe: Path, world: Path, begun: Path) -> None:
    values = yaml.safe_load(recipe.read_text()) | {"dataset": {"kind": "msvd"}}
    recipe.write_text(yaml.safe_dump(values))
    assert [stage["state"] for stage in longtake("status", recipe, "-w", begun, "--json").json["stages"]][:1] == ["done"]


def test_status_without_a_recipe_lists_the_runs(longtake: Longtake, begun: Path, tmp_path: Path) -> None:
    assert [run["recipe_name"] for run in longtake("status", "-w", begun, "--json").json] == ["mine"]
    listed = longtake("status", "-w", begun).out
    assert "mine" in listed and "Next: longtake status RECIPE --workspace space" in listed
    assert "longtake caption" not in listed, "there is no trained captioner yet"
    Workspace.open(tmp_path / "new")
    assert longtake("status", "-w", tmp_path / "new", "--json").json == []
    told = longtake("status", "-w", tmp_path / "new").out
    assert "no runs yet" in told and "Next: longtake demo --workspace new" in told


def test_status_of_a_finished_run_leads_to_its_report_and_to_captions(
    longtake: Longtake, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_WORKSPACE", str(place.root / "workspace"))
    shown = longtake("status", TOY, "--data", place.data).out
    assert "Everything is done." in shown and "Next: longtake report toy " in shown
    assert "longtake caption new-videos --run toy " in shown and "--workspace" not in shown


def test_status_names_the_files_in_the_quarantine(longtake: Longtake, place: Place) -> None:
    broken = place.clip("test")
    broken.write_bytes(b"no film")
    place.plan(until="catalogue").steps[0].execute()
    where = ("-w", place.root / "workspace", "--data", place.data)
    shown = longtake("status", TOY, *where)
    assert "1 in quarantine" in shown.err and broken.stem in shown.err and "not_media" in shown.err


def test_lists_end_with_the_command_to_type_next(longtake: Longtake) -> None:
    assert "Next: longtake recipe show NAME" in longtake("recipes").out
    assert "Next: longtake sweep NAME --dry-run" in longtake("sweeps").out
    assert "Next: longtake run folder --data FOLDER --dry-run" in longtake("weights", "list", "folder").out


def test_the_workspace_can_come_from_the_environment_and_from_home(
    longtake: Longtake, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGTAKE_WORKSPACE", str(begun))
    assert len(longtake("status", "--json").json) == 1
    monkeypatch.setenv("HOME", str(begun.parent))
    monkeypatch.setenv("LONGTAKE_WORKSPACE", f"~/{begun.name}")
    assert len(longtake("status", "--json").json) == 1


def test_failures_are_json_when_asked_for(longtake: Longtake) -> None:
    answer = longtake("status", "--json")
    assert answer.code == 2 and "there is no workspace" in answer.json["error"] and answer.err.startswith("error: ")


def test_a_damaged_workspace_is_told_in_one_line(longtake: Longtake, begun: Path) -> None:
    next((begun / "runs").rglob("*.json")).write_text("{")
    answer = longtake("status", "-w", begun)
    assert answer.code == 1 and "is damaged" in answer.err and len(answer.err.splitlines()) == 1


def test_recipes_lists_what_is_shipped(longtake: Longtake) -> None:
    assert [row["name"] for row in longtake("recipes", "--json").json] == sorted(shipped_recipes())
    assert "demo" in longtake("recipes").out


def test_gc_tells_what_goes_and_a_dry_run_keeps_it(longtake: Longtake, begun: Path) -> None:
    workspace = Workspace.open(begun)
    ref = ArtifactRef("seed", "artifacts/seed/orphan", "orphan")
    orphan = workspace.folder("seed", "orphan")
    orphan.mkdir(parents=True)
    (orphan / "weights").write_bytes(b"x" * 2000)
    workspace.finish(Completion(ref, "seed", {}, 1.0, "2024-01-01T00:00:00Z"))
    told = longtake("gc", "-w", begun, "--dry-run", "--json").json
    assert told["removed"] is False and [item["path"] for item in told["items"]] == [str(orphan)]
    assert told["bytes"] == told["items"][0]["bytes"] > 2000
    assert "would be freed, 1 items" in longtake("gc", "-w", begun, "--dry-run").out and orphan.exists()
    assert longtake("gc", "-w", begun, "--json").json["removed"] is True
    assert not orphan.exists() and len(list((begun / "artifacts").glob("*/*"))) == 2
    assert "nothing to collect" in longtake("gc", "-w", begun).out


def test_looking_needs_neither_prefect_nor_the_libraries_of_nets() -> None:
    script = (
        "import sys; import flows.cli.main, flows.status, flows.pipeline, flows.features, storage.files.garbage_collection;"
        "sys.exit(', '.join({'prefect', 'timm', 'torchvision', 'torch._dynamo', 'openvino'} & set(sys.modules)) or 0)"
    )
    answer = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True)
    assert (answer.returncode, answer.stderr) == (0, "")
