"""The command `longtake frames`: which frames of which videos the extractors see."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.cli.options import (
    DEFAULT_WORKSPACE,
    DataOption,
    JsonOption,
    KindOption,
    RecipeArgument,
    SetOption,
    WorkspaceOption,
    command_line,
    existing,
)
from flows.cli.printing import out
from storage.errors import UsageError

_SHOWN = 3  # videos, where none is named


def frames(
    recipe: RecipeArgument,
    videos: Annotated[list[str] | None, typer.Argument(help="Ids of videos; without any, a few.")] = None,
    data: DataOption = None,
    workspace: WorkspaceOption = DEFAULT_WORKSPACE,
    kind: KindOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the frame plan: the frames of each video that every sampling chose, and when they are shown."""
    from flows.cli.status import recipe_on_its_data
    from flows.pipeline import plan_pipeline
    from tasks.sample_frames import FramePlan

    space = existing(workspace)
    loaded = recipe_on_its_data(space, recipe, data, kind, settings or [])
    steps = [s for s in plan_pipeline(loaded, space).steps if s.stage.name == "sample_frames"]
    if not steps:
        raise UsageError(f"recipe '{recipe}' samples no frames: all its features are imported or heard")
    if absent := next((step for step in steps if not step.completion), None):
        command = command_line(space, "extract", recipe)
        raise UsageError(f"{absent.label} is not computed yet ({absent.reason}); '{command}' computes it")
    rows: list[dict[str, Any]] = []
    for step in steps:
        plan = FramePlan(step.folder)
        for id in videos or sorted(plan)[:_SHOWN]:
            if id not in plan:
                raise UsageError(f"there is no video '{id}' in {step.label}; it has {', '.join(sorted(plan)[:5])} ...")
            name = step.label.partition("[")[2].rstrip("]")
            chosen = {"frames": plan.frames(id).tolist(), "seconds": [round(t, 3) for t in plan.times(id).tolist()]}
            rows.append({"video": id, "sampling": name, **chosen})
    if as_json:
        out.print_json(data=rows)
        return
    for row in rows:
        out.print_line(f"[bold]{escape(row['video'])}[/]  {row['sampling']}")
        for numbers, seconds in zip(row["frames"], row["seconds"], strict=True):
            out.print(f"  {seconds:9.3f} s  {' '.join(map(str, numbers))}", highlight=False, soft_wrap=True)
