"""The pipeline, as a sentence: from a folder of videos and captions to a scored captioner and a report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flows.plan import Plan, Planner, make_plan
from flows.recipe import Recipe
from storage.errors import BadInput
from storage.records import SPLITS, ArtifactRef
from storage.workspace import Workspace
from tasks.boost import BoostOptions, boost
from tasks.caption import CaptionOptions, caption
from tasks.catalogue import catalogue
from tasks.evaluate import evaluate
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extractors import sampling_of
from tasks.find_neighbours import find_neighbours
from tasks.prepare_text import prepare_text
from tasks.report import PageOptions, report
from tasks.sample_frames import SamplingOptions, sample_frames
from tasks.seed import SeedOptions, seed
from tasks.stage import Stage
from tasks.train_embedding import train_embedding
from tasks.train_tagger import TrainTaggerOptions, train_tagger
from tasks.weigh_captions import weigh_captions

STAGES: tuple[Stage, ...] = (
    catalogue,
    prepare_text,
    weigh_captions,
    sample_frames,
    train_tagger,
    extract_features,
    find_neighbours,
    train_embedding,
    seed,
    boost,
    caption,
    evaluate,
    report,
)


def pipeline(do: Planner, recipe: Recipe) -> None:
    """Everything a recipe asks for. `do` is called once a stage; each call names exactly what the stage depends on."""
    wanted = recipe.captioner.features
    split = recipe.evaluation.split

    data = do(catalogue, recipe.dataset)
    text = do(prepare_text, recipe.text, captions=data.part("captions"))
    weighed = _weights(do, recipe, data)
    frames = {
        f"frames_{name}": do(
            sample_frames, SamplingOptions(sampling=how), f"sample_frames[{name}]", videos=data.part("videos")
        )
        for name, how in _samplings_in_use(recipe).items()
    }
    tagger = _tagger(do, recipe, data, text)
    features = do(
        extract_features,
        ExtractOptions(dataset=recipe.dataset.name, features=recipe.features, sampling=_samplings_in_use(recipe)),
        videos=data.part("videos"),
        **tagger,
        **frames,
    )
    neighbours = _neighbours(do, recipe, data, features)
    if recipe.embedding is not None:
        do(
            train_embedding,
            recipe.embedding,
            text_train=text.part("train"),
            text_val=text.part("val"),
            **_features(features, recipe.embedding.net.features, ("train", "val")),
        )
    seeded = do(
        seed,
        SeedOptions(captioner=recipe.captioner, seeding=recipe.seeding, max_words=recipe.decoding.max_length),
        text_train=text.part("train"),
        text_val=text.part("val"),
        **weighed,
        **_features(features, wanted, ("train", "val")),
    )
    boosted = _boosted(do, recipe, seeded, text, features)
    trained = boosted.get("boosted", seeded)
    captions = do(
        caption,
        CaptionOptions(split=split, search=recipe.decoding),
        captioner=trained,
        text=text.part("train"),
        videos=data.part(f"videos/{split}"),
        **_features(features, wanted, (split,)),
    )
    scores = do(
        evaluate,
        recipe.evaluation,
        captions=captions,
        text=text.part(split),
        text_train=text.part("train"),
        captioner=trained,
        **_features(features, wanted, (split,)),
    )
    do(
        report,
        PageOptions(
            shown=recipe.report, recipe=recipe.model_dump(mode="json", exclude={"runtime": True, "dataset": {"path"}})
        ),
        catalogue=data,
        text=text,
        features=features,
        seeded=seeded,
        captions=captions,
        scores=scores,
        **boosted,
        **neighbours,
        **tagger,
        **frames,
    )


def _boosted(
    do: Planner, recipe: Recipe, seeded: ArtifactRef, text: ArtifactRef, features: ArtifactRef
) -> dict[str, ArtifactRef]:
    if recipe.boosting is None:
        return {}
    options = BoostOptions(boosting=recipe.boosting, max_words=recipe.decoding.max_length)
    texts = {"text_train": text.part("train"), "text_val": text.part("val")}
    read = _features(features, recipe.captioner.features, ("train", "val"))
    return {"boosted": do(boost, options, seeded=seeded, **texts, **read)}


def _samplings_in_use(recipe: Recipe) -> dict:
    used = {sampling_of(feature) for feature in recipe.features.values()}
    return {name: how for name, how in recipe.sampling.items() if name in used}


def _weights(do: Planner, recipe: Recipe, data: ArtifactRef) -> dict[str, ArtifactRef]:
    """Caption weights that are too slow to be made with the other texts; seeding reads them only if it asks for them."""
    if not recipe.weighing.meteor:
        return {}
    weights = do(weigh_captions, recipe.weighing, captions=data.part("captions/train"))
    return {"weights": weights} if recipe.seeding.loss == "dxe" and recipe.seeding.weight == "meteor" else {}


def _tagger(do: Planner, recipe: Recipe, data: ArtifactRef, text: ArtifactRef) -> dict[str, ArtifactRef]:
    if recipe.tagger is None:
        return {}
    how = recipe.tagger
    options = TrainTaggerOptions(net=how.net, training=how.training, sampling=recipe.sampling[how.sampling])
    return {"tagger": do(train_tagger, options, videos=data.part("videos/train"), text=text.part("train"))}


def _neighbours(do: Planner, recipe: Recipe, data: ArtifactRef, features: ArtifactRef) -> dict[str, ArtifactRef]:
    if recipe.neighbours is None:
        return {}
    how = recipe.neighbours
    others = [split for split in SPLITS if split != "train" and split in how.queries]
    videos = {
        "videos": data.part("videos/train"),
        **{f"videos_{split}": data.part(f"videos/{split}") for split in others},
    }
    return {"neighbours": do(find_neighbours, how, **videos, **_features(features, (how.feature,), ("train", *others)))}


def _features(features: ArtifactRef, names: Iterable[str], splits: Iterable[str]) -> dict[str, ArtifactRef]:
    """The parts of the features that a stage reads. The first is called `features`: it tells where they are."""
    parts = [features.part(f"{name}/{split}") for name in names for split in splits]
    return {"features": parts[0], **{f"features_{n}": part for n, part in enumerate(parts[1:], 2)}}


def trained_stage(recipe: Recipe) -> str:
    """The last stage of training that a recipe has."""
    return "boost" if recipe.boosting else "seed"


def plan_pipeline(recipe: Recipe, workspace: Workspace, force: Iterable[str] = (), until: str | None = None) -> Plan:
    if recipe.dataset.path is None:
        raise BadInput(f"recipe '{recipe.name}' does not say where its data is; pass the data folder with --data")
    root = Path(recipe.dataset.path).expanduser().absolute()
    names = frozenset(stage.name for stage in STAGES)
    return make_plan(pipeline, recipe, workspace, root, frozenset(force), until, names)
