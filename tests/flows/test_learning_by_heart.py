"""Every captioner of the zoo learns eight drawn clips by heart: its shipped demo recipe, from the video files to the scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.pipeline import plan_pipeline
from flows.recipe import load_recipe
from models.zoo import CAPTIONERS
from storage.datasets.demo import DemoOptions, draw_world
from storage.results import read_captions, read_scores
from storage.workspace import Workspace
from tests.flows.toy_place import executed

RECIPES = {
    "sa_lstm": "demo",
    "mp_lstm": "demo-mp-lstm",
    "s2vt": "demo-s2vt",
    "recnet": "demo-recnet",
    "glrg": "demo-glrg",
    "g2l": "demo-g2l",
    "vre": "demo-vre",
    "show_tell": "demo-show-tell",
    "top_down": "demo-top-down",
}
CLIPS = DemoOptions(seed=2, train=8, val=1, test=1, size=48, captions=1)
"""One caption a clip: of several different ones only one can be said, and no caption could score 5 against all."""
SETTINGS = (
    "tagger.net={words: 12, size: 32, channels: [8, 16], feature_size: 32}",
    "tagger.training={epochs: 16, batch_size: 2, learning_rate: 0.005}",
    "text.min_count=1",
    # The last epoch is the one that is kept: it is the only one that is validated.
    "seeding.epochs=40",
    "seeding.validate_every=40",
    "seeding.patience=40",
    "seeding.refocus_after=10",
    "seeding.scheduled_sampling={points: [[0, 1.0]]}",
    "seeding.batch_size=2",
    "seeding.captions_per_video=1",
    "seeding.learning_rate=0.01",
    "decoding={width: 1, max_length: 20}",
    "evaluation={split: train, meteor: false, self_retrieval: 0}",
    "runtime={decoders: 0, device: cpu, threads: 1}",
)


@pytest.fixture(scope="module")
def eight_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("eight")
    draw_world(root, CLIPS, workers=1)
    return root


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace.open(tmp_path_factory.mktemp("by-heart") / "workspace")


def test_there_is_a_recipe_of_every_captioner() -> None:
    assert list(RECIPES) == list(CAPTIONERS)
    assert {kind: load_recipe(name).captioner.kind for kind, name in RECIPES.items()} == {kind: kind for kind in RECIPES}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in ("g2l", "vre") else k for k in RECIPES])
def test_it_learns_eight_clips_by_heart(kind: str, eight_clips: Path, shared: Workspace) -> None:
    size = "captioner.base" if kind == "recnet" else "captioner"
    plain = (f"{size}.hidden=64", f"{size}.dropout=0.0")
    plan = plan_pipeline(load_recipe(RECIPES[kind], [*SETTINGS, *plain], eight_clips), shared, until="evaluate")
    executed(plan)
    folders = {step.label: step.folder for step in plan.steps}
    assert len(read_captions(folders["caption"])) == 8
    assert read_scores(folders["evaluate"])["corpus"]["CIDEr"] > 5  # of 10, which none but the references themselves get
