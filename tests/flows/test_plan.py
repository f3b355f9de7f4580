"""Plans: what a run would do and why. Each change of a recipe makes exactly the stages stale that depend on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import STAGES, plan_pipeline
from flows.status import feature_progress
from storage.errors import UsageError
from storage.workspace import Workspace
from tests.flows.toy_place import AFTER_SEED, FRAMES, LABELS, Place, executed, noted, recipe_on


def test_at_first_everything_is_missing(workspace: Workspace, world: Path) -> None:
    plan = plan_pipeline(recipe_on(world), workspace)
    assert [(step.label, step.state, step.reason) for step in plan.steps] == [(n, "missing", "not computed yet") for n in LABELS]
    assert feature_progress(plan) == [{"feature": "scene", "fresh": 0, "wanted": 18}]


def test_a_finished_pipeline_has_nothing_to_do(place: Place) -> None:
    plan = place.plan()
    assert [step.label for step in plan.steps] == LABELS
    assert plan.to_do == [] and all(step.completion and step.reason == "" for step in plan.steps)
    assert executed(plan) == []
    assert feature_progress(plan) == [{"feature": "scene", "fresh": 18, "wanted": 18}]


def test_planning_writes_no_result(place: Place) -> None:
    before = sorted(path for path in place.root.rglob("*") if "ledger" not in path.name)
    place.plan(seeding__epochs=9)
    assert sorted(path for path in place.root.rglob("*") if "ledger" not in path.name) == before


@pytest.mark.parametrize(
    ("place_in_recipe", "value", "stale", "first", "reason"),
    [
        ("seeding__epochs", 2, AFTER_SEED, "seed", "seeding.epochs 1 -> 2"),
        ("captioner__hidden", 12, AFTER_SEED, "seed", "captioner.hidden 8 -> 12"),
        ("decoding__width", 3, AFTER_SEED[1:], "caption", "search.width 2 -> 3"),
        ("decoding__max_length", 7, AFTER_SEED, "seed", "max_words 6 -> 7"),
        ("evaluation__split", "val", AFTER_SEED[1:], "caption", "split test -> val"),
        ("report__clips", 2, ["report"], "report", "shown.clips 9 -> 2"),
        ("description", "a toy", ["report"], "report", "recipe.description"),
        ("runtime__decoders", 2, [], "", ""),
        ("runtime__threads", 1, [], "", ""),
        ("tagger__training__epochs", 2, LABELS[3:], "train_tagger", "training.epochs 1 -> 2"),
        ("text__min_count", 2, ["prepare_text", *LABELS[3:]], "prepare_text", "min_count 1 -> 2"),
        ("sampling__clips__positions", 5, LABELS[2:], FRAMES, "sampling.positions 4 -> 5"),
    ],
)
def test_one_changed_value_makes_exactly_its_dependents_stale(
    place: Place, place_in_recipe: str, value: Any, stale: list[str], first: str, reason: str
) -> None:
    found = place.to_do(**{place_in_recipe: value})
    assert list(found) == stale
    if stale:
        assert reason in found[first]
        assert f"recipe.{place_in_recipe.replace('__', '.')} " in found["report"]


def test_dependents_name_what_changed_before_them(untouched: Place) -> None:
    found = untouched.to_do(seeding__epochs=2)
    assert found["caption"] == "seed changed" and found["evaluate"] == "seed, caption changed"
    found = untouched.to_do(text__min_count=2)
    assert "prepare_text (train) changed" in found["train_tagger"]
    assert "scene is made in another way" in found["extract_features"]
    assert "train_tagger changed" in found["extract_features"]
    assert found["seed"] == "extract_features (scene/train, scene/val), prepare_text (train, val) changed"


def test_carrying_out_a_change_does_exactly_what_was_predicted(place: Place) -> None:
    assert executed(place.plan(decoding__width=3)) == AFTER_SEED[1:]
    assert place.to_do(decoding__width=3) == {}
    assert place.to_do() == {}, "the earlier results are there still"


def test_a_stage_of_a_new_version_is_stale_with_both_versions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    import flows.pipeline as module

    was = module.evaluate.version
    monkeypatch.setattr(module, "evaluate", replace(module.evaluate, version=70))
    found = place.to_do()
    assert list(found) == ["evaluate", "report"] and found["evaluate"] == f"evaluate is now version 70 (was {was})"


def test_until_ends_the_plan_after_that_stage(untouched: Place) -> None:
    for n, label in enumerate(LABELS):
        assert [step.label for step in untouched.plan(until=label).steps] == LABELS[: n + 1]
        assert [step.label for step in untouched.plan(until=label.partition("[")[0]).steps] == LABELS[: n + 1]


def test_until_a_stage_of_several_steps_ends_after_the_last_that_is_used(untouched: Place) -> None:
    two = {"sampling__few": {"kind": "uniform", "frames": 2}}
    unused = untouched.plan(until="sample_frames", **two)
    assert [step.label for step in unused.steps] == LABELS[:3], "a sampling that no feature uses is not planned"
    used = two | {"features__colour": {"kind": "backbone", "net": "timm:test_resnet", "weights": "random", "sampling": "few"}}
    steps = [step.label for step in untouched.plan(until="sample_frames", **used).steps]
    assert steps == [*LABELS[:2], FRAMES, "sample_frames[few]"]
    assert [step.label for step in untouched.plan(until=FRAMES, **used).steps] == LABELS[:3]


def test_force_makes_a_stage_and_all_that_depends_on_it_again(place: Place) -> None:
    plan = place.plan(force=["seed"])
    assert {step.label: step.state for step in plan.to_do} == dict.fromkeys(AFTER_SEED, "forced")
    whys = {step.label: step.reason for step in plan.to_do}
    assert whys["seed"] == "forced by --force" and whys["evaluate"] == "seed, caption recomputed"
    assert [step.label for step in place.plan(force=["prepare_text"]).to_do] == ["prepare_text", *LABELS[3:]]
    assert [step.label for step in place.plan(force=["catalogue"]).to_do] == LABELS
    assert [step.label for step in place.plan(force=["evaluate"], until="evaluate").to_do] == ["evaluate"]
    assert executed(place.plan(force=["evaluate"])) == ["evaluate", "report"]
    assert place.to_do() == {}


@pytest.mark.parametrize("how", ["force", "until"])
def test_an_unknown_stage_lists_the_stages(untouched: Place, how: str) -> None:
    wrong: dict[str, Any] = {"until": "sed"} if how == "until" else {"force": ["sed"]}
    with pytest.raises(UsageError) as caught:
        untouched.plan(**wrong)
    assert str(caught.value).startswith("there is no stage 'sed'; stages: ")
    assert all(stage.name in str(caught.value) for stage in STAGES)


@pytest.mark.parametrize("how", ["force", "until"])
@pytest.mark.parametrize("name", ["sample_frames[nope]", "train_tagger"])
def test_a_stage_that_this_run_does_not_have_is_refused_and_not_ignored(untouched: Place, how: str, name: str) -> None:
    changes: dict[str, Any] = {
        "tagger": None,
        "features__scene": {"kind": "backbone", "net": "timm:test_resnet", "weights": "random", "sampling": "clips"},
    }
    with pytest.raises(UsageError, match=r"this run has no step .*; its steps: catalogue, prepare_text"):
        untouched.plan(**({"until": name} if how == "until" else {"force": [name]}), **changes)


def test_an_earlier_run_that_failed_does_not_hide_what_was_never_made(place: Place) -> None:
    noted(place.plan(seeding__epochs=5), state="failed")
    found = place.to_do(seeding__epochs=6)
    assert "seeding.epochs 1 -> 6" in found["seed"], "compared with what was made, not with what was wanted"


def test_another_recipe_shares_results_and_calls_its_own_missing(untouched: Place) -> None:
    plan = untouched.plan(name="other")
    assert [(step.label, step.state, step.reason) for step in plan.to_do] == [("report", "missing", "not computed yet")]
