"""The demo variants of the papers, each carried out to its report at toy size; they share the tagger that is trained once."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from flows.pipeline import plan_pipeline
from flows.recipe import Recipe, load_recipe, shipped_recipes
from storage.results import read_jsonl, read_scores
from storage.workspace import Workspace
from tests import ROOT
from tests.flows.command import command, environment_of
from tests.flows.conftest import Longtake
from tests.flows.toy_place import executed

PAGE = (ROOT / "docs" / "papers.md").read_text()
VARIANTS = sorted(name for name in shipped_recipes() if name.startswith("demo-"))
PAPERS = {
    "demo-g2l": "g2l",
    "demo-gld": "top_down",
    "demo-glrg": "glrg",
    "demo-mp-lstm": "mp_lstm",
    "demo-recnet": "recnet",
    "demo-s2vt": "s2vt",
    "demo-show-tell": "show_tell",
    "demo-top-down": "top_down",
    "demo-vre": "vre",
}
SMALL = (
    "tagger.net={words: 12, size: 32, channels: [8, 8], feature_size: 16}",
    "tagger.training.epochs=1",
    "text.min_count=1",
    "seeding.epochs=2",
    "seeding.refocus_after=1",
    "seeding.batch_size=5",
    "seeding.captions_per_video=4",
    "decoding.max_length=8",
    "evaluation={meteor: false}",
    "runtime={decoders: 0, device: cpu, threads: 1}",
)
MORE = {"demo-gld": ("boosting.epochs=1", "boosting.batch_size=5", "boosting.samples=2", "embedding.training.epochs=1")}
QUICK = "demo-glrg"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace.open(tmp_path_factory.mktemp("demos") / "workspace")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_differs_from_the_demo_where_its_paper_does(name: str) -> None:
    demo, variant = load_recipe("demo"), load_recipe(name)
    assert variant.captioner.kind == PAPERS[name]
    for section in ("dataset", "text", "tagger", "decoding", "runtime"):
        assert getattr(variant, section) == getattr(demo, section), f"{section} of {name}: results could not be shared"
    assert variant.sampling["clips"] == demo.sampling["clips"]
    assert variant.features.get("scene", demo.features["scene"]) == demo.features["scene"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in VARIANTS])
def test_a_variant_runs_to_its_scores_and_report(name: str, world: Path, shared: Workspace) -> None:
    plan = plan_pipeline(small(name, world), shared)
    first = not (shared.root / "artifacts" / "train_tagger").exists()
    worked = executed(plan)
    assert worked[-3:] == ["caption", "evaluate", "report"]
    assert ("train_tagger" in worked) == first, "the tagger is trained once for all of them"
    folders = {step.label: step.folder for step in plan.steps}
    assert len(read_jsonl(folders["caption"] / "captions.jsonl")) == 4
    assert read_scores(folders["evaluate"])["corpus"]["CIDEr"] >= 0
    curve = read_jsonl(folders["seed"] / "curves.jsonl")
    assert len(curve) == 2 and curve[0]["total"] > 0
    assert load_recipe(name).description.split()[0] in (folders["report"] / "report.html").read_text()
    assert not plan_pipeline(small(name, world), shared).to_do


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workspace and a Prefect home for commands in processes of their own."""
    return tmp_path_factory.mktemp("commanded")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", *VARIANTS])
def test_the_command_carries_a_demo_recipe_out(name: str, world: Path, commanded: Path) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    arguments = command("run", name, "--data", world, "-w", commanded / "w", *settings)
    done = subprocess.run(arguments, env=environment_of(commanded / "prefect"), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "CIDEr" in done.stdout and "Report:" in done.stdout and "Traceback" not in done.stderr


def small(name: str, data: Path) -> Recipe:
    """A shipped recipe at toy size; what it says of its captioner stays."""
    return load_recipe(name, [*SMALL, *MORE.get(name, ())], data)


def ablations() -> list[tuple[str, list[str]]]:
    """(recipe, settings) of every command in the tables of docs/papers.md."""
    found, name = [], ""
    for line in PAGE.splitlines():
        if start := re.search(r"after `longtake demo (\S+)`", line):
            name = start[1]
        for settings in re.findall(r"`(--set [^`]+)`", line):
            found.append((name, [word for word in shlex.split(settings) if word != "--set"]))
    return found


@pytest.mark.parametrize(("name", "settings"), ablations(), ids=lambda value: str(value)[:60])
def test_every_ablation_of_the_papers_page_is_a_valid_recipe(name: str, settings: list[str]) -> None:
    changed, before = load_recipe(name, settings), load_recipe(name)
    assert changed != before


def test_the_papers_page_names_only_what_is_there() -> None:
    named = re.findall(r"`((?:models|tasks)/[\w/]+\.py):([\w.]+)`((?:, `\w+`)*)", PAGE)
    assert len(named) > 40
    for path, first, more in named:
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        for name in (first, *re.findall(r"\w+", more)):
            thing: object = module
            for part in name.split("."):
                assert hasattr(thing, part), f"{path} has no {name}"
                thing = getattr(thing, part)
    for path in re.findall(r"`((?:models|tasks)/[\w/]+\.py)`", PAGE):
        assert (ROOT / path).is_file()


def test_a_vre_that_would_never_train_its_second_step_is_refused_at_once(longtake: Longtake, world: Path) -> None:
    said = longtake("run", "demo-vre", "--data", world, "--set", "seeding.epochs=3", "--dry-run")
    assert said.code == 2 and "refocus_after is 3 of 3 epochs" in said.err
