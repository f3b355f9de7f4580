"""What a stranger could put into a form or an event: it stays data, runs no code and names no folder of its own."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from flows.demo import recipe_with_data
from flows.execute import title_of
from flows.orchestration.deployments import DEPLOYMENTS, DeploymentTarget, deployment_of
from flows.recipe import Recipe, load_recipe
from storage.errors import LongtakeError
from storage.workspace import Workspace
from tasks.extraction.extractors import find_source
from tests.flows.toy_place import Place, recipe_on


def recipe_text(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"))


def test_a_recipe_given_as_text_is_the_same_recipe(tmp_path: Path) -> None:
    recipe = recipe_on(tmp_path)
    assert load_recipe(recipe_text(recipe)) == recipe


@pytest.mark.parametrize(
    "text",
    [
        "name: x\nabout: !!python/object/apply:os.system ['touch {mark}']\n",
        "!!python/object/apply:subprocess.check_output\nargs: [['touch', '{mark}']]\n",
        "name: x\n<<: !!python/name:os.system\n",
    ],
)
def test_a_recipe_with_code_in_it_is_refused_and_not_run(tmp_path: Path, text: str) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(LongtakeError, match="given as text is not valid YAML"):
        load_recipe(text.replace("{mark}", str(mark)))
    assert not mark.exists()


@pytest.mark.parametrize("setting", ["name=../../outside", "dataset.name=../outside", "dataset.name=/etc", "name=a b"])
def test_a_name_that_would_become_another_folder_is_refused(tmp_path: Path, setting: str) -> None:
    with pytest.raises(LongtakeError, match="pattern"):
        recipe_with_data(Workspace.open(tmp_path / "w"), recipe_text(recipe_on(tmp_path)), [setting], None, None)


ALIASES = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{ALIASES}name: x\n", "its aliases make .e\\+08 values"),
        (f"name: x\nabout: {'[' * 3000}\n", "nested deeper than 50 levels"),
        ("name: x\nabout: &a [*a]\n", "stands for what it is a part of"),
        (f"name: x\nabout: {'x' * 2_000_000}\n", "2,000,0.. characters"),
    ],
)
def test_a_recipe_that_would_grow_beyond_all_bounds_is_refused_at_once(text: str, said: str) -> None:
    began = time.process_time()
    with pytest.raises(LongtakeError, match=said):
        load_recipe(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", ["../../outside", "/outside", "a/b", ".hidden", "a\nb", ""])
def test_no_name_in_a_recipe_leads_to_another_folder(tmp_path: Path, name: str) -> None:
    values = yaml.safe_load(recipe_text(recipe_on(tmp_path)))
    feature = values["features"]["scene"]
    crafted = [
        values | {"features": {name: feature}, "captioner": values["captioner"] | {"features": [name]}},
        values | {"sampling": values["sampling"] | {name: {"kind": "uniform"}}},
        values | {"dataset": {"kind": "folder", "captions": f"../{name}"}},
    ]
    for each in crafted:
        with pytest.raises(LongtakeError):
            load_recipe(yaml.safe_dump(each))


def test_imported_features_are_looked_for_in_their_folder_alone(place: Place) -> None:
    with pytest.raises(LongtakeError, match="cannot be the name of a folder"):
        place.plan(features__scene={"kind": "imported", "store": "../../../outside"})
    feature = recipe_on(place.data).features["scene"]
    with pytest.raises(LongtakeError, match="cannot be the name of a folder"):
        find_source(place.workspace, "toy", "../outside", feature, {}, None)


def test_a_setting_with_code_in_it_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(LongtakeError, match="not valid YAML"):
        load_recipe("demo", [f"about=!!python/object/apply:os.system ['touch {mark}']"])
    assert not mark.exists()


def test_templates_in_a_title_stay_text(place: Place) -> None:
    """Prefect fills {names} into the names of runs: none can come from a recipe or a data set."""
    assert "{" not in title_of(place.plan())
    with pytest.raises(LongtakeError):
        load_recipe(yaml.safe_dump({**yaml.safe_load(recipe_text(recipe_on(place.data))), "name": "{parameters}"}))


def test_nothing_of_an_event_reaches_a_run(tmp_path: Path) -> None:
    target = DeploymentTarget("demo", {"workspace": str(tmp_path), "recipe": "demo"}, "demo", "demo")
    found = [trigger for name in DEPLOYMENTS for trigger in deployment_of(name, target, "pool").triggers]
    assert len(found) == 2
    for trigger in found:
        trigger.set_deployment_id(uuid4())
        action = trigger.as_automation().actions[0]
        assert action.parameters == {} and not action.job_variables, "no template that an event could fill in"
