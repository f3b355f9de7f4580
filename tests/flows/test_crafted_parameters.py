"""What a stranger could put into a form or an event: it stays data, runs no code and names no folder of its own."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from flows.demo import placed_recipe
from flows.deployments import OFFERS, Target, deployment_of
from flows.recipe import load_recipe, recipe_text
from flows.run import title_of
from storage.errors import LongtakeError
from storage.workspace import Workspace
from tests.flows.toy_place import Place, recipe_on


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
        placed_recipe(Workspace.open(tmp_path / "w"), recipe_text(recipe_on(tmp_path)), [setting], None, None)


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
    target = Target("demo", {"workspace": str(tmp_path), "recipe": "demo"}, "demo", "demo")
    found = [trigger for name in OFFERS for trigger in deployment_of(name, target, "pool").triggers]
    assert len(found) == 2
    for trigger in found:
        trigger.set_deployment_id(uuid4())
        action = trigger.as_automation().actions[0]
        assert action.parameters == {} and not action.job_variables, "no template that an event could fill in"
