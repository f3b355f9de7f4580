"""The pipeline, as a sentence: from a folder of videos and captions to a scored captioner and a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.plan import Plan, Planner, make_plan
from flows.recipe import Recipe
from flows.report import page_options
from models.captioners.vre.captioner import VreOptions
from models.zoo import CaptionerOptions
from storage.errors import BadInput
from storage.records import SPLITS, ArtifactRef
from storage.workspace import Workspace
from tasks.boost import BoostOptions, boost
from tasks.caption import CaptionOptions, caption
from tasks.catalogue import catalogue
from tasks.evaluate import evaluate
from tasks.extract_features import ExtractOptions, extract_features
from tasks.extraction.extractors import sampling_of
from tasks.find_key_frames import KEY_FRAMES, FindingOptions, find_key_frames
from tasks.find_neighbours import find_neighbours
from tasks.framework.stage import Stage
from tasks.prepare_text import prepare_text
from tasks.report import report
from tasks.sample_frames import SamplingOptions, sample_frames
from tasks.seed import SeedOptions, seed
from tasks.train_embedding import train_embedding
from tasks.train_tagger import TrainTaggerOptions, train_tagger
from tasks.weigh_captions import weigh_captions

# In the order of the sentence; but a captioner may be seeded before and after its key frames are found.
STAGES: tuple[Stage, ...] = (
    catalogue,
    prepare_text,
    weigh_captions,
    sample_frames,
    train_tagger,
    extract_features,
    find_neighbours,
    train_embedding,
    find_key_frames,
    seed,
    boost,
    caption,
    evaluate,
    report,
)


def pipeline(do: Planner, recipe: Recipe) -> None:
    """Everything a recipe asks for. `do` is called once a stage; each call names exactly what the stage depends on."""
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
    tables = neighbours | _embedding(do, recipe, text, features)
    trained = _trained(do, recipe, text, features, weighed, tables)
    captions = do(
        caption,
        CaptionOptions(split=split, search=recipe.decoding),
        text=text.part("train"),
        videos=data.part(f"videos/{split}"),
        **trained.captioners,
        **trained.read(split),
    )
    scores = do(
        evaluate,
        recipe.evaluation,
        captions=captions,
        text=text.part(split),
        text_train=text.part("train"),
        **trained.captioners,
        **trained.read(split),
    )
    do(
        report,
        page_options(recipe),
        catalogue=data,
        text=text,
        features=features,
        captions=captions,
        scores=scores,
        **trained.stages,
        **neighbours,
        **tagger,
        **frames,
    )


@dataclass(frozen=True)
class Trained:
    """What training came to: the captioners that speak (one, or an ensemble), what they read, and every stage of theirs."""

    captioners: dict[str, ArtifactRef]
    options: CaptionerOptions
    features: ArtifactRef
    stages: dict[str, ArtifactRef]

    def read(self, *splits: str) -> dict[str, ArtifactRef]:
        return _features(self.features, self.options.features, splits)


def _trained(
    do: Planner,
    recipe: Recipe,
    text: ArtifactRef,
    features: ArtifactRef,
    weighed: dict[str, ArtifactRef],
    tables: dict[str, ArtifactRef],
) -> Trained:
    """Seeded, then boosted where the recipe asks for it. Several seeds are several captioners."""
    net, texts = recipe.captioner, {"text_train": text.part("train"), "text_val": text.part("val")}
    seeds = recipe.ensemble.seeds if recipe.ensemble else (recipe.seeding.seed,)

    def seeded(n: int, label: str = "", **changes: Any) -> ArtifactRef:
        how = recipe.seeding.model_copy(update={"seed": n, **changes})
        options = SeedOptions(captioner=net, seeding=how, max_words=recipe.decoding.max_length)
        return do(seed, options, label, **texts, **weighed, **_features(features, net.features, ("train", "val")))

    stages = _numbered("seeded", [seeded(n, f"seed[{n}]" if recipe.ensemble else "") for n in seeds])
    captioners = _numbered("captioner", stages.values())
    if recipe.key_frames is not None and isinstance(net, VreOptions):
        refocused = stages["seeded"]
        features = do(
            find_key_frames, FindingOptions(), features=features, captioner=refocused, text=text.part("train")
        )
        net = net.model_copy(update={"key_frames": KEY_FRAMES})
        # Both steps from the start: there is no refocusing module that would have to wait for the first.
        changes = {"refocus_after": 0, "epochs": recipe.key_frames.epochs or recipe.seeding.epochs}
        again = seeded(seeds[0], "seed[key_frames]", **changes)
        stages = {"refocused": refocused, "key_frames": features, "seeded": again}
        captioners = {"captioner": again}
    if recipe.boosting is not None:
        wanted = recipe.boosting.global_reward
        used = {} if wanted is None else tables if wanted.neighbour else {"embedding": tables["embedding"]}
        read = texts | used | _features(features, net.features, ("train", "val"))
        boosted = []
        for n, start in zip(seeds, list(captioners.values()), strict=True):
            how = recipe.boosting.model_copy(update={"seed": n}) if recipe.ensemble else recipe.boosting
            options = BoostOptions(boosting=how, max_words=recipe.decoding.max_length)
            boosted.append(do(boost, options, f"boost[{n}]" if recipe.ensemble else "", seeded=start, **read))
        stages |= _numbered("boosted", boosted)
        captioners = _numbered("captioner", boosted)
    return Trained(captioners, net, features, stages)


def _numbered(name: str, refs: Iterable[ArtifactRef]) -> dict[str, ArtifactRef]:
    """name, name_2, name_3, ..."""
    return {f"{name}_{n}" if n > 1 else name: ref for n, ref in enumerate(refs, 1)}


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


def _embedding(do: Planner, recipe: Recipe, text: ArtifactRef, features: ArtifactRef) -> dict[str, ArtifactRef]:
    if recipe.embedding is None:
        return {}
    texts = {"text_train": text.part("train"), "text_val": text.part("val")}
    read = _features(features, recipe.embedding.net.features, ("train", "val"))
    return {"embedding": do(train_embedding, recipe.embedding, **texts, **read)}


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
    return _numbered("features", [features.part(f"{name}/{split}") for name in names for split in splits])


def trained_stage(recipe: Recipe) -> str:
    """The last stage of training that a recipe has."""
    return "boost" if recipe.boosting else "seed"


def plan_pipeline(recipe: Recipe, workspace: Workspace, force: Iterable[str] = (), until: str | None = None) -> Plan:
    if recipe.dataset.path is None:
        raise BadInput(f"recipe '{recipe.name}' does not say where its data is; pass the data folder with --data")
    root = Path(recipe.dataset.path).expanduser().absolute()
    return make_plan(pipeline, recipe, workspace, root, frozenset(force), until, [stage.name for stage in STAGES])
