"""The demo: the recipe 'demo' or a variant of it, on a world of its own in the workspace, drawn when it is not there yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.recipe import Recipe, load_recipe
from storage.datasets.demo import DemoOptions, draw_world
from storage.errors import UsageError
from storage.files.hashing import digest
from storage.workspace import Workspace
from tasks.framework.progress import console, progress_bar


def demo_recipe(workspace: Workspace, settings: Sequence[str], draw: bool = True, name: str = "demo") -> Recipe:
    """A recipe for the demo world with its folder filled in. Another seed or size is another world beside the first."""
    recipe = load_recipe(name, settings)
    if not isinstance(recipe.dataset, DemoOptions):
        raise UsageError("'longtake demo' draws its own data; for other data use 'longtake run RECIPE --data FOLDER'")
    return _placed(workspace, recipe, recipe.dataset, draw)


def placed_recipe(
    workspace: Workspace, name: str, settings: Sequence[str], data: Path | str | None, kind: str | None
) -> Recipe:
    """A recipe with the folder of its data: the given one, or for the demo a world that is drawn if it is not there."""
    recipe = load_recipe(name, settings, data, kind)
    if isinstance(recipe.dataset, DemoOptions) and recipe.dataset.path is None:
        return _placed(workspace, recipe, recipe.dataset, True)
    return recipe


def _placed(workspace: Workspace, recipe: Recipe, world: DemoOptions, draw: bool) -> Recipe:
    if world.path is None:
        key = digest(world.model_dump(mode="json", exclude={"path", "name"}))
        world = world.model_copy(update={"path": str(workspace.root / "data" / f"demo-{key[:12]}")})
    if draw:
        _draw(world)
    return recipe.model_copy(update={"dataset": world})


def _draw(world: DemoOptions) -> None:
    total = world.train + world.val + world.test
    with progress_bar("drawing the demo world", total, "clips") as shown:
        drawn = draw_world(Path(str(world.path)), world, progress=lambda done, _total: shown.update_to(done))
    if drawn:
        console.print(f"[green]✓[/] demo world drawn: {total} clips in {world.path}", highlight=False, soft_wrap=True)
