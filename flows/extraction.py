"""Features of a folder of videos without a recipe: the recipe that some names of nets stand for, and files for other tools."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.pipeline import plan_pipeline
from flows.recipe import load_recipe
from models.backbones.zoo import LISTENING, UnknownBackbone, module_of
from storage.errors import UsageError
from storage.features.exporting import ExportFormat, ExportReport, export_features
from storage.features.store import FeatureStore
from storage.workspace import Workspace
from tasks.framework.progress import progress_on_demand

DEFAULT_NET = "tf_efficientnet_lite2"  # its weights come with Longtake
_CLIP_NETS = ("motion", "resnext3d", "i3d")  # modules whose nets see clips, not frames
_CLIP_LENGTH, _POSITIONS = 16, 20


def recipe_for_nets(folder: Path, nets: Sequence[str], frames: int | None = None, fps: float | None = None) -> str:
    """A recipe as text that extracts these nets' features: at `frames` evenly spread positions of each video (20), or at `fps`
    frames per second, for nets that see clips in stretches of 16 such frames."""
    features: dict[str, Any] = {}
    for net in nets or (DEFAULT_NET,):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", net).strip("-._")
        features[name] = {"kind": "backbone", "net": net} | ({} if net in LISTENING else {"sampling": sampling_for(net)})
    positions = frames or _POSITIONS
    samplings: dict[str, Any] = {
        "frames": {"kind": "uniform", "frames": positions},
        "clips": {"kind": "clips", "positions": positions, "length": _CLIP_LENGTH},
    }
    if fps is not None:
        samplings["frames"] = {"kind": "times", "fps": fps}
        samplings["clips"] = {"kind": "windows", "seconds": _CLIP_LENGTH / fps, "length": _CLIP_LENGTH}
    dataset = {"kind": "videos", "path": str(folder.expanduser().absolute())}
    return yaml.safe_dump({"name": "extract", "dataset": dataset, "sampling": samplings, "features": features}, sort_keys=False)


def sampling_for(net: str) -> str:
    """frames or clips: what a net that sees is shown."""
    try:
        return "clips" if module_of(net) in _CLIP_NETS else "frames"
    except UnknownBackbone as error:
        raise UsageError(str(error)) from error


def backbone_settings(recipe: str, net: str) -> list[str]:
    """The settings that give a recipe's only pretrained net another's place."""
    features = load_recipe(recipe).features
    nets = [name for name, feature in features.items() if feature.kind == "backbone"]
    if len(nets) != 1:
        listed = ", ".join(features)
        raise UsageError(f"--backbone is for a recipe with one net, and '{recipe}' has the features {listed}; use --set")
    settings = [f"features.{nets[0]}={{kind: backbone, net: '{net}', sampling: frames}}"]
    if net not in LISTENING and sampling_for(net) == "clips":
        settings.append(f"sampling.frames={{kind: clips, positions: 12, length: {_CLIP_LENGTH}}}")
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
