"""The kinds of features a recipe can name, and where each comes from: its key and its store, without loading a net.

tagger     the small net that learnt "video to words" on the training split (no download)
backbone   a published net by the name that people know it by: 2D, 3D, regions or sound
imported   features that the user brought with 'longtake features import'"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from models.backbones import hf_folder
from models.backbones.zoo import LISTENING, WEIGHTLESS, canonical, module_of
from storage.errors import BadInput
from storage.features.store import FeatureStore
from storage.files.hashing import digest, digest_file
from storage.options import Options
from storage.records import ArtifactRef
from storage.weights import WeightsFolder
from storage.workspace import Workspace

IMPORTED = "imported"  # the folder of the feature stores that users brought


class TaggerFeature(Options):
    """An output of the word tagger that was trained on this data set's training split."""

    kind: Literal["tagger"] = "tagger"
    output: Literal["rows", "words", "grid", "tags"] = "rows"
    """rows: a feature per position; words: how likely each word is for the whole video (GL-RG's W), one row; grid: a feature
    for each of 4 x 4 cells of a position; tags: how likely each word is for each position by itself"""
    only: tuple[str, ...] = ()
    """of words and tags: these words and no others, in this order; left out: all that the tagger knows"""
    without: tuple[str, ...] = ()
    """of words and tags: all but these words; whether the tagger knows them does not matter"""
    over_time: Literal["keep", "mean"] = "keep"
    """mean: one row for the whole video; a grid's cells then become its steps"""
    weights: str = "trained"
    """trained: by this recipe's tagger section; or the path of a tagger.safetensors, kept whatever the training split does"""
    sampling: str = "frames"
    """which of the recipe's samplings chooses the frames"""

    @model_validator(mode="after")
    def _words_are_of_the_whole_video(self) -> Self:
        if self.output == "words" and self.over_time == "mean":
            raise ValueError("the words are of the whole video already: leave over_time out")
        if (self.only or self.without) and self.output not in ("words", "tags"):
            reason = f"'{'only' if self.only else 'without'}' chooses words and the output is '{self.output}'"
            raise ValueError(f"{reason}: leave it out, or ask for words or tags")
        if self.only and self.without:
            raise ValueError("'only' and 'without' both choose words: leave one of them out")
        if len(set(self.only)) < len(self.only):
            raise ValueError("'only' names a word twice")
        return self

    @property
    def output_name(self) -> str:
        return self.output


class BackboneFeature(Options):
    """Rows of a published net, one per position of the sampling."""

    kind: Literal["backbone"] = "backbone"
    net: str
    """inception_v4, resnet101, resnet152, resnext101_32x8d, r3d_18, resnext101_3d, i3d, fasterrcnn_resnet50_fpn_v2, vggish,
    log_mel, or timm:<name>, tv:<name> or hf:<repository or ./folder of transformers>; resnet101@448 sees the whole frame at
    448 x 448; 'longtake weights list' shows them"""
    output: str = ""
    """pooled, grid, grid14 (of a sized net) or classes; regions or boxes; embedding. Left out: the first that the net has"""
    over_time: Literal["keep", "mean"] = "keep"
    """mean: one row for the whole video; a grid's cells then become its steps"""
    weights: str = "pretrained"
    """pretrained, random (seeded; for trying the plumbing), or the path of a weights file"""
    seed: int = 0
    """seed of random weights"""
    sampling: str = "frames"
    """which of the recipe's samplings chooses the frames; a net for audio does not use it"""
    aligned_with: str | None = None
    """of a net for audio: the sampling whose positions it hears, 0.96 s around each; left out: all the sound, 0.96 s per row"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: computed with two to three digits, several times as fast where the processor knows it (AMX, AVX512_BF16; on a GPU
    it comes before runtime.precision). Other rows, so part of the key"""

    @model_validator(mode="after")
    def _only_sound_is_aligned(self) -> Self:
        if self.aligned_with is not None and not self.reads_audio:
            raise ValueError(f"'aligned_with' is for nets that hear ({', '.join(LISTENING)}); {self.net} has 'sampling'")
        return self

    @model_validator(mode="after")
    def _models_of_transformers_bring_their_weights(self) -> Self:
        if self.is_of_transformers and module_of(self.net) and self.weights != "pretrained":
            raise ValueError(f"'{self.net}' names its weights already: leave 'weights' out")
        return self

    @property
    def is_of_transformers(self) -> bool:
        return self.net.startswith(hf_folder.PREFIX)

    @property
    def output_name(self) -> str:
        first = "embedding" if self.reads_audio else "regions" if self.net.startswith("fasterrcnn") else "pooled"
        return self.output or first

    @property
    def is_pretrained(self) -> bool:
        """Whether it wants a published file of weights."""
        return self.weights == "pretrained" and self.net not in WEIGHTLESS

    @property
    def reads_audio(self) -> bool:
        return self.net in LISTENING


class ImportedFeature(Options):
    """Features that were imported with 'longtake features import NAME PATH'."""

    kind: Literal["imported"] = "imported"
    store: str
    """the NAME they were imported under"""


FeatureOptions = Annotated[TaggerFeature | BackboneFeature | ImportedFeature, Field(discriminator="kind")]


def sampling_of(feature: Any) -> str | None:
    """The sampling that chooses a feature's frames or the times of its sound; None: the whole sound, or what was imported."""
    if isinstance(feature, ImportedFeature):
        return None
    return feature.aligned_with if isinstance(feature, BackboneFeature) and feature.reads_audio else feature.sampling


@dataclass(frozen=True)
class FeatureSource:
    """Where one feature of a recipe comes from: its key, its store, and a description for the report."""

    name: str
    key: str
    store: str
    description: str
    sampling: str | None
    """None: it has no frames"""
    extracted: bool = True
    """False: it is there already, brought by the user"""
    random_weights: bool = False
    weights: str = ""
    """the hash of the weights, where it is known before they are loaded"""
    missing_weights: bool = False
    """pretrained weights that are not on this machine yet"""

    def to_json(self) -> dict[str, Any]:
        """As features.json holds it, where the description is called 'words'."""
        return {"words" if name == "description" else name: value for name, value in asdict(self).items()}


def find_source(
    workspace: Workspace, dataset: str, name: str, feature: Any, samplings: dict[str, Any], tagger: ArtifactRef | None
) -> FeatureSource:
    """The key and the store of a feature, before anything is extracted."""
    workspace.feature_store(dataset, name)  # refuses a name that would lead elsewhere
    if isinstance(feature, ImportedFeature):
        store = f"{IMPORTED}/{feature.store}"
        opened = FeatureStore.open(workspace.feature_store(IMPORTED, feature.store))
        return FeatureSource(name, opened.digest(), store, f"imported as '{feature.store}'", None, extracted=False)
    chosen = sampling_of(feature)
    if chosen is not None and chosen not in samplings:
        known = ", ".join(sorted(samplings))
        raise BadInput(f"features.{name}.sampling is '{chosen}'; the recipe's samplings are {known}")
    sampling = samplings[chosen].model_dump(mode="json") if chosen else None
    if isinstance(feature, TaggerFeature):
        return _tagger_source(dataset, name, feature, sampling, tagger)
    return _backbone_source(dataset, name, feature, sampling)


def _tagger_source(dataset: str, name: str, feature: TaggerFeature, sampling: Any, tagger: ArtifactRef | None) -> FeatureSource:
    if feature.weights != "trained":
        weights = _file_hash(name, feature.weights)
        description = f"a small net that learnt video-to-words, from {Path(feature.weights).name}"
    elif tagger is not None:
        weights = tagger.key
        description = "a small net that learnt video-to-words on this training split"
    else:
        raise BadInput(f"features.{name} is of kind 'tagger', but the recipe has no 'tagger' section; add one")
    plain = (feature.output, feature.over_time) == ("rows", "keep")
    output: list[str] = [*(() if plain else (feature.output, feature.over_time)), *feature.only]
    output += ["without", *sorted(feature.without)] if feature.without else []
    key = digest("tagger", 2, weights, sampling, *output)  # 2: batches of one size, filled across videos
    description += f" ({feature.output}{_averaged(feature)})"
    description += f", {len(feature.only)} of its words" if feature.only else ""
    description += f", without {len(feature.without)} words" if feature.without else ""
    return FeatureSource(name, key, f"{dataset}/{name}-{key[:16]}", description, feature.sampling, weights=weights)


def _backbone_source(dataset: str, name: str, feature: BackboneFeature, sampling: Any) -> FeatureSource:
    missing, net = False, canonical(feature.net)
    if feature.net in WEIGHTLESS:
        weights, kind = "none", "no"
    elif feature.weights == "random":
        weights, kind = f"random, seed {feature.seed}", "random"
    elif feature.weights == "pretrained":
        known = WeightsFolder().find(net)
        weights, kind, missing = (known.sha256 if known else "not here yet"), "pretrained", known is None
        if known and feature.is_of_transformers:  # the folder's content counts, not its name
            weights, net = digest(weights, hf_folder.settings_digest(known.path.parent)), hf_folder.PREFIX
    else:
        weights, kind = _file_hash(name, feature.weights), Path(feature.weights).name
    output = feature.output_name
    precision = [] if feature.precision == "float32" else [feature.precision]
    key = digest("backbone", 1, net, output, feature.over_time, weights, sampling, *precision)
    description = ", ".join([f"{feature.net} ({output}{_averaged(feature)})", f"{kind} weights", *precision])
    store = f"{dataset}/{name}-{key[:16]}"
    random = kind == "random"
    return FeatureSource(name, key, store, description, sampling_of(feature), True, random, weights, missing)


def labels_of(feature: BackboneFeature) -> list[str] | None:
    """What a model of transformers calls its classes, where these are the feature."""
    known = WeightsFolder().find(canonical(feature.net)) if feature.output_name == "classes" else None
    return hf_folder.labels(known.path.parent) if known else None


def _averaged(feature: TaggerFeature | BackboneFeature) -> str:
    return ", averaged over time" if feature.over_time == "mean" else ""


def _file_hash(name: str, path: str) -> str:
    try:
        return digest_file(Path(path))
    except OSError as error:
        reason = f"features.{name}.weights: cannot read {path} ({error.strerror})"
        raise BadInput(f"{reason}; give pretrained, random or a weights file") from error
