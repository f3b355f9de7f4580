"""The papers' recipes: each can be planned on data of its kind, its captioner can be built, its values are the paper's, the
papers' sweeps vary it, and it runs to its scores with small nets in the place of the large ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.cli.recipe_page import as_page, first_sentence, published
from flows.pipeline import plan_pipeline
from flows.recipe import Recipe, check_recipe, load_recipe, shipped_recipes
from flows.sweep.definition import find_sweep
from models.zoo import build_captioner
from storage.features.store import FeatureStore
from storage.results import read_scores
from storage.workspace import Workspace
from tests.flows.conftest import Longtake
from tests.flows.toy_place import executed

PAPERS = [name for name in shipped_recipes() if name.partition("-")[0] in ("glrg", "g2l", "vre", "recnet", "gld")]
SIZES = {
    "inception_v4": {"pooled": 1536},
    "resnet101": {"pooled": 2048, "grid": 2048},
    "resnet152": {"pooled": 2048, "grid": 2048},
    "timm:resnet101.tv_in1k": {"pooled": 2048, "grid14": 2048},
    "timm:resnet152.tv_in1k": {"pooled": 2048, "grid": 2048},
    "resnext101_32x8d": {"pooled": 2048, "classes": 1000},
    "r3d_18": {"pooled": 512, "classes": 400},
    "resnext101_3d": {"pooled": 2048},
    "fasterrcnn_resnet50_fpn_v2": {"regions": 1024, "boxes": 6},
    "vggish": {"embedding": 128},
}
"""of the outputs that docs/extractors.md lists"""
SPLITS = ("train", "val", "test")


def msvd(root: Path) -> None:
    for n, split in enumerate(SPLITS):
        (root / f"sents_{split}_lc_nopunc.txt").write_text(f"vid{n}\ta man runs\n")


def msrvtt(root: Path) -> None:
    videos = [{"video_id": f"video{n}", "split": split} for n, split in enumerate(("train", "validate", "test"))]
    sentences = [{"video_id": f"video{n}", "sen_id": n, "caption": "a man runs"} for n in range(3)]
    (root / "MSRVTT_data.json").write_text(json.dumps({"videos": videos, "sentences": sentences}))


def activitynet(root: Path) -> None:
    for n, name in enumerate(("train", "val_1", "val_2")):
        entry = {"duration": 9, "timestamps": [[0, 4]], "sentences": ["a man runs"]}
        (root / f"{name}.json").write_text(json.dumps({f"v_{n}": entry}))


def coco(root: Path) -> None:
    images = [
        {"filename": f"COCO_{n:012d}.jpg", "cocoid": n, "split": split, "sentences": [{"raw": "a man runs"}]}
        for n, split in enumerate(SPLITS)
    ]
    (root / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": images}))


TOYS = {"msvd": msvd, "msrvtt": msrvtt, "activitynet": activitynet, "coco": coco}


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_recipe_is_planned_on_data_of_its_kind(name: str, workspace: Workspace, tmp_path: Path) -> None:
    """Without any weights: planning wants none."""
    data = tmp_path / "data"
    data.mkdir()
    TOYS[load_recipe(name).dataset.kind](data)
    recipe = load_recipe(name, data=data)
    for feature in recipe.features.values():
        if feature.kind == "imported":
            store = FeatureStore.create(workspace.feature_store("imported", feature.store), provenance={"extractor_key": "test"})
            with store.writer() as writer:
                writer.add("vid0", "k", np.zeros((1, 4), np.float16))
    labels = [step.label for step in plan_pipeline(recipe, workspace).steps]
    assert labels[0] == "catalogue" and labels[-4:] == ["boost" if recipe.boosting else "seed", "caption", "evaluate", "report"]
    assert ("train_video_to_words" in labels) == ("predict_words" in labels) == (name in ("glrg-msvd", "glrg-msrvtt"))
    assert ("train_embedding" in labels) == ("find_neighbours" in labels) == name.startswith("gld")


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_captioner_can_be_built_on_its_features(name: str) -> None:
    recipe = load_recipe(name)
    build_captioner(recipe.captioner, sizes_of(recipe), 50)
    read = {*recipe.captioner.features, *(("pooled",) if recipe.embedding else ())}
    read |= set(recipe.words.net.features) if recipe.words else set()
    read |= {"boxes"} & set(recipe.features)  # the report draws regions with them
    assert set(recipe.features) == read - ({"words"} if recipe.words else set()), "all are used"


def sizes_of(recipe: Recipe) -> dict[str, int]:
    found = {"words": recipe.words.net.words} if recipe.words else {}
    for name, feature in recipe.features.items():
        if feature.kind == "imported":
            found[name] = {"words": 300, "actions": 400, "objects": 1000}[name]
        elif feature.kind == "backbone":
            assert feature.weights == "pretrained"
            found[name] = SIZES[feature.net.partition("@")[0]][feature.output_name]
    return found


PROVENANCE = ("# paper", "# authors", "# ours", "# any: as the authors", "# a segment has one")


@pytest.mark.parametrize("name", PAPERS)
def test_every_value_of_a_papers_recipe_says_where_it_is_from(name: str) -> None:
    """In its line or in a comment above it; names of the recipe's own features, kinds and schedules need no source."""
    lines = shipped_recipes()[name].read_text().partition("dataset:")[2].splitlines()[2:]
    own, values, unexplained, above = {*load_recipe(name).features, "words"}, 0, [], False
    for line in lines:
        text = line.strip()
        if text.startswith("#"):
            above = above or any(source in text for source in PROVENANCE)
            continue
        key, _, value = text.partition(":")
        value = value.partition("  #")[0].strip()
        if value:
            values += 1
            wiring = key in ("kind", "schedule") or set(value.strip("[]").split(", ")) <= own
            if not (above or wiring or any(source in text for source in PROVENANCE)):
                unexplained.append(text)
        above = above and not value
    assert values > 20 and not unexplained


def test_frames_clips_and_regions_of_g2l_are_at_the_same_positions() -> None:
    import numpy as np

    from storage.media.frame_sampling import choose_frames

    sampling = load_recipe("g2l-msvd").sampling
    chosen = {name: choose_frames(how, np.arange(100) / 25) for name, how in sampling.items()}
    middles = chosen["clips"][:, 4]
    assert np.array_equal(chosen["frames"][:, 0], middles) and len(middles) == 20
    assert np.array_equal(chosen["sparse"][:, 0], middles[1::3]), "the middle one of each three"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "glrg-msrvtt",
            {
                "seeding.captions_per_video": 20,
                "seeding.learning_rate": 3e-4,
                "seeding.loss": "dxe",
                "seeding.gradient_clip": 0.25,
            },
        ),
        ("glrg-msrvtt", {"boosting.samples": 20, "boosting.learning_rate": 1e-4, "boosting.baseline.kind": "b2"}),
        ("glrg-msvd", {"seeding.captions_per_video": 17, "seeding.epochs": 30, "boosting.epochs": 70, "words.net.words": 300}),
        ("glrg-msvd", {"words.training.target": "any", "captioner.feed": "every", "seeding.validation.width": 5}),
        (
            "glrg-msvd-published",
            {"captioner.fusion": "single", "captioner.word_dropout": 0.0, "decoding.length_penalty": 1.0, "words": None},
        ),
        ("g2l-msvd", {"captioner.hidden": 768, "captioner.sampler.k": 2, "seeding.weight_decay": 2e-5, "text.min_count": 2}),
        (
            "g2l-msrvtt",
            {
                "seeding.milestones": ((23, 0.01),),
                "seeding.warmup_epochs": 3,
                "captioner.aligned": 512,
                "seeding.epochs": 30,
                "decoding.width": 5,
            },
        ),
        ("vre-msvd", {"captioner.audio": None, "seeding.refocus": 0.03, "seeding.refocus_after": 5, "text.max_words": 15}),
        (
            "vre-msrvtt",
            {
                "key_frames.epochs": None,
                "captioner.audio": "sound",
                "seeding.learning_rate": 3e-4,
                "boosting.reward.rouge_l": 1.0,
            },
        ),
        ("recnet-msvd", {"captioner.base.embedding": 468, "seeding.optimiser": "adadelta", "seeding.patience": 20}),
        ("recnet-msvd", {"captioner.base.attend_to": "raw", "text.min_count": 1, "features.frames.net": "inception_v4@299"}),
        (
            "recnet-msrvtt",
            {
                "seeding.reconstruction_after": "best",
                "boosting.learning_rate": 1e-5,
                "boosting.baseline.kind": "scst",
                "sampling.frames.frames": 28,
            },
        ),
        ("recnet-activitynet", {"dataset.val_2": "test", "evaluation.split": "test", "text.max_words": 30}),
        ("gld-coco-st", {"seeding.learning_rate": 5e-4, "seeding.batch_size": 16, "seeding.epochs": 20, "decoding.width": 3}),
        (
            "gld-coco-tda",
            {
                "boosting.global_reward.margin": 0.2,
                "boosting.decay": 0.8,
                "boosting.word_rewards.phrase_threshold": 5.0,
                "boosting.baseline.kind": "second_sample",
            },
        ),
        ("gld-coco-tda", {"embedding.net.margin": 0.2, "embedding.net.size": 1024, "neighbours.metric": "euclidean"}),
    ],
)
def test_the_values_are_the_papers(name: str, values: dict[str, Any]) -> None:
    for place, value in values.items():
        found: Any = load_recipe(name).model_dump()
        for step in place.split("."):
            found = found[step]
        assert found == value, f"{place} of {name}"


@pytest.mark.parametrize(
    ("sweep", "name"),
    [
        *((f"glrg-table{n}", f"glrg-{data}") for n in (2, 3, 4, 5) for data in ("msvd", "msrvtt", "msvd-published")),
        *((sweep, f"{sweep.partition('-')[0]}-{data}") for sweep in ("g2l-table1", "vre-table1") for data in ("msvd", "msrvtt")),
        *((f"recnet-table{n}", f"recnet-{data}") for n in (1, 3, 4, 6, 7) for data in ("msvd", "msrvtt")),
        ("recnet-fig6", "recnet-msrvtt"),
        ("recnet-table5", "recnet-activitynet"),
        ("gld-table2", "gld-coco-tda"),
        ("gld-table4", "gld-coco-tda"),
        ("gld-batch", "gld-coco-tda"),
        ("g2l-fig6", "g2l-msrvtt"),
        ("gld-st", "gld-coco-st"),
        ("gld-tda", "gld-coco-tda"),
    ],
)
def test_a_papers_sweep_varies_its_recipe_too(sweep: str, name: str) -> None:
    found = find_sweep(sweep, recipe=name)
    recipes = [load_recipe(name, [*found.settings, *variant.settings]) for variant in found.variants]
    assert len({recipe.model_dump_json() for recipe in recipes}) == len(recipes)
    partial = name.startswith(("glrg", "recnet")) or sweep in ("gld-table4", "gld-batch", "g2l-fig6")
    assert any(recipe == load_recipe(name) for recipe in recipes) or partial, "the paper's own"


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_shown_recipe_loads_to_the_same_recipe(name: str) -> None:
    recipe = load_recipe(name)
    page = as_page(recipe)
    assert check_recipe(yaml.safe_load(page), "shown") == recipe
    lines = page.splitlines()
    for n, line in enumerate(lines):
        value = line.strip()
        if not value.startswith("#") and not value.endswith(":"):
            assert lines[n - 1].strip().startswith("# "), f"{value} is not explained"


def test_names_that_yaml_would_misread_are_quoted() -> None:
    recipe = load_recipe("demo", ["features.on={kind: tagger, sampling: clips}", "description='# yes: [no'"])
    assert check_recipe(yaml.safe_load(as_page(recipe)), "shown") == recipe


def test_recipe_show_takes_settings_and_gives_json(longtake: Longtake) -> None:
    shown = longtake("recipe", "show", "demo", "--set", "seeding.epochs=77")
    assert shown.code == 0 and "# Passes over the training captions (or videos, see `epoch_over`).\n  epochs: 77\n" in shown.out
    assert longtake("recipe", "show", "demo", "--set", "seeding.epochs=77", "--json").json["seeding"]["epochs"] == 77
    assert longtake("recipe", "show", "dmo").code == 2


def test_recipes_are_listed_with_what_their_paper_reports(longtake: Longtake) -> None:
    listed = {row["name"]: row for row in longtake("recipes", "--json").json}
    assert listed["glrg-msvd"]["published"][-1] == {
        "name": "GL-RG, DXE + DR",
        "scores": {"CIDEr": 101.0, "BLEU-4": 60.5, "METEOR": 38.9, "ROUGE-L": 76.4},
    }
    assert listed["gld-coco-st"]["published"][-1]["scores"]["CIDEr"] == 107.7
    assert [row["name"] for row in listed["recnet-msrvtt"]["published"]] == ["RecNet, local", "RecNet, global + local, RL"]
    assert listed["demo-glrg"]["published"] == [] and listed["msvd-vgg16"]["published"] == []
    shown = " ".join(longtake("recipes").out.split())
    assert all(name in shown for name in shipped_recipes()) and "48.3" in shown
    assert published(load_recipe("demo")) == [] and first_sentence("One. Two.") == "One." and first_sentence("One") == "One"


SMALL = (
    "words={net: {features: [frames, clips], words: 12, hidden: 8}, training: {epochs: 1, batch_size: 5}}",
    "text.min_count=1",
    "seeding.epochs=2",
    "seeding.refocus_after=1",
    "seeding.reconstruction_after=1",
    "seeding.batch_size=5",
    "seeding.captions_per_video=4",
    "boosting.epochs=1",
    "boosting.batch_size=5",
    "boosting.samples=2",
    "decoding={width: 2, max_length: 8}",
    "evaluation={meteor: false}",
    "runtime={decoders: 0, device: cpu, threads: 1}",
)
FRAMES = {"inception_v4", "resnet101", "resnet152", "resnext101_32x8d", "r3d_18", "resnext101_3d"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glrg-msvd", "g2l-msvd", "vre-msvd", "recnet-msvd", "gld-coco-st", "gld-coco-tda"])
def test_a_papers_recipe_runs_to_its_scores_with_small_nets(name: str, world: Path, workspace: Workspace) -> None:
    """A net of a few thousand random weights in the place of each published one, its outputs and shapes as they are."""
    settings = [s for s in SMALL if not s.startswith("words") or name.startswith("glrg")]
    for feature, how in load_recipe(name).features.items():
        if how.kind == "backbone":
            settings += [f"features.{feature}.net='timm:test_resnet'", f"features.{feature}.weights=random"]
            settings += [f"features.{feature}.output=grid"] if how.output_name == "regions" else []
            if how.sampling in ("near", "clips"):  # a net that sees single frames
                settings.append(f"sampling.{how.sampling}.length=1")
    if name.startswith("gld"):
        settings.append("embedding.training={epochs: 1, batch_size: 5}")
    recipe = load_recipe(name, settings, world, "folder")
    plan = plan_pipeline(recipe, workspace)
    assert executed(plan)[-1] == "report"
    evaluation = plan.step("evaluate")
    assert evaluation and read_scores(evaluation.folder)["corpus"]["CIDEr"] >= 0
