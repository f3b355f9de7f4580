"""Recipes: every choice of a pipeline in one file. A recipe only composes the options of the stages.

Loaded from YAML, checked at once, changed by `--set a.b=c`. An unknown key or kind is an error that lists the valid ones."""

import copy
import difflib
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from flows.yaml_text import read_yaml
from models.captioners.vre.captioner import VreOptions
from models.decoding.beam_search import SearchOptions
from models.range_tagger import AnyTaggerOptions
from models.tagger import TaggerOptions
from models.zoo import CaptionerOptions
from storage.datasets import DatasetOptions
from storage.errors import UsageError
from storage.media.frame_sampling import Clips, Keyframes, Sampling, Uniform
from storage.options import Options
from storage.runs import RunRecord
from storage.text.vocabulary import TextOptions
from tasks.boost import BoostingOptions
from tasks.evaluate import EvaluationOptions
from tasks.extraction.extractors import BackboneFeature, FeatureOptions, TaggerFeature, sampling_of
from tasks.find_key_frames import KEY_FRAMES, KeyFrameOptions
from tasks.find_neighbours import NeighbourOptions
from tasks.framework.runtime import Runtime
from tasks.report import ReportOptions
from tasks.seed import SeedingOptions
from tasks.train_embedding import EmbeddingOptions
from tasks.train_tagger import TaggerTraining
from tasks.weigh_captions import WeighingOptions
from tasks.words_from_features import WORDS, WordsOptions

SHIPPED = Path(__file__).parent / "recipes"

_TRAININGS = ("seeding", "boosting", "tagger.training", "embedding.training")
RENAMED = {
    "about": "description",
    "weighing": "caption_weights",
    "seeding.sampling": "scheduled_sampling",
    **{f"{section}.videos": "batch_size" for section in _TRAININGS},
    **{f"{section}.captions": "captions_per_video" for section in _TRAININGS},
    **{f"{section}.clip": "gradient_clip" for section in _TRAININGS},
    **{f"{section}.average": "ema_decay" for section in _TRAININGS},
    "report.twins": "near_duplicates",
    "runtime.slots": "concurrency_limit",
}
"""keys of recipes that had another name (0.1): where they stand -> what they are called now"""
REMOVED = {
    "features.*.compiled": "OpenVINO runs nets on CPUs without being asked; for bfloat16 say 'precision: bfloat16'",
    "runtime.compile_training": "it made no step faster",
}
"""keys of recipes that are no more: where they stood -> why they went"""

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A name that may become a part of a folder's."""


class TaggerSection(Options):
    """The word tagger: its net, its training, and the frames it sees."""

    sampling: str = "frames"
    """which of the recipe's samplings chooses its frames"""
    net: AnyTaggerOptions = TaggerOptions()
    """the net"""
    training: TaggerTraining = TaggerTraining()
    """how it is trained"""


class EnsembleOptions(Options):
    """The recipe's captioner trained several times; captions come from the mean of their probabilities (GLD, Table II)."""

    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=2)
    """the seed of each training, in place of seeding.seed and boosting.seed"""

    @field_validator("seeds")
    @classmethod
    def _all_different(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"the same seed gives the same captioner: name each of {list(seeds)} once")
        return seeds


def _uniform_frames() -> dict[str, Sampling]:
    return {"frames": Uniform()}


class Recipe(Options):
    """Everything that decides what a run computes."""

    name: PlainName
    """short name; also the name of its runs"""
    description: str = ""
    """one or two sentences for people"""
    dataset: DatasetOptions
    """where videos and captions come from"""
    sampling: dict[PlainName, Sampling] = Field(default_factory=_uniform_frames)
    """named ways of choosing frames"""
    features: dict[PlainName, FeatureOptions]
    """named features, each with the sampling it uses"""
    caption_weights: WeighingOptions = WeighingOptions()
    """which slow weights the training captions get"""
    text: TextOptions = TextOptions()
    """how captions become numbers"""
    tagger: TaggerSection | None = None
    """the word tagger, where features of kind 'tagger' are wanted"""
    words: WordsOptions | None = None
    """the feature 'words' (GL-RG's W), predicted from other features, where it is wanted"""
    captioner: CaptionerOptions | None = None
    """the model that writes captions; left out: features are extracted and nothing is trained"""
    neighbours: NeighbourOptions | None = None
    """by which feature videos are alike, where the report or a reward wants to know"""
    embedding: EmbeddingOptions | None = None
    """the common space of videos and captions (VSE++), where the global reward is wanted"""
    seeding: SeedingOptions = SeedingOptions()
    """training by cross-entropy"""
    key_frames: KeyFrameOptions | None = None
    """VRE's third phase, where it is wanted: seeding once more with the key frames that the seeded captioner found"""
    boosting: BoostingOptions | None = None
    """training by rewards after it, where it is wanted"""
    ensemble: EnsembleOptions | None = None
    """several captioners that speak as one, where they are wanted"""
    decoding: SearchOptions = SearchOptions()
    """how captions are looked for after training"""
    evaluation: EvaluationOptions = EvaluationOptions()
    """what is scored"""
    report: ReportOptions = ReportOptions()
    """what the report shows"""
    runtime: Runtime = Runtime()
    """how the machine is used; never changes a result's key"""

    @property
    def wanted_nets(self) -> list[FeatureOptions]:
        """The features, and the nets below the tagger, whose weights a run needs."""
        return [*self.features.values(), *_tagger_nets(self.tagger)]

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        wanted = [("captioner", name) for name in (self.captioner.features if self.captioner else ())]
        wanted += [("embedding.net", name) for name in (self.embedding.net.features if self.embedding else ())]
        known = [*self.features, *([WORDS] if self.words else [])]
        if self.words is not None:
            wanted += [("words.net", name) for name in self.words.net.features if name != WORDS]
            if WORDS in self.features or WORDS in self.words.net.features:
                raise ValueError(f"the name '{WORDS}' is taken by the feature that the section 'words' adds; choose another")
        for section, name in wanted:
            if name not in known:
                raise ValueError(f"{section}.features names '{name}'; the recipe's features are {', '.join(known)}")
        for name, feature in self.features.items():
            sampling = sampling_of(feature)
            if sampling is not None and sampling not in self.sampling:
                raise ValueError(
                    f"features.{name}.sampling is '{sampling}'; the recipe's samplings are {', '.join(self.sampling)}"
                )
            if isinstance(feature, TaggerFeature) and feature.weights == "trained" and self.tagger is None:
                raise ValueError(
                    f"features.{name} is of kind 'tagger', but the recipe has no 'tagger' section; add 'tagger: {{}}'"
                )
        if self.neighbours is not None and self.neighbours.feature not in self.features:
            raise ValueError(
                f"neighbours.feature is '{self.neighbours.feature}'; the recipe's features are {', '.join(self.features)}"
            )
        if self.seeding.loss == "dxe" and self.seeding.weight == "meteor" and not self.caption_weights.meteor:
            raise ValueError("seeding.weight is 'meteor', which is not computed; add 'caption_weights: {meteor: true}'")
        if self.tagger is not None:
            chosen = self.sampling.get(self.tagger.sampling)
            net = self.tagger.net
            if not isinstance(net, TaggerOptions):
                if not isinstance(chosen, Keyframes):
                    raise ValueError(
                        f"tagger.sampling '{self.tagger.sampling}' must be a sampling of kind 'keyframes': a tagger of kind "
                        f"'{net.kind}' sees keyframes with their neighbours"
                    )
            elif not isinstance(chosen, Clips) or chosen.length != net.frames:
                raise ValueError(
                    f"tagger.sampling '{self.tagger.sampling}' must be a sampling of kind 'clips' with length "
                    f"{net.frames} (tagger.net.frames): the tagger compares neighbouring frames"
                )
        return self

    @model_validator(mode="after")
    def _key_frames_can_be_found(self) -> Self:
        if self.key_frames is None:
            return self
        net = self.captioner
        if not isinstance(net, VreOptions) or net.steps != 2 or net.key_frames is not None:
            raise ValueError(
                "key_frames is for a captioner of kind 'vre' with two steps that looks for its key frames itself; leave the "
                "section out"
            )
        if KEY_FRAMES in self.features:
            raise ValueError(f"features.{KEY_FRAMES}: the name is taken by the key frames that are found; choose another")
        if self.ensemble is not None:
            raise ValueError(
                "an ensemble reads the same features, but with key_frames each captioner has its own; leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _the_retriever_can_be_trained(self) -> Self:
        if self.evaluation.retriever_seed is None:
            return self
        if self.embedding is None:
            raise ValueError("evaluation.retriever_seed trains an embedding: add an 'embedding' section that says which")
        if self.evaluation.retriever_seed == self.embedding.training.seed:
            raise ValueError("evaluation.retriever_seed is the seed of the reward's embedding: an independent one needs another")
        return self

    @model_validator(mode="after")
    def _the_global_reward_has_its_tables(self) -> Self:
        wanted = self.boosting.global_reward if self.boosting else None
        if wanted is None:
            return self
        if self.embedding is None:
            raise ValueError(
                "boosting.global_reward compares captions by an embedding, but the recipe has no 'embedding' section; add "
                f"'embedding: {{net: {{features: [{next(iter(self.features))}]}}}}'"
            )
        if wanted.neighbour and (self.neighbours is None or "train" not in self.neighbours.queries):
            raise ValueError(
                "boosting.global_reward compares with each training video's nearest neighbour; add 'neighbours: "
                f"{{feature: {next(iter(self.features))}}}', whose queries have train, or set "
                "boosting.global_reward.neighbour to 0"
            )
        return self


def _tagger_nets(tagger: TaggerSection | None) -> list[FeatureOptions]:
    """The pretrained nets below a tagger, as features: their weights are fetched like those of others."""
    if tagger is None or isinstance(tagger.net, TaggerOptions):
        return []
    return [BackboneFeature(net=net, weights=tagger.net.weights) for net in tagger.net.nets]


def shipped_recipes() -> dict[str, Path]:
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"), key=lambda path: path.stem)}


def load_recipe(name: str, settings: Sequence[str] = (), data: Path | str | None = None, kind: str | None = None) -> Recipe:
    """A shipped recipe by name, any YAML file by path, or the YAML itself, with `a.b=c` settings applied, its data folder
    set by `data` and, with `kind`, its data set read as another kind."""
    path = None if "\n" in name else _find(name)
    where = str(path) if path else "given as text"
    try:
        values = read_yaml(path.read_text(encoding="utf-8") if path else name)
    except OSError as error:
        raise UsageError(f"cannot read the recipe {where}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe {where} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"the recipe {where} must be a mapping of sections (dataset, features, captioner, ...)")
    if path:
        values.setdefault("name", path.stem)
    if "captioner" not in values and "features" in values:  # features alone need no captions
        values.setdefault("dataset", {"kind": "videos"})
    if kind is not None:
        values["dataset"] = {"kind": kind}
    for setting in settings:
        _apply(values, setting)
    if data is not None and isinstance(values.get("dataset"), dict):
        values["dataset"]["path"] = str(data)
    return check_recipe(values, where, settings)


def recorded_recipe(run: RunRecord) -> Recipe:
    """The recipe of a run as its record has it, with keys that have got another name since under their new names, and without
    those that are no more."""
    values = copy.deepcopy(run.recipe)
    for old in (*RENAMED, *REMOVED):
        *sections, key = old.split(".")
        found: Any = values
        for section in sections:
            found = found.get(section) or {}
        if key in found:
            value = found.pop(key)
            if old in RENAMED:
                found[RENAMED[old]] = value
    for feature in values.get("features", {}).values():
        if feature.pop("compiled", "no") == "bfloat16":
            feature["precision"] = "bfloat16"
    return check_recipe(values, f"of run {run.id}")


def check_recipe(values: dict[str, Any], where: str, settings: Sequence[str] = ()) -> Recipe:
    """`settings` are those that were applied: what is wrong with one is said of it, not of the recipe."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        found = [(_blamed(detail, settings), _explain(detail)) for detail in error.errors()]
        own = [f"  {message}" for setting, message in found if setting is None]
        head = [f"the recipe {where} has {len(own)} problem(s):"] if own else []
        raise UsageError("\n".join([*(f"--set {s}: {message}" for s, message in found if s is not None), *head, *own])) from error


def _blamed(detail: ErrorDetails, settings: Sequence[str]) -> str | None:
    """The last setting of the value that is wrong, of a part of it, or that the message begins with."""
    key, message = f"{_at(detail['loc'])[0]}.", _explain(detail)
    for setting in reversed(settings):
        own = f"{setting.partition('=')[0].strip()}."
        if key.startswith(own) or (key != "." and own.startswith(key)) or f"{message.split()[0].rstrip(':')}.".startswith(own):
            # an address may carry a login, which must not be repeated
            return setting if "://" not in setting else own.removesuffix(".")
    return None


def _find(name: str) -> Path:
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if path.is_file():
            return path
        raise UsageError(f"there is no recipe file {path}; give a path to a YAML file or one of {', '.join(shipped)}")
    close = difflib.get_close_matches(name, shipped, 1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise UsageError(f"there is no recipe '{name}'; {hint}shipped recipes: {', '.join(shipped)}; or give a YAML file")


def _apply(values: dict[str, Any], setting: str) -> None:
    """Apply one `a.b=c`; the value is YAML, so 3, 0.5, true, null and [a, b] mean what they look like."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {setting!r} is not of the form key.subkey=value, such as seeding.epochs=5")
    try:
        value = read_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {setting!r}: the value is not valid YAML: {error}") from error
    *parents, last = key.strip().split(".")
    section = values
    for parent in parents:
        below = section.setdefault(parent, {})
        if below is None:
            below = section[parent] = {}
        if not isinstance(below, dict):
            raise UsageError(f"--set {setting!r}: '{parent}' is a value, not a section")
        section = below
    section[last] = value


_NO_SECTION = ("model_type", "model_attributes_type", "dict_type")


def _explain(detail: ErrorDetails) -> str:
    """One validation error as a sentence with the valid choices."""
    key, node = _at(detail["loc"])
    kind, given = detail["type"], f"(given: {detail['input']!r:.200})"
    if kind == "extra_forbidden" and key in RENAMED:
        return f"{key}: is now called '{RENAMED[key]}'; rename it"
    if kind == "extra_forbidden" and (why := [why for old, why in REMOVED.items() if fnmatch(key, old)]):
        return f"{key}: there is no such key any more, since {why[0]}; take it out"
    if kind == "extra_forbidden":
        fields = sorted(_at(detail["loc"][:-1])[1].get("properties", {}))
        close = difflib.get_close_matches(str(detail["loc"][-1]), fields, 1)
        deeper = [f"{section}.{key}" for section in fields if key in _at((section,))[1].get("properties", {})]
        meant = " or ".join(f"'{name}'" for name in (close or deeper))
        hint = f"did you mean {meant}? " if meant else ""
        return f"{key}: there is no such key; {hint}valid keys here: {', '.join(fields)}"
    if kind == "union_tag_invalid":
        context = detail.get("ctx", {})
        return f"{key}.kind: there is no kind '{context.get('tag')}'; valid kinds: {context.get('expected_tags')}"
    if kind == "union_tag_not_found":
        kinds = ", ".join(f"'{name}'" for name in node.get("discriminator", {}).get("mapping", {}))
        return f"{key}: say which kind, as in 'kind: ...'; valid kinds: {kinds}"
    if kind == "missing":
        return f"{key}: is missing"
    if kind in _NO_SECTION:
        return f"{key}: must be a section with keys of its own {given}"
    if kind == "value_error":
        return f"{key + ': ' if key else ''}{detail['msg'].removeprefix('Value error, ')}"
    return f"{key}: {detail['msg'][:1].lower()}{detail['msg'][1:]} {given}"


def _at(loc: tuple[int | str, ...]) -> tuple[str, dict[str, Any]]:
    """A key as a recipe's author writes it, and its part of the JSON schema. A section's kind appears in `loc` as a
    step of its own, which nobody wrote."""
    schema = Recipe.model_json_schema()
    node: dict[str, Any] = schema
    steps = []
    for step in map(str, loc):
        if step not in _resolve(schema, node).get("discriminator", {}).get("mapping", {}):
            steps.append(step)
        node = _below(schema, node, step)
    return ".".join(steps), _resolve(schema, node)


def _below(schema: dict[str, Any], node: dict[str, Any], step: str) -> dict[str, Any]:
    node = _resolve(schema, node)
    if step in node.get("discriminator", {}).get("mapping", {}):
        return {"$ref": node["discriminator"]["mapping"][step]}
    if step in node.get("properties", {}):
        return node["properties"][step]
    for named in (node.get("additionalProperties"), *node.get("patternProperties", {}).values()):
        if isinstance(named, dict):
            return named
    return {}


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """The node itself: what a reference points to, what an optional value is when it is there."""
    while "$ref" in node or "anyOf" in node:
        if "anyOf" in node:
            node = next(choice for choice in node["anyOf"] if choice.get("type") != "null")
        else:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return node
