"""Longtake in Python: plan and run recipes, caption files, read features and scores.

    import longtake

    captioner = longtake.VideoCaptioner.open("longtake-workspace")
    print(captioner("video.mp4"))

What is here stays; everything else may change between versions."""

from importlib.metadata import version

from flows.caption import VideoCaptioner
from flows.execute import RunOutcome, cached_outcome, execute, planned_flow
from flows.orchestration.embedded_server import configure
from flows.pipeline import plan_pipeline
from flows.plan import Plan
from flows.recipe import Recipe, load_recipe
from flows.score import score_files
from storage.errors import LongtakeError
from storage.features.store import FeatureStore
from storage.runs import RunRecord, load_runs
from storage.workspace import Workspace

__version__ = version("longtake")
__all__ = [
    "FeatureStore",
    "LongtakeError",
    "Plan",
    "Recipe",
    "RunOutcome",
    "RunRecord",
    "VideoCaptioner",
    "Workspace",
    "cached_outcome",
    "execute",
    "load_recipe",
    "load_runs",
    "plan_pipeline",
    "planned_flow",
    "run",
    "score_files",
]


def run(recipe: str, data: str, workspace: str = "longtake-workspace", *settings: str, until: str | None = None) -> RunOutcome:
    """Run a recipe on a data folder, as 'longtake run' does; settings are those of --set."""
    configure()
    plan = plan_pipeline(load_recipe(recipe, settings, data), Workspace.open(workspace), until=until)
    plan.settings = settings
    return execute(planned_flow(plan, until=until)) if plan.to_do else cached_outcome(plan, quiet=True)
