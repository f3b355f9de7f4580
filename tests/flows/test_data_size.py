"""What a recipe leaves to the data becomes a number before anything is keyed, and is said."""

from pathlib import Path

from flows.pipeline import plan_pipeline
from storage.workspace import Workspace
from tests.flows.toy_place import recipe_on


def test_small_data_gets_small_batches_under_the_key_that_the_number_has(world: Path, tmp_path: Path) -> None:
    space = Workspace.open(tmp_path / "workspace")
    stated = plan_pipeline(recipe_on(world, seeding={"epochs": 1, "batch_size": 4, "patience": 60}), space)
    left = plan_pipeline(recipe_on(world, seeding={"epochs": 1, "patience": 60}), space)
    assert left.recipe.seeding.batch_size == 4 and left.keys == stated.keys
    assert left.notes == [f"seeding.batch_size is 4, not 32, with {_training(left)} videos to train on; --set changes it"]
    assert stated.notes == []


def test_a_stated_batch_size_is_kept_however_small_the_data(world: Path, tmp_path: Path) -> None:
    plan = plan_pipeline(recipe_on(world, seeding={"batch_size": 32, "patience": 10}), Workspace.open(tmp_path / "workspace"))
    assert (plan.recipe.seeding.batch_size, plan.recipe.seeding.patience) == (32, 10) and not plan.notes


def _training(plan: object) -> int:
    snapshot = plan.steps[0].prepared  # type: ignore[attr-defined]
    return sum(video.split == "train" and bool(snapshot.captions_of.get(video.id)) for video in snapshot.dataset.videos)
