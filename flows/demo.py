"""The demo: the recipe 'demo' or a variant of it, on a world of its own in the workspace, drawn when it is not there yet."""

from collections.abc import Sequence
from pathlib import Path

from flows.recipe import Recipe, load_recipe
from storage.datasets.demo import DemoOptions, draw_world
from storage.errors import UsageError
from storage.files.hashing import digest
from storage.workspace import Workspace
from tasks.framework.progress import console, progress_bar


def check_demo(name: str, settings: Sequence[str], draw: bool) -> None:
    """Refuse a recipe that is not for the demo world; draw the world of one that says where it should be."""
    world = load_recipe(name, settings).dataset
    if not isinstance(world, DemoOptions):
        raise UsageError("'longtake demo' draws its own data; for other data use 'longtake run RECIPE --data FOLDER'")
    if draw and world.path is not None:
        _draw(world)


def recipe_with_data(
    workspace: Workspace,
    name: str,
    settings: Sequence[str],
    data: Path | str | None = None,
    kind: str | None = None,
    draw: bool = True,
) -> Recipe:
    """A recipe with the folder of its data: the given one, or for the demo a world of its own in the workspace, drawn if it
    is not there. Another seed or size is another world beside the first."""
    recipe = load_recipe(name, settings, data, kind)
    world = recipe.dataset
    if not isinstance(world, DemoOptions) or world.path is not None:
        return recipe
    key = digest({"kind": world.kind, **world.drawn()})
    world = world.model_copy(update={"path": str(workspace.root / "data" / f"demo-{key[:12]}")})
    if draw:
        _draw(world)
    return recipe.model_copy(update={"dataset": world})


def _draw(world: DemoOptions) -> None:
    total = world.train + world.val + world.test
    with progress_bar("drawing the demo world", total, "clips") as shown:
        drawn = draw_world(Path(str(world.path)), world, progress=lambda done, _total: shown.update_to(done))
    if drawn:
        console.print_line(f"[green]✓[/] demo world drawn: {total} clips in {world.path}")
