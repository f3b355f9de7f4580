"""RecNet, Fig. 8: do a decoder's last hidden states differ between training (true captions) and inference (its own)?

    python benches/hidden_states.py WORKSPACE RUN [RUN ...] [--videos 200] [--split test] [--picture states.svg]

For as many videos: the state behind the last word of a true caption, and behind the last word of the captioner's own. The paper
shows both in a t-SNE, and so does the picture; since a t-SNE can show clusters that are not there, two numbers are printed per
run: how often the nearest other state is of the same kind (50 %: mixed), and the energy distance of the two clouds over that of
two random halves of them (1: no difference). Runs: ids or their beginnings."""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch

from flows.find_run import find_run
from models.captioner import Captioner
from models.decoding.beam_search import SearchOptions
from models.types import BOS, Memory
from storage.files.atomic import write_text
from storage.runs import load_runs
from storage.text.references import References
from storage.text.vocabulary import Vocabulary
from storage.workspace import Workspace
from tasks.framework.feature_access import FeatureAccess
from tasks.inference.generate import rank_captions
from tasks.training.loading import captioner_options, load_captioner

SHUFFLES, SIDE = 50, 320


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--split", default="test")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    workspace = Workspace.open(options.workspace)
    runs = [run for run in load_runs(workspace) if run.scores]
    pictures = []
    for wanted in options.runs:
        run = find_run(runs, wanted, "scored")
        checkpoint = workspace.folder(*run.results["captioners"][0]) / "captioner.safetensors"
        references = References(workspace.folder(*run.stages["prepare_text"]))
        access = FeatureAccess.for_captioner(
            workspace, workspace.folder(*run.results["features"][0]), captioner_options(checkpoint)
        )
        captioner = load_captioner(checkpoint, access, references.vocabulary).eval()
        true, own = last_states(captioner, access, references, options.split, options.videos)
        same, distance = same_kind_nearest(true, own), energy_ratio(true, own)
        name = f"{run.recipe['captioner']['kind']} {run.id}"
        print(f"{name}: {len(true)} videos, nearest of the same kind {100 * same:.1f} %, energy distance / chance {distance:.2f}")
        if options.picture:
            pictures.append((name, tsne(np.concatenate([true, own])), len(true)))
    if options.picture:
        write_text(options.picture, as_svg(pictures))


def last_states(
    captioner: Captioner, access: FeatureAccess, references: References, split: str, videos: int
) -> tuple[np.ndarray, np.ndarray]:
    """The states (N, H) behind the last words of true captions (one drawn per video) and of greedy ones."""
    sentences = {id: texts for id, texts in references.sentences(split).items() if access.usable([id])}
    ids = sorted(sentences)[:videos]
    rng = np.random.default_rng(0)
    true = [str(sentences[id][rng.integers(len(sentences[id]))]) for id in ids]
    search = SearchOptions(width=1, max_length=20)
    ranked = rank_captions(captioner, access, references.vocabulary, ids, search, "cpu", attention=False)
    said = {row.video_id: row.caption for row, *_ in ranked}
    with torch.inference_mode():
        memory = captioner.encode(*access.read(ids))
        behind = partial(_behind, captioner, memory, references.vocabulary)
        return behind(true), behind([said[id] for id in ids])


def _behind(captioner: Captioner, memory: Memory, vocabulary: Vocabulary, captions: list[str]) -> np.ndarray:
    """The hidden state (N, H) after the last word of each caption has been read."""
    tokens = [vocabulary.encode(caption.split(), 10_000)[1:-1] for caption in captions]
    state = captioner.decoder.start(memory)
    last = torch.zeros_like(state[0])
    for step in range(max(map(len, tokens)) + 1):
        previous = [BOS if not step else words[min(step, len(words)) - 1] if words else BOS for words in tokens]
        _, state, _ = captioner.decoder.step(torch.tensor(previous), state, memory)
        ends = torch.tensor([len(words) == step for words in tokens])
        last[ends] = state[0][ends]
    return last.numpy()


def distances(x: np.ndarray) -> np.ndarray:
    squares = (x * x).sum(1)
    found: np.ndarray = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * x @ x.T, 0))
    return found


def same_kind_nearest(first: np.ndarray, second: np.ndarray) -> float:
    """Share of all states whose nearest other state is of their own kind."""
    apart = distances(np.concatenate([first, second]))
    np.fill_diagonal(apart, np.inf)
    kind = np.repeat([0, 1], [len(first), len(second)])
    return float((kind[apart.argmin(1)] == kind).mean())


def energy_ratio(first: np.ndarray, second: np.ndarray) -> float:
    """The energy distance of two clouds, over its mean when the points are dealt at random."""
    apart = distances(np.concatenate([first, second]))
    kind = np.repeat([False, True], [len(first), len(second)])

    def energy(one: np.ndarray) -> float:
        return float(2 * apart[one][:, ~one].mean() - apart[one][:, one].mean() - apart[~one][:, ~one].mean())

    rng = np.random.default_rng(0)
    return energy(kind) / float(np.mean([energy(rng.permutation(kind)) for _ in range(SHUFFLES)]))


def tsne(x: np.ndarray, perplexity: float = 30.0, steps: int = 500) -> np.ndarray:
    """x (N, H) -> (N, 2), by the exact method (van der Maaten and Hinton, 2008): fine for some hundred points."""
    squared = distances(x) ** 2
    near = np.zeros_like(squared)
    for n, row in enumerate(squared):
        low, high, others = 0.0, np.inf, np.arange(len(x)) != n
        beta = 1.0 / max(float(row[others].mean()), 1e-12)
        for _ in range(60):  # until the entropy of the neighbours is that of `perplexity` equal ones
            weights = np.exp(-beta * (row[others] - row[others].min()))
            weights /= weights.sum()
            entropy = -(weights * np.log(np.maximum(weights, 1e-30))).sum()
            low, high = (beta, high) if entropy > np.log(perplexity) else (low, beta)
            beta = 2 * beta if np.isinf(high) else (low + high) / 2
        near[n, others] = weights
    near = np.maximum((near + near.T) / (2 * len(x)), 1e-12)
    rng = np.random.default_rng(0)
    y = rng.normal(scale=1e-4, size=(len(x), 2))
    speed = np.zeros_like(y)
    for step in range(steps):
        kernel = 1 / (1 + distances(y) ** 2)
        np.fill_diagonal(kernel, 0)
        pull = (near * (12 if step < 100 else 1) - np.maximum(kernel / kernel.sum(), 1e-12)) * kernel
        gradient = 4 * (pull.sum(1)[:, None] * y - pull @ y)
        speed = (0.5 if step < 100 else 0.8) * speed - len(x) / 12 * gradient
        y = y + speed
    return y - y.mean(0)


def as_svg(pictures: list[tuple[str, np.ndarray, int]]) -> str:
    """One square per run: true captions red, own green, as in the paper."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIDE * len(pictures)}" height="{SIDE + 24}" font-family="sans-serif">'
    ]
    for at, (name, points, true) in enumerate(pictures):
        parts.append(f'<text x="{at * SIDE + 10}" y="16" font-size="12">{name}: red training, green inference</text>')
        places = (points - points.min(0)) / np.maximum(np.ptp(points, axis=0), 1e-12) * (SIDE - 20) + 10
        for n, (x, y) in enumerate(places):
            colour = "#c33" if n < true else "#2a7"
            parts.append(f'<circle cx="{at * SIDE + x:.1f}" cy="{24 + y:.1f}" r="3" fill="{colour}" fill-opacity=".6"/>')
    return "\n".join([*parts, "</svg>"])


if __name__ == "__main__":
    main()
