"""Words from features: GL-RG's W (eq. 1), the probabilities of a video's words, as one more feature. Two stages.

`train_video_to_words` trains the net that predicts words from stored features: on the training split alone, best epoch by the mAP
of validation; it resumes exactly. `predict_words` computes W for every video. Its result stands in for the extraction: it lists
all of its features, and 'words', whose rows lie in the result's own folder."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from models.training.objective import Objective
from models.video_to_words import VideoToWords, VideoToWordsOptions, WordBatch, WordLoss, mean_average_precision
from storage.checkpoints import Checkpoint
from storage.errors import BadInput, MissingFeatures
from storage.features.store import FeatureStore
from storage.files.atomic import write_json, write_parquet
from storage.files.hashing import digest
from storage.options import Options
from storage.records import SPLITS, ArtifactRef
from storage.text.references import References
from storage.workspace import Workspace
from tasks.extract_features import rows_table, versions
from tasks.extraction.extractors import FeatureSource
from tasks.framework.feature_access import FeatureAccess, read_rows
from tasks.framework.progress import progress_bar
from tasks.framework.stage import KeyInputs, StageContext, StageResult, stage
from tasks.training.data_size import BatchSize, DataSizedOptions, Patience
from tasks.training.loading import model_weights
from tasks.training.trainer import Training, half_done, run_training

WORDS = "words"
"""the name of the feature: a row [1, K] per video"""


_BATCH = 256  # videos whose words are validated together
Target = Literal["any", "share"]


class WordTraining(DataSizedOptions):
    """How the net for words is trained."""

    epochs: int = Field(50, ge=1)
    """Passes over the training videos."""
    learning_rate: float = Field(2e-4, gt=0)
    """The highest learning rate."""
    usual_batch_size = 64
    batch_size: BatchSize = "auto"
    """Videos per batch; auto: 64, or fewer where an epoch would have less than 16 steps, but no fewer than 4."""
    target: Target = "any"
    """What a word's probability should be: 1 if "any" caption of the video has it, or the "share" of captions that have it."""
    patience: Patience = "auto"
    """Stop after so many epochs without a better validation mAP; auto: 10, or as many as 300 steps take."""
    seed: int = Field(0, ge=0)
    """Seed of weights, dropout and order."""


class WordsOptions(Options):
    """W, the probabilities of a video's words, from stored features (GL-RG)."""

    net: VideoToWordsOptions
    """the net, and the features that it reads"""
    training: WordTraining = WordTraining()
    """how it is trained"""


class WordBatches:
    """Videos with their targets, in an order that depends on seed and epoch alone."""

    def __init__(self, access: FeatureAccess, ids: Sequence[str], targets: np.ndarray, size: int, seed: int):
        self.access, self.ids, self.targets, self.size, self.seed = access, list(ids), targets, size, seed

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.ids) / self.size)

    def __call__(self, epoch: int, skip: int) -> Iterator[WordBatch]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.ids))
        for step in range(skip, self.steps_per_epoch):
            rows = order[step * self.size : (step + 1) * self.size]
            ids = tuple(self.ids[n] for n in rows)
            yield WordBatch(ids, *self.access.read(ids), torch.from_numpy(self.targets[rows]))


@stage(version=1, device=True, half_done=half_done)
def train_video_to_words(context: StageContext, options: WordsOptions, features: ArtifactRef, text: ArtifactRef) -> StageResult:
    device, config = context.runtime.torch_device(), options.training
    access = FeatureAccess.open(context.workspace, context.path(features), options.net.features)
    references = References(context.path(text))
    words = references.tag_words[: options.net.words]
    sentences = {split: references.sentences(split) for split in ("train", "val")}
    ids = {split: access.usable(sorted(found)) for split, found in sentences.items()}
    if not ids["train"]:
        reason = f"no training video has captions and the features {', '.join(access.names)}"
        raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")
    config = config.sized(len(ids["train"]))
    targets = {
        split: np.array([word_targets(sentences[split][id], words, config.target) for id in of_split], np.float32)
        for split, of_split in ids.items()
    }
    torch.manual_seed(config.seed)
    net = VideoToWords(options.net.model_copy(update={"words": len(words)}), access.sizes)

    @torch.no_grad()
    def validate() -> tuple[float, dict[str, Any]]:
        blocks = (ids["val"][start : start + _BATCH] for start in range(0, len(ids["val"]), _BATCH))
        scores = torch.cat([net(*access.read(block, device)).cpu() for block in blocks])
        found = mean_average_precision(scores, torch.from_numpy(targets["val"]) > 0)
        return found, {"val_map": found}

    training = Training(
        label="learning words from features",
        model=net,
        objective=Objective(words=(1.0, WordLoss())),
        batches=WordBatches(access, ids["train"], targets["train"], int(config.batch_size), config.seed),
        options=config,
        result="words.safetensors",
        metadata={
            "net": net.options.model_dump(mode="json"),
            "training": config.model_dump(mode="json"),
            "words": words,
            "sizes": access.sizes,
            "extractors": {name: access.about[name]["key"] for name in access.names},
        },
        validate=validate if ids["val"] else None,
        score_name="mAP",
        patience=int(config.patience),
        curve_point=lambda epoch, means: {"loss": means["total"]},
    )
    trained = run_training(context, training)
    summary: dict[str, Any] = {"words": len(words), "videos": len(ids["train"]), "epochs": len(trained.history)}
    return StageResult(len(ids["train"]), summary | {"best_epoch": trained.best.epoch + 1, "val_map": trained.best.score})


def word_targets(captions: Sequence[str], words: Sequence[str], target: Target) -> list[float]:
    """Captions as space-separated tokens -> for each word 1 if any of them has it, or the share of them that have it."""
    tokens = [set(caption.split()) for caption in captions]
    counts = [sum(word in caption for caption in tokens) for word in words]
    return [float(count > 0) if target == "any" else count / len(captions) for count in counts]


class PredictingOptions(Options):
    """Nothing to choose: the net was trained before."""


def _key_inputs(workspace: Workspace, data: Path, options: Options, features: ArtifactRef, net: ArtifactRef) -> KeyInputs:
    """The extraction's parts stay what they are; the words of a split depend on the net and that split's rows."""
    names, key = sorted({part.rpartition("/")[0] for part in features.parts}), digest(WORDS, 1, net.key)
    parts = dict(features.parts)
    for split in SPLITS:
        parts[f"{WORDS}/{split}"] = digest(key, *(features.parts[f"{name}/{split}"] for name in names))
    return KeyInputs(parts=parts)


@stage(version=1, key_inputs=_key_inputs)
def predict_words(context: StageContext, options: PredictingOptions, features: ArtifactRef, net: ArtifactRef) -> StageResult:
    checkpoint = Checkpoint.load(context.path(net) / "words.safetensors")
    how = VideoToWordsOptions.model_validate(checkpoint.values["net"])
    access = FeatureAccess.open(context.workspace, context.path(features), how.features)
    for name in access.names:
        if checkpoint.values["extractors"].get(name) != access.about[name]["key"]:
            raise BadInput(f"the net for words was trained on other '{name}' features; train again")
    about = json.loads((context.path(features) / "features.json").read_bytes())
    first = access.rows[how.features[0]]
    pending = {id: digest(WORDS, *(access.rows[name][id] for name in access.names)) for id in access.usable(sorted(first))}
    if not pending:
        reason = f"no video has the features {', '.join(access.names)} that the net for words reads"
        raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")
    key = digest(WORDS, 1, net.key)
    where = str(Path("..") / context.folder.relative_to(context.workspace.root) / "store")
    description = f"probabilities of {how.words} words, predicted from {', '.join(how.features)}"
    random = any(about[name]["random_weights"] for name in how.features)
    source = FeatureSource(WORDS, key, where, description, None, extracted=False, random_weights=random, weights=net.key)
    predictor = VideoToWords(how, checkpoint.values["sizes"])
    predictor.load_state_dict(model_weights(checkpoint))
    sums = _write(context, source, access, predictor.eval(), pending)
    found = {**read_rows(context.path(features)), WORDS: pending}
    listed = ((name, id, row) for name, keys in found.items() for id, row in keys.items())
    write_parquet(context.folder / "rows.parquet", rows_table(listed))
    shape: dict[str, Any] = {"size": how.words, "shape": [how.words]}
    write_json(context.folder / "features.json", {**about, WORDS: {**source.to_json(), **shape}})
    return StageResult(len(pending), {"videos": len(pending), "words_per_video": round(sums / len(pending), 3)})


def _write(
    context: StageContext, source: FeatureSource, access: FeatureAccess, net: VideoToWords, pending: dict[str, str]
) -> float:
    """The words of every video that has none yet; the sum of all probabilities."""
    device = context.runtime.torch_device()
    net.to(device)
    provenance = {"extractor_key": source.key, "name": source.name, "words": source.description, "weights": source.weights}
    shape = (net.options.words,)
    store = FeatureStore.create(context.folder / "store", provenance=provenance | versions(), feature_shape=shape)
    there = store.view().fresh(pending)
    with progress_bar("predicting words", len(pending), "videos") as shown, store.writer() as writer:
        shown.update_to(len(there))
        # One by one: so neither batches nor other videos' lengths can change a row.
        for id in (id for id in pending if id not in there):
            with torch.inference_mode():
                row = torch.sigmoid(net(*access.read([id], device))).float().cpu().numpy()
            writer.add(id, pending[id], row)
            shown.advance()
    view = store.view()
    return float(sum(np.asarray(view.read(id, key), np.float64).sum() for id, key in pending.items()))
