"""Features of a folder of videos without a recipe: the recipe that some names of nets stand for, and files for other tools."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.pipeline import plan_pipeline
from flows.recipe import load_recipe
from models.backbones import hf_folder
from models.backbones.zoo import LISTENING, UnknownBackbone, canonical, module_of
from storage.errors import BadInput, UsageError
from storage.features.exporting import ExportFormat, ExportReport, export_features
from storage.features.store import FeatureStore
from storage.weights import WeightsFolder
from storage.workspace import Workspace
from tasks.framework.progress import progress_on_demand

DEFAULT_NET = "tf_efficientnet_lite2"  # its weights come with Longtake
_CLIP_NETS = ("motion", "resnext3d", "i3d")  # modules whose nets see clips, not frames
_CLIP_LENGTH, _POSITIONS = 16, 20


def recipe_for_nets(folder: Path, nets: Sequence[str], frames: int | None = None, fps: float | None = None) -> str:
    """A recipe as text that extracts these nets' features: at `frames` evenly spread positions of each video (20), or at `fps`
    frames per second, for nets that see clips in stretches of 16 such frames (or as many as the net was made for)."""
    features: dict[str, Any] = {}
    positions = frames or _POSITIONS
    samplings: dict[str, Any] = {"frames": {"kind": "times", "fps": fps} if fps else {"kind": "uniform", "frames": positions}}
    for net in nets or (DEFAULT_NET,):
        hf = net.startswith(hf_folder.PREFIX)
        name = hf_folder.short(net) if hf else re.sub(r"[^A-Za-z0-9._-]+", "-", net).strip("-._")
        if name in features:
            raise UsageError(f"two of the nets would be called '{name}'; name each once, or write a recipe that gives them names")
        features[name] = {"kind": "backbone", "net": net}
        if net in LISTENING:
            continue
        features[name]["sampling"] = "frames"
        if length := clip_length(net):
            features[name]["sampling"] = sampling = "clips" if length == _CLIP_LENGTH else f"clips{length}"
            clips = {"kind": "clips", "positions": positions, "length": length}
            samplings[sampling] = {"kind": "windows", "seconds": length / fps, "length": length} if fps else clips
    dataset = {"kind": "videos", "path": str(folder.expanduser().absolute())}
    return yaml.safe_dump({"name": "extract", "dataset": dataset, "sampling": samplings, "features": features}, sort_keys=False)


def clip_length(net: str) -> int | None:
    """How many frames the clips have that a net is shown; None: it sees single frames."""
    try:
        if module_of(net) != "hf":
            return _CLIP_LENGTH if module_of(net) in _CLIP_NETS else None
    except UnknownBackbone as error:
        raise UsageError(str(error)) from error
    from models.backbones.hf import clip_in
    from models.backbones.hub import fetch_folder
    from models.backbones.weights import WeightsUnavailable

    try:
        known = WeightsFolder().find(canonical(net))
        return clip_in(net, known.path.parent if known else fetch_folder(net, weights=False))
    except (WeightsUnavailable, ValueError) as error:
        raise BadInput(str(error)) from error


def backbone_settings(recipe: str, net: str) -> list[str]:
    """The settings that give a recipe's only pretrained net another's place."""
    features = load_recipe(recipe).features
    nets = [name for name, feature in features.items() if feature.kind == "backbone"]
    if len(nets) != 1:
        listed = ", ".join(features)
        raise UsageError(f"--backbone is for a recipe with one net, and '{recipe}' has the features {listed}; use --set")
    settings = [f"features.{nets[0]}={{kind: backbone, net: '{net}', sampling: frames}}"]
    if net not in LISTENING and (length := clip_length(net)):
        settings.append(f"sampling.frames={{kind: clips, positions: 12, length: {length}}}")
    return settings


def export_extracted(workspace: Workspace, recipe: str, form: ExportFormat, out: Path) -> dict[str, ExportReport]:
    """Write all features of a recipe for other tools: OUT/<feature>/<video>.npy, or OUT/<feature>.h5. Files that are there with
    the same values stay as they are."""
    plan = plan_pipeline(load_recipe(recipe), workspace, until="extract_features")
    catalogue, extraction = plan.step("catalogue"), plan.step("extract_features")
    if catalogue is None or extraction is None:
        raise UsageError("this recipe has no features to extract")
    written, videos = {}, set(catalogue.prepared.record_keys)
    for name, source in extraction.prepared.items():
        store = FeatureStore.open(workspace.features / source.store)
        ids = videos & store.view().lengths().keys()
        target = out / name if form == "npy" else out / f"{name}.h5"
        with progress_on_demand(f"writing {target}", "videos") as progress:
            written[name] = export_features(store, form, target, ids=ids, progress=progress)
    return written
