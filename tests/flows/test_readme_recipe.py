"""The README's recipe for extraction is a recipe as it stands."""

import re
from pathlib import Path

from flows.pipeline import plan_pipeline
from flows.recipe import load_recipe
from storage.workspace import Workspace
from tests import ROOT


def test_the_readmes_extraction_needs_neither_captioner_nor_captions(tmp_path: Path, world: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "my-recipe.yaml").write_text(block)
    recipe = load_recipe(str(tmp_path / "my-recipe.yaml"), (), world)
    plan = plan_pipeline(recipe, Workspace.open(tmp_path / "workspace"))
    labels = [step.label for step in plan.steps]
    assert labels == ["catalogue", "sample_frames[frames]", "sample_frames[clips]", "extract_features"]
