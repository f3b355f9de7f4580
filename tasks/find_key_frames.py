"""Find key frames (VRE's third phase): the frame that a trained captioner chooses for each video is saved as a feature, so that
the captioner can be trained again with the choice settled.

The result stands in for the extraction: it lists all of its features, and one more, whose rows lie in the result's own folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field

from models.captioner import Captioner
from models.captioners.vre.captioner import VreOptions
from storage.errors import BadInput, MissingFeatures
from storage.features.store import FeatureStore
from storage.features.view import View
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
from tasks.training.loading import captioner_options, load_captioner

KEY_FRAMES = "key_frames"
"""the name of the feature: a row [1, 1] a video, the number of its key frame among the rows of its features over time"""
_MOST = 2048  # features are read as float16, which tells whole numbers apart up to here


class KeyFrameOptions(Options):
    """VRE's third phase: the key frames of the best captioner are saved, and it is trained again with them."""

    epochs: int | None = Field(None, ge=1)
    """Epochs of the second training; as many as the first by default."""


def _key_inputs(
    workspace: Workspace, data: Path, options: Options, features: ArtifactRef, captioner: ArtifactRef, text: ArtifactRef
) -> KeyInputs:
    """The extraction's parts stay what they are; the key frames of a split depend on the captioner and that split's rows."""
    names, key = sorted({part.rpartition("/")[0] for part in features.parts}), digest(KEY_FRAMES, 1, captioner.key)
    parts = dict(features.parts)
    for split in SPLITS:
        parts[f"{KEY_FRAMES}/{split}"] = digest(key, *(features.parts[f"{name}/{split}"] for name in names))
    return KeyInputs(parts=parts)


class FindingOptions(Options):
    """Nothing to choose: the captioner decides."""


@stage(version=1, key_inputs=_key_inputs)
def find_key_frames(
    context: StageContext, options: FindingOptions, features: ArtifactRef, captioner: ArtifactRef, text: ArtifactRef
) -> StageResult:
    path = context.path(captioner) / "captioner.safetensors"
    net = captioner_options(path)
    if not isinstance(net, VreOptions) or net.steps != 2 or net.key_frames is not None:
        reason = "does not look for key frames; only vre with two steps and none given does"
        raise BadInput(f"a captioner of kind '{net.kind}' {reason}")
    access = FeatureAccess.for_captioner(context.workspace, context.path(features), net)
    rows = access.rows[net.temporal]
    pending = {id: rows[id] for id in access.usable(sorted(rows))}
    if not pending:
        reason = "no video has the features that the captioner reads"
        raise MissingFeatures(f"{reason}; 'longtake status' lists what is missing")
    about = json.loads((context.path(features) / "features.json").read_bytes())
    key, frames = digest(KEY_FRAMES, 1, captioner.key), about[net.temporal]
    where = str(Path("..") / context.folder.relative_to(context.workspace.root) / "store")
    words = "the frame that the captioner trained before refocuses on"
    made = {"extracted": False, "random_weights": frames["random_weights"], "weights": captioner.key}
    source = FeatureSource(KEY_FRAMES, key, where, words, frames["sampling"], **made)
    finder = load_captioner(path, access, References(context.path(text)).vocabulary)
    store = _write(context, source, access, finder, net.temporal, pending)
    found = {**read_rows(context.path(features)), KEY_FRAMES: pending}
    listed = ((name, id, key) for name, keys in found.items() for id, key in keys.items())
    write_parquet(context.folder / "rows.parquet", rows_table(listed))
    shape: dict[str, Any] = {"size": 1, "shape": [1]}
    write_json(context.folder / "features.json", {**about, KEY_FRAMES: {**source.to_json(), **shape}})
    middles = {id: len(access.views[net.temporal].read(id, key)) // 2 for id, key in pending.items()}
    moved = sum(int(store.read(id, key)[0, 0]) != middles[id] for id, key in pending.items())
    return StageResult(len(pending), {"videos": len(pending), "away_from_the_middle": round(moved / len(pending), 6)})


def _write(
    context: StageContext, source: FeatureSource, access: FeatureAccess, net: Captioner, temporal: str, pending: dict[str, str]
) -> View:
    """The key frame of every video that has none yet; the view of all of them."""
    device = context.runtime.torch_device()
    net.to(device)
    provenance = {"extractor_key": source.key, "name": source.name, "words": source.description, "weights": source.weights}
    store = FeatureStore.create(context.folder / "store", provenance=provenance | versions(), feature_shape=(1,))
    there = store.view().fresh(pending)
    with progress_bar("finding key frames", len(pending), "videos") as shown, store.writer() as writer:
        shown.update_to(len(there))
        # One by one: so neither batches nor other videos' lengths can change a choice.
        for id in (id for id in pending if id not in there):
            with torch.inference_mode():
                frame = int(net.encode(*access.read([id], device)).extras["key_frame"][0])
            if frame > _MOST:
                reason = f"rows beyond {_MOST} cannot be told apart in float16"
                raise BadInput(f"the key frame of {id} is row {frame} of '{temporal}'; {reason}: sample fewer frames")
            times = access.views[temporal].pts(id, pending[id])
            time = None if times is None else times[frame : frame + 1]
            writer.add(id, pending[id], np.array([[frame]], np.float32), time)
            shown.advance()
    return store.view()
