"""Which way of choosing key frames in training finds the event? VRE trained on stored features of a demo world, several seeds.

    python benches/refocus_choices.py WORKSPACE [--seeds 0 1 2 3] [--choices argmax sample candidates]

WORKSPACE holds a run of demo-vre, at least up to its features, on a world with competing subjects and short events:

    longtake demo demo-vre -w WORKSPACE --until extract_features --set dataset.competing=true --set 'dataset.event=[0.25, 0.35]'

The decoder has no attention over time and no cells, so that frames reach it by the encoder alone. Every clip has its first four
captions in every epoch, so R_e-1 is one epoch old. All ways train equally long. Printed per training: the oracle (see
key_frames.py) on 60 clips of val, then the share of key frames inside the event, against the middle frame and any frame."""

import argparse
import time
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from models.captioners.vre.captioner import VreCaptioner, VreOptions, build_vre
from models.captioners.vre.encoder import RefocusChoice, RefocusEncoder
from models.captioners.vre.key_frame_loss import RewardMemory
from models.losses.cross_entropy import CrossEntropy
from models.training.loop import fit
from models.training.objective import Objective
from storage.datasets.demo import DemoOptions
from storage.results import read_jsonl
from storage.runs import load_runs
from storage.text.references import References
from storage.workspace import Workspace
from tasks.framework.feature_access import FeatureAccess
from tasks.seed import RefocusPhases, SeedingOptions, SeedOptions
from tasks.training.batches import CaptionBatches, pad

CAPTIONS, CLIPS = 4, 60
CHOICES: tuple[RefocusChoice, ...] = ("argmax", "sample", "candidates")


class Split(NamedTuple):
    """The clips of a split: features (B, K, D), which frames lie inside the event (B, K), and token ids of captions by clip."""

    ids: list[str]
    rows: Tensor
    inside: Tensor
    captions: dict[str, list[list[int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    workspace = Workspace.open(options.workspace)
    run = next(run for run in load_runs(workspace) if run.recipe_name == "demo-vre" and "extract_features" in run.stages)
    features = workspace.folder(*run.stages["extract_features"])
    access = FeatureAccess.open(workspace, features, ("scene",))
    references = References(workspace.folder(*run.stages["prepare_text"]))
    fps = DemoOptions.model_validate(run.recipe["dataset"]).fps
    truth = {row["video"]: row for row in read_jsonl(Path(run.data) / "truth.jsonl")}
    splits = {name: read_split(access, references, truth, name, fps) for name in ("train", "val", "test")}
    for seed in options.seeds:
        for choice in options.choices:
            started = time.process_time()
            captioner, spread = train(access, splits["train"], len(references.vocabulary), choice, seed, options.epochs)
            print(f"seed {seed} {choice:<10} {oracle(captioner, splits['val'])}  spread of o {spread:.3f}", end="")
            for name in ("val", "test"):
                print(f"  {name}: {shares(captioner, splits[name])}", end="")
            print(f"  ({time.process_time() - started:.0f} s)", flush=True)


def read_split(access: FeatureAccess, references: References, truth: dict[str, dict], name: str, fps: int) -> Split:
    captions = references.token_ids(name)
    ids = access.usable(sorted(captions))
    frames = [np.round(access.views["scene"].pts(id) * fps) for id in ids]
    inside = [(at >= truth[id]["start"]) & (at < truth[id]["end"]) for id, at in zip(ids, frames, strict=True)]
    kept = {id: captions[id][:CAPTIONS] if name == "train" else captions[id] for id in ids}
    return Split(ids, access.read(ids)[0]["scene"], torch.from_numpy(np.array(inside)), kept)


def train(
    access: FeatureAccess, split: Split, vocabulary: int, choice: RefocusChoice, seed: int, epochs: int
) -> tuple[VreCaptioner, float]:
    """A captioner after all epochs, and the smallest spread of o over videos that a batch of the last epoch had."""
    net = VreOptions(temporal="scene", temporal_attention=False, hidden=64, dropout=0.3, batch_norm=True)
    how = SeedingOptions(epochs=epochs, learning_rate=0.004, schedule="cosine", refocus_after=epochs // 3, refocus_choice=choice)
    torch.manual_seed(seed)
    captioner = build_vre(net, {"scene": split.rows.shape[2]}, vocabulary)
    lengths = [len(caption) - 1 for of_clip in split.captions.values() for caption in of_clip]
    alone = Objective(xe=(1.0, CrossEntropy()))
    options = SeedOptions(captioner=net, seeding=how)
    phases = RefocusPhases(captioner, alone, options, sum(lengths) / len(lengths), RewardMemory())
    indices = {id: list(range(len(of_clip))) for id, of_clip in split.captions.items()}
    batches = CaptionBatches(access, split.captions, indices, split.ids, 16, CAPTIONS, seed)
    spread = float("inf")
    for progress in fit(captioner, phases, batches, how):
        if progress.epoch == epochs - 1 and captioner.spread is not None:
            spread = min(spread, captioner.spread.item())
    return captioner.eval(), spread


@torch.inference_mode()
def shares(captioner: VreCaptioner, split: Split) -> str:
    masks = {"scene": torch.ones(split.rows.shape[:2], dtype=torch.bool)}
    key = captioner.encode({"scene": split.rows}, masks).extras["key_frame"]
    found = split.inside[torch.arange(len(key)), key].float().mean()
    middle = split.inside[:, split.inside.shape[1] // 2].float().mean()
    return f"key {found:.1%} middle {middle:.1%} any {split.inside.float().mean():.1%}"


@torch.inference_mode()
def oracle(captioner: VreCaptioner, split: Split) -> str:
    rows, found = split.rows[:CLIPS], []
    features, masks = {"scene": rows}, {"scene": torch.ones(rows.shape[:2], dtype=torch.bool)}
    each = cast(RefocusEncoder, captioner.encoder).around_every_frame(features, masks)
    memory = captioner.encode(features, masks)
    for n, id in enumerate(split.ids[: len(rows)]):
        tokens, inside = pad(split.captions[id]), split.inside[n]
        own = memory.select(torch.full((len(tokens),), n))
        losses = captioner.losses_given(tokens, own, [o.expand(len(tokens), -1) for o in each[n]]).mean(0)
        found.append(
            [losses.max() - losses.min(), losses[inside].mean(), losses[~inside].mean(), inside[losses.argmin()].float()]
        )
    spread, within, without, best = torch.tensor(found).mean(0).tolist()
    return f"oracle: spread {spread:.3f} inside {within:.2f} outside {without:.2f} best inside {best:.0%}"


if __name__ == "__main__":
    main()
