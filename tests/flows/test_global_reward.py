"""The global reward in a recipe: what it needs, who depends on its tables, and a whole run with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flows.plan import Plan
from flows.recipe import check_recipe, load_recipe
from storage.errors import UsageError
from storage.results import read_jsonl, read_scores
from tests.flows.toy_place import TOY, Place, executed

TABLES: dict[str, Any] = {
    "embedding": {"net": {"features": ["scene"], "size": 8, "embedding": 8}, "training": {"epochs": 1, "batch_size": 5}},
    "neighbours": {"feature": "scene", "k": 1},
}
BOOSTING = {"epochs": 1, "batch_size": 5, "samples": 2}


def inputs_of_boosting(plan: Plan) -> set[str]:
    step = plan.step("boost")
    assert step is not None
    return set(step.inputs)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({}, "the recipe has no 'embedding' section; add 'embedding: {net: {features: [scene]}}'"),
        ({"embedding": TABLES["embedding"]}, "add 'neighbours: {feature: scene}'"),
        (TABLES | {"neighbours": {"feature": "scene", "queries": ["test"]}}, "whose queries have train"),
    ],
)
def test_a_recipe_that_asks_for_it_without_its_tables_is_told_what_to_add(sections: dict[str, Any], said: str) -> None:
    values = load_recipe(str(TOY)).model_dump(mode="json") | sections
    with pytest.raises(UsageError) as caught:
        check_recipe(values | {"boosting": {"global_reward": {}}}, "of the test")
    assert said in str(caught.value)
    check_recipe(values | {"boosting": {}}, "of the test")


def test_only_a_boosting_with_it_depends_on_its_tables(untouched: Place) -> None:
    def plan(**boosting: Any) -> Plan:
        return untouched.plan(**TABLES, boosting=BOOSTING | boosting)

    bare = untouched.plan(boosting=BOOSTING).keys["boost"]
    assert plan().keys["boost"] == bare, "sections that it does not ask for change nothing"
    assert inputs_of_boosting(plan(global_reward={})) >= {"embedding", "neighbours"}
    only_batch = inputs_of_boosting(plan(global_reward={"neighbour": 0}))
    assert "embedding" in only_batch and "neighbours" not in only_batch


def test_a_run_with_it_ends_in_captions(place: Place) -> None:
    rewards = {"global_reward": {}, "word_rewards": {"kind": "local"}, "baseline": {"kind": "second_sample"}}
    plan = place.plan(**TABLES, boosting=BOOSTING | rewards)
    assert executed(plan) == ["find_neighbours", "train_embedding", "boost", *("caption", "evaluate", "report")]
    step = plan.step("boost")
    assert step is not None and read_jsonl(step.folder / "curves.jsonl")[1]["reward"] < 0
    assert not place.plan(**TABLES, boosting=BOOSTING | rewards).to_do


def test_two_judges_and_a_retriever_of_its_own_are_trained_apart(place: Place) -> None:
    tables = TABLES | {"embedding": TABLES["embedding"] | {"judges": 2}}
    evaluation = {"split": "test", "meteor": False, "retriever_seed": 7}
    plan = place.plan(**tables, boosting=BOOSTING | {"global_reward": {}}, evaluation=evaluation)
    labels = [step.label for step in plan.steps]
    embeddings = [label for label in labels if label.startswith("train_embedding")]
    assert embeddings == ["train_embedding[0]", "train_embedding[1]", "train_embedding[retriever]"]
    executed(plan)
    step = plan.step("boost")
    assert step is not None and len(step.inputs["embedding"]) == 2
    folders = {step.label: step.folder for step in plan.steps}
    scores = read_scores(folders["evaluate"])
    assert scores["retriever"].keys() == scores["self_retrieval"].keys() == {"R@1", "R@5", "R@10"}
    assert scores["retriever_places"].keys() == scores["retrieval_places"].keys()
    assert "retriever_intervals" not in scores, "of few videos"
    low, high = json.loads((folders["evaluate"] / "scores.json").read_text())["retriever_intervals"]["R@1"]
    assert 0 <= low <= scores["retriever"]["R@1"] <= high <= 1
    assert "Independent retriever" in (folders["report"] / "report.html").read_text()


def test_a_retriever_that_is_not_independent_is_refused() -> None:
    values = load_recipe(str(TOY)).model_dump(mode="json") | TABLES
    with pytest.raises(UsageError, match="an independent one needs another"):
        check_recipe(values | {"evaluation": {"retriever_seed": 0}}, "of the test")
