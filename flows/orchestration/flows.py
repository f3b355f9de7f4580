"""The Prefect flows that deployments start. They take plain values, so that the dashboard can show a form for them; what
their docstrings and `RunParameters` say of a parameter is shown beside it."""

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import Field

from flows.caption import VideoCaptioner
from flows.cli.caption_lines import lines_of, shown_problems
from flows.demo import recipe_with_data
from flows.execute import final_state, run_plan, title_of
from flows.pipeline import STAGES, plan_pipeline, trained_stage
from flows.plan import Plan
from flows.recipe import Recipe
from flows.refresh import Refreshed, find_changes, refresh
from storage.datasets import READERS
from storage.media.shots import ShotOptions
from storage.options import Options
from storage.text.caption_writers import as_row
from storage.workspace import Workspace
from tasks.extraction.pretrained import fetch_weights
from tasks.framework.broken_pipe import survive_broken_pipe
from tasks.framework.prefect_task import run_as_task
from tasks.inference.user_files import WindowOptions

StageName = Annotated[str, Field(json_schema_extra={"enum": [stage.name for stage in STAGES]})]
"""A stage by its name; the dashboard offers them as a list."""


class RunParameters(Options):
    """What a run is about: a recipe, a workspace and the data."""

    recipe: Annotated[str, Field(description="The name of a shipped recipe, the path of a YAML file, or a recipe's text.")]
    workspace: Annotated[str, Field(description="The project's folder; created if it is new.")]
    data: Annotated[str | None, Field(description="The folder of videos and captions. The demo draws its own.")] = None
    kind: Annotated[
        str | None,
        Field(
            description="Read the data folder as this kind instead of the recipe's.", json_schema_extra={"enum": [*READERS, None]}
        ),
    ] = None
    settings: Annotated[list[str] | None, Field(description="Recipe values to change, such as seeding.epochs=5.")] = None

    def load(self) -> tuple[Recipe, Workspace]:
        """The recipe with its data in place and its weights fetched, and the workspace."""
        survive_broken_pipe()
        workspace = Workspace.open(self.workspace)
        recipe = recipe_with_data(workspace, self.recipe, self.settings or [], self.data, self.kind)
        fetch_weights(recipe.wanted_nets)
        return recipe, workspace

    def plan(self, until: str | None, force: list[str] | None = None) -> Plan:
        """Without `until`, up to the trained captioner."""
        recipe, workspace = self.load()
        plan = plan_pipeline(recipe, workspace, force or [], until or trained_stage(recipe))
        plan.settings = self.settings or []
        return plan


def _first_name() -> str:
    """A run's name until it is known what there is to do: the flow's and the recipe's, whether it is a name or a path."""
    asked: Any = flow_run.parameters.get("run")
    recipe = str(asked["recipe"] if isinstance(asked, dict) else getattr(asked, "recipe", ""))
    named = Path(recipe).stem if len(recipe.splitlines()) == 1 else "a recipe"
    return f"{str(flow_run.flow_name).capitalize()} {named}"


@flow(name="pipeline", flow_run_name=_first_name, description="From videos and captions to a scored captioner.")
def pipeline_flow(run: RunParameters, until: StageName = "report", force: list[str] | None = None) -> Any:
    """Run what a recipe lacks, up to a stage.

    Args:
        run: What the run is about.
        until: The last stage to run.
        force: Stages to recompute although they are done, with what depends on them.
    """
    plan = run.plan(until, force)
    return final_state(run_plan(plan, title_of(plan)))


@flow(name="train", flow_run_name=_first_name, description="Up to a trained captioner.")
def train_flow(run: RunParameters) -> Any:
    """Run what a recipe lacks, up to its trained captioner.

    Args:
        run: What the run is about.
    """
    plan = run.plan(None)
    return final_state(run_plan(plan, title_of(plan, "Train")))


@flow(name="evaluate", flow_run_name=_first_name, description="Up to scores and the report.")
def evaluate_flow(run: RunParameters, again: bool = False) -> Any:
    """Score the captioner of a recipe and write the report; what it lacks is computed first.

    Args:
        run: What the run is about.
        again: Score again even if nothing changed.
    """
    plan = run.plan("report", ["evaluate"] if again else None)
    return final_state(run_plan(plan, title_of(plan, "Evaluate")))


@flow(name="refresh", flow_run_name=_first_name, description="Bring features, texts and neighbours up to date.")
def refresh_flow(run: RunParameters, retrain_after: Annotated[int, Field(ge=1)] = 1) -> Refreshed:
    """Scan the data folder, extract what is new or changed, drop what is gone, and announce it by an event.

    Args:
        run: What the run is about.
        retrain_after: How many videos must have come, changed or gone since the last training for a new one.
    """
    return refresh(find_changes(*run.load()), retrain_after)


@flow(name="caption", description="Captions for videos and images, by a run that is trained.")
def caption_flow(
    files: list[str], workspace: str, run: str | None = None, n_best: int = 1, windows: float | None = None, shots: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Caption files, folders and patterns as the worker sees them; returns captions and problems.

    Args:
        files: Paths of files and folders, and patterns.
        workspace: The project's folder.
        run: A run's id or its recipe's name; the newest finished run without it.
        n_best: Captions per clip, best first.
        windows: Cut videos into windows of so many seconds.
        shots: Cut videos at their shot changes.
    """
    survive_broken_pipe()
    cut = WindowOptions(seconds=windows) if windows else ShotOptions() if shots else None
    found = VideoCaptioner.open(workspace, run, execute=lambda step: run_as_task(step, step.label)[1]).caption(files, cut, n_best)
    problems = [{"file": p.item, "kind": p.kind, "reason": p.reason} for p in shown_problems(found.problems)]
    return {"captions": [as_row(line) for line in lines_of(found, n_best)], "problems": problems}
