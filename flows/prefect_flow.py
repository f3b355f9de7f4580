"""The Prefect flows. They take plain values, so that a deployment can be started from the dashboard."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.run import carry_out, plan_again


@flow(
    name="longtake-pipeline", validate_parameters=False, description="From videos and captions to a scored captioner."
)
def pipeline_flow(
    recipe: dict[str, Any],
    workspace: str,
    force: list[str],
    until: str | None,
) -> list[str]:
    """Plan the recipe and carry out what is missing; the labels of the stages that did work."""
    return carry_out(plan_again(recipe, workspace, force, until))


@flow(name="longtake-sweep", validate_parameters=False, description="Variants of a recipe with several seeds each.")
def sweep_flow(sweep: dict[str, Any], workspace: str, jobs: int) -> list[dict[str, Any]]:
    """Plan the sweep and carry out what is missing; what each run came to."""
    from flows.sweep_run import carry_out_sweep, sweep_from_json

    return [result.to_json() for result in carry_out_sweep(sweep_from_json(sweep), workspace, jobs)]
