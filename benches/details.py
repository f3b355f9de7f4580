"""Does a captioner see the small detail? How often captions of the demo world name the cross, dot or ring in the corner.

    python benches/details.py WORKSPACE [WORD]

A line for each run that captioned the demo world, whose truth.jsonl knows the details; WORD keeps the runs that have it in
their recipe's name. Shares of clips:

named    of those with a detail: the caption names it, and no other
false    of all: the caption names a detail that is not there
chosen   of those with a detail that one of their references names: that reference is more probable than the same with either
         other detail. Whether the captioner would have spoken of a detail plays no part; chance is a third"""

from pathlib import Path

import numpy as np
from measuring import arguments

from storage.datasets.demo_scene import DETAILS
from storage.results import read_captions, read_jsonl
from storage.runs import RunRecord, load_runs
from storage.text.references import References
from storage.workspace import Workspace
from tasks.evaluation.self_retrieval import log_probabilities
from tasks.framework.feature_access import FeatureAccess
from tasks.training.loading import captioner_options, load_captioner

NAMES = tuple(name for name in DETAILS if name != "none")


def main() -> None:
    options = arguments(__doc__, "workspace", "word?")
    workspace, word = Workspace.open(Path(options.workspace)), options.word or ""
    print(f"{'named':>7}{'false':>8}{'chosen':>8}  run")
    for run in reversed(load_runs(workspace)):
        if word in run.recipe_name and "caption" in run.stages and workspace.done(*run.stages["caption"]):
            shares = (*caption_shares(workspace, run), chosen(workspace, run))
            print("".join(f"{share:>8.1%}" for share in shares), f" {run.recipe_name} ({run.id})")


def caption_shares(workspace: Workspace, run: RunRecord) -> tuple[float, float]:
    """The shares "named" and "false" of a run's captions."""
    there = details(run)
    named, false = [], []
    for row in read_captions(workspace.folder(*run.stages["caption"])):
        heard, true = set(NAMES) & set(row.caption.split()), there[row.video_id]
        false.append(bool(heard - {true}))
        if true in NAMES:
            named.append(heard == {true})
    return float(np.mean(named)), float(np.mean(false))


def chosen(workspace: Workspace, run: RunRecord) -> float:
    """The share "chosen" of a run's captioner."""
    there = details(run)
    references = References(workspace.folder(*run.stages["prepare_text"]))
    vocabulary = references.vocabulary
    path = _last(workspace, run, "seed", "boost") / "captioner.safetensors"
    features = _last(workspace, run, "extract_features", "find_key_frames")
    access = FeatureAccess.for_captioner(workspace, features, captioner_options(path))
    captioner = load_captioner(path, access, vocabulary)
    found = []
    for id, sentences in references.sentences(run.recipe["evaluation"]["split"]).items():
        true = there[id]
        telling = [words for sentence in sentences if true in (words := sentence.split())]
        if true in NAMES and telling and access.usable([id]):
            variants = [[name if word == true else word for word in telling[0]] for name in NAMES]
            queries = [vocabulary.encode(words, len(words)) for words in variants]
            log_p = log_probabilities(captioner, access.read, queries, [id], len(vocabulary), "cpu")
            found.append(NAMES[int(log_p[:, 0].argmax())] == true)
    return float(np.mean(found))


def details(run: RunRecord) -> dict[str, str]:
    """video -> the detail that was drawn"""
    return {row["video"]: row["detail"] for row in read_jsonl(Path(run.data) / "truth.jsonl")}


def _last(workspace: Workspace, run: RunRecord, *stages: str) -> Path:
    """The folder of the last of these stages that the run went through: what captions came from."""
    return workspace.folder(*[made for made in run.stages.values() if made[0] in stages][-1])


if __name__ == "__main__":
    main()
