"""The pipeline definition: from a folder of videos and captions to a scored captioner and a report. Read this first."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows.for_data.data_size import recipe_for_data
from flows.for_data.dataset_name import with_dataset_name
from flows.plan import Plan, Planner, make_plan
from flows.recipe import Recipe
from flows.report import page_options
from models.captioners.vre.captioner import VreOptions
from models.zoo import CaptionerOptions
from storage.errors import BadInput, UsageError
from storage.media.frame_sampling import Sampling
from storage.records import SPLITS, ArtifactRef
from storage.workspace import Workspace
from tasks.boost import BoostOptions, boost
from tasks.caption import CaptionOptions, caption
from tasks.catalogue import catalogue
from tasks.evaluate import evaluate
from tasks.evaluation.dense_events import ANNOTATED
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
from tasks.words_from_features import PredictingOptions, predict_words, train_video_to_words

# In the order of the definition; but a captioner may be seeded before and after its key frames are found.
STAGES: tuple[Stage, ...] = (
    catalogue,
    prepare_text,
    weigh_captions,
    sample_frames,
    train_tagger,
    extract_features,
    train_video_to_words,
    predict_words,
    find_neighbours,
    train_embedding,
    find_key_frames,
    seed,
    boost,
    caption,
    evaluate,
    report,
)


def pipeline(add: Planner, recipe: Recipe) -> None:
    """Everything a recipe asks for. `add` is called once per stage; each call names exactly what the stage depends on.
    `results` are what the report reads, under the names that a run's record keeps them by."""
    split, results = recipe.evaluation.split, add.results

    data = results["catalogue"] = add(catalogue, recipe.dataset)
    recipe = add.plan.recipe = recipe_for_data(recipe, add.plan.steps[-1].prepared, add.plan.notes)
    text = _texts(add, recipe, data)
    weights = _caption_weights(add, recipe, data)
    features = _extract(add, recipe, data, text)
    neighbours = _neighbours(add, recipe, data, features)
    if recipe.captioner is None or text is None:
        return
    embedding = _embedding(add, recipe, text, features)
    extracted = features
    net, features = _train(add, recipe, recipe.captioner, text, features, weights, embedding, neighbours)
    captioners, read = results["captioners"], _feature_parts(features, net.features, split)
    captions = results["captions"] = add(
        caption,
        CaptionOptions(split=split, search=recipe.decoding),
        captioners=captioners,
        text=text.part("train"),
        videos=data.part(f"videos/{split}"),
        features=read,
    )
    results["scores"] = add(
        evaluate,
        recipe.evaluation,
        captioners=captioners,
        captions=captions,
        text=text.part(*dict.fromkeys((split, "train", *(ANNOTATED if recipe.evaluation.dense_events else ())))),
        features=read,
        videos=data.part(*(f"videos/{name}" for name in ANNOTATED)) if recipe.evaluation.dense_events else None,
        retriever=_retriever(add, recipe, text, extracted),
        retriever_features=_retriever_features(recipe, extracted),
    )
    add(report, page_options(recipe), **results)


def _texts(add: Planner, recipe: Recipe, data: ArtifactRef) -> ArtifactRef | None:
    """The texts, where anything learns from captions: features alone need none."""
    if not (recipe.captioner or recipe.tagger or recipe.words):
        return None
    text = add.results["text"] = add(prepare_text, recipe.text, captions=data.part("captions"))
    return text


def _extract(add: Planner, recipe: Recipe, data: ArtifactRef, text: ArtifactRef | None) -> ArtifactRef:
    samplings = _samplings_in_use(recipe)
    add.results["frame_plans"] = frame_plans = tuple(
        add(sample_frames, SamplingOptions(sampling=how), f"sample_frames[{name}]", videos=data.part("videos"))
        for name, how in samplings.items()
    )
    tagger = _tagger(add, recipe, data, text) if text else None
    options = ExtractOptions(dataset=recipe.dataset.name, features=recipe.features, sampling=samplings)
    features = add.results["features"] = add(
        extract_features, options, videos=data.part("videos"), tagger=tagger, frame_plans=frame_plans
    )
    return _words(add, recipe, text, features) if text else features


def _train(
    add: Planner,
    recipe: Recipe,
    net: CaptionerOptions,
    text: ArtifactRef,
    features: ArtifactRef,
    weights: ArtifactRef | None,
    embedding: tuple[ArtifactRef, ...],
    neighbours: ArtifactRef | None,
) -> tuple[CaptionerOptions, ArtifactRef]:
    """Seed, then boost where the recipe asks for it; several seeds give several captioners, an ensemble. Returns what the
    captioners are and the features that they read."""
    results, text = add.results, text.part("train", "val")
    seeds = recipe.ensemble.seeds if recipe.ensemble else (recipe.seeding.seed,)

    def seeded(number: int, label: str = "", **changes: Any) -> ArtifactRef:
        how = recipe.seeding.model_copy(update={"seed": number, **changes})
        options = SeedOptions(captioner=net, seeding=how, max_words=recipe.decoding.max_length)
        read = _feature_parts(features, net.features, "train", "val")
        return add(seed, options, label, features=read, text=text, weights=weights)

    captioners = tuple(seeded(number, f"seed[{number}]" if recipe.ensemble else "") for number in seeds)
    if recipe.key_frames is not None and isinstance(net, VreOptions):
        results["refocused"] = refocused = captioners[0]
        features = results["key_frames"] = add(
            find_key_frames, FindingOptions(), features=features, captioner=refocused, text=text.part("train")
        )
        net = net.model_copy(update={"key_frames": KEY_FRAMES})
        # Both steps from the start: there is no refocusing module that would have to wait for the first.
        changes = {"refocus_after": 0, "epochs": recipe.key_frames.epochs or recipe.seeding.epochs}
        captioners = (seeded(seeds[0], "seed[key_frames]", **changes),)
    results["seeded"] = results["captioners"] = captioners
    if recipe.boosting is not None:
        wanted = recipe.boosting.global_reward
        inputs: dict[str, Any] = {
            "features": _feature_parts(features, net.features, "train", "val"),
            "text": text,
            "embedding": embedding if wanted else (),
            "neighbours": neighbours if wanted and wanted.neighbour else None,
        }
        boosted = []
        for number, start in zip(seeds, captioners, strict=True):
            how = recipe.boosting.model_copy(update={"seed": number}) if recipe.ensemble else recipe.boosting
            options = BoostOptions(boosting=how, max_words=recipe.decoding.max_length)
            boosted.append(add(boost, options, f"boost[{number}]" if recipe.ensemble else "", seeded=start, **inputs))
        results["boosted"] = results["captioners"] = tuple(boosted)
    return net, features


def _samplings_in_use(recipe: Recipe) -> dict[str, Sampling]:
    used = {sampling_of(feature) for feature in recipe.features.values()}
    return {name: how for name, how in recipe.sampling.items() if name in used}


def _caption_weights(add: Planner, recipe: Recipe, data: ArtifactRef) -> ArtifactRef | None:
    """Caption weights too slow to be computed with the other texts; seeding reads them only if it asks for them."""
    if not recipe.caption_weights.meteor or recipe.captioner is None:
        return None
    weights = add(weigh_captions, recipe.caption_weights, captions=data.part("captions/train"))
    return weights if recipe.seeding.loss == "dxe" and recipe.seeding.weight == "meteor" else None


def _tagger(add: Planner, recipe: Recipe, data: ArtifactRef, text: ArtifactRef) -> ArtifactRef | None:
    if recipe.tagger is None:
        return None
    how = recipe.tagger
    options = TrainTaggerOptions(net=how.net, training=how.training, sampling=recipe.sampling[how.sampling])
    tagger = add(train_tagger, options, videos=data.part("videos/train"), text=text.part("train"))
    add.results["tagger"] = tagger
    return tagger


def _words(add: Planner, recipe: Recipe, text: ArtifactRef, features: ArtifactRef) -> ArtifactRef:
    """The features, and the one that is predicted from them where the recipe asks for it."""
    if recipe.words is None:
        return features
    read = _feature_parts(features, recipe.words.net.features, "train", "val")
    net = add.results["words_net"] = add(train_video_to_words, recipe.words, features=read, text=text.part("train", "val"))
    with_words = add.results["words"] = add(predict_words, PredictingOptions(), features=features, net=net)
    return with_words


def _embedding(add: Planner, recipe: Recipe, text: ArtifactRef, features: ArtifactRef) -> tuple[ArtifactRef, ...]:
    """The embedding of the global reward: none, one, or two judges."""
    how = recipe.embedding
    if how is None:
        return ()
    inputs = {"features": _feature_parts(features, how.net.features, "train", "val"), "text": text.part("train", "val")}
    if how.judges == 1:
        return (add(train_embedding, how, **inputs),)
    halves = [(half, how.model_copy(update={"half": half})) for half in (0, 1)]
    return tuple(add(train_embedding, options, f"train_embedding[{half}]", **inputs) for half, options in halves)


def _retriever(add: Planner, recipe: Recipe, text: ArtifactRef, features: ArtifactRef) -> ArtifactRef | None:
    """An embedding that no captioner was rewarded by: evaluation's own."""
    how, seed = recipe.embedding, recipe.evaluation.retriever_seed
    if how is None or seed is None:
        return None
    read = _feature_parts(features, how.net.features, "train", "val")
    training = how.training.model_copy(update={"seed": seed})
    options = how.model_copy(update={"judges": 1, "training": training})
    return add(train_embedding, options, "train_embedding[retriever]", features=read, text=text.part("train", "val"))


def _retriever_features(recipe: Recipe, features: ArtifactRef) -> ArtifactRef | None:
    if recipe.embedding is None or recipe.evaluation.retriever_seed is None:
        return None
    return _feature_parts(features, recipe.embedding.net.features, recipe.evaluation.split)


def _neighbours(add: Planner, recipe: Recipe, data: ArtifactRef, features: ArtifactRef) -> ArtifactRef | None:
    if recipe.neighbours is None:
        return None
    splits = [split for split in SPLITS if split == "train" or split in recipe.neighbours.queries]
    videos = data.part(*(f"videos/{split}" for split in splits))
    read = _feature_parts(features, (recipe.neighbours.feature,), *splits)
    neighbours = add(find_neighbours, recipe.neighbours, videos=videos, features=read)
    add.results["neighbours"] = neighbours
    return neighbours


def _feature_parts(features: ArtifactRef, names: Iterable[str], *splits: str) -> ArtifactRef:
    """The features, restricted to those of these names and splits: a stage depends on no others."""
    return features.part(*(f"{name}/{split}" for name in names for split in splits))


def trained_stage(recipe: Recipe) -> str:
    """The last stage of training that a recipe has."""
    if recipe.captioner is None:
        raise UsageError(f"recipe '{recipe.name}' has no captioner to train; add a section 'captioner', or extract features only")
    return "boost" if recipe.boosting else "seed"


def plan_pipeline(recipe: Recipe, workspace: Workspace, force: Iterable[str] = (), until: str | None = None) -> Plan:
    if recipe.dataset.path is None:
        raise BadInput(f"recipe '{recipe.name}' does not say where its data is; pass the data folder with --data")
    root = Path(recipe.dataset.path).expanduser().absolute()
    recipe = with_dataset_name(recipe, workspace)
    return make_plan(pipeline, recipe, workspace, root, frozenset(force), until, [stage.name for stage in STAGES])
