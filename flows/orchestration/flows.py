"""The Prefect flows. They take plain values, so that a deployment can be started from the dashboard.

What their docstrings say of a parameter is what the dashboard's form shows beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.demo import placed_recipe
from flows.execute import Outcome, run_plan, title_of
from flows.pipeline import STAGES, plan_pipeline, trained_stage
from flows.plan import Plan
from flows.refresh import Refreshed, find_changes, refresh
from storage.workspace import Workspace
from tasks.extraction.pretrained import fetch_weights
from tasks.framework.lost_console import outlive_console

StageName = Annotated[str, Field(json_schema_extra={"enum": [stage.name for stage in STAGES]})]
"""A stage by its name; the dashboard offers them as a list."""
Kind = Annotated[
    str | None, Field(json_schema_extra={"enum": ["folder", "msvd", "msrvtt", "activitynet", "coco", "demo", None]})
]


def _first_name() -> str:
    """A run's name until it is known what there is to do: the flow's and the recipe's, whether it is a name or a path."""
    recipe = str(flow_run.parameters.get("recipe") or "")
    return (
        f"{str(flow_run.flow_name).capitalize()} {Path(recipe).stem if len(recipe.splitlines()) == 1 else 'a recipe'}"
    )


@flow(name="pipeline", flow_run_name=_first_name, description="From videos and captions to a scored captioner.")
def pipeline_flow(
    recipe: str,
    workspace: str,
    data: str | None = None,
    kind: Kind = None,
    settings: list[str] | None = None,
    until: StageName = "report",
    force: list[str] | None = None,
) -> Outcome:
    """Carry out what a recipe lacks, up to a stage.

    Args:
        recipe: The name of a shipped recipe, the path of a YAML file, or a recipe's text.
        workspace: The project's folder; made if it is new.
        data: The folder of videos and captions. The demo draws its own.
        kind: Read the data folder as this kind instead of the recipe's.
        settings: Recipe values to change, such as seeding.epochs=5.
        until: The last stage to carry out.
        force: Stages to make again although they are done, with what depends on them.
    """
    plan = _plan(recipe, workspace, data, kind, settings, until, force)
    return run_plan(plan, title_of(plan))


@flow(name="train", flow_run_name=_first_name, description="Up to a trained captioner.")
def train_flow(
    recipe: str,
    workspace: str,
    data: str | None = None,
    kind: Kind = None,
    settings: list[str] | None = None,
) -> Outcome:
    """Carry out what a recipe lacks, up to its trained captioner.

    Args:
        recipe: The name of a shipped recipe, the path of a YAML file, or a recipe's text.
        workspace: The project's folder; made if it is new.
        data: The folder of videos and captions. The demo draws its own.
        kind: Read the data folder as this kind instead of the recipe's.
        settings: Recipe values to change, such as seeding.epochs=5.
    """
    plan = _plan(recipe, workspace, data, kind, settings, None)
    return run_plan(plan, title_of(plan, "Train"))


@flow(name="evaluate", flow_run_name=_first_name, description="Up to scores and the report.")
def evaluate_flow(
    recipe: str,
    workspace: str,
    data: str | None = None,
    kind: Kind = None,
    settings: list[str] | None = None,
    again: bool = False,
) -> Outcome:
    """Score the captioner of a recipe and write the report; what it lacks is made first.

    Args:
        recipe: The name of a shipped recipe, the path of a YAML file, or a recipe's text.
        workspace: The project's folder; made if it is new.
        data: The folder of videos and captions. The demo draws its own.
        kind: Read the data folder as this kind instead of the recipe's.
        settings: Recipe values to change, such as evaluation.split=val.
        again: Score again even if nothing changed.
    """
    plan = _plan(recipe, workspace, data, kind, settings, "report", ["evaluate"] if again else None)
    return run_plan(plan, title_of(plan, "Evaluate"))


@flow(name="refresh", flow_run_name=_first_name, description="Bring features, texts and neighbours up to date.")
def refresh_flow(
    recipe: str,
    workspace: str,
    data: str | None = None,
    kind: Kind = None,
    settings: list[str] | None = None,
    retrain_after: Annotated[int, Field(ge=1)] = 1,
) -> Refreshed:
    """Look at the data folder, extract what is new or changed, drop what is gone, and tell of it by an event.

    Args:
        recipe: The name of a shipped recipe, the path of a YAML file, or a recipe's text.
        workspace: The project's folder; made if it is new.
        data: The folder of videos and captions. The demo draws its own.
        kind: Read the data folder as this kind instead of the recipe's.
        settings: Recipe values to change, such as runtime.decoders=4.
        retrain_after: How many videos must have come, changed or gone since the last training for a new one.
    """
    outlive_console()
    space = Workspace.open(workspace)
    placed = placed_recipe(space, recipe, settings or [], data, kind)
    fetch_weights(placed.features.values())
    return refresh(find_changes(placed, space), retrain_after)


@flow(name="sweep", validate_parameters=False, description="Variants of a recipe with several seeds each.")
def sweep_flow(sweep: dict[str, Any], workspace: str, jobs: int) -> list[dict[str, Any]]:
    """Plan the sweep and carry out what is missing; what each run came to."""
    from flows.sweep.run import carry_out_sweep, sweep_from_json

    return [result.to_json() for result in carry_out_sweep(sweep_from_json(sweep), workspace, jobs)]


def _plan(
    recipe: str,
    workspace: str,
    data: str | None,
    kind: str | None,
    settings: list[str] | None,
    until: str | None,
    force: list[str] | None = None,
) -> Plan:
    """The plan from a flow's parameters; without `until`, up to the trained captioner."""
    outlive_console()
    space = Workspace.open(workspace)
    placed: Any = placed_recipe(space, recipe, settings or [], data, kind)
    fetch_weights(placed.features.values())
    return plan_pipeline(placed, space, force or [], until or trained_stage(placed))
