"""What was run, in plain words: a summary in sentences, metadata, and warnings."""

from collections.abc import Mapping
from typing import Any

from storage.catalogue import Catalogue
from storage.records import SPLITS
from storage.results import FEW
from storage.text.references import References
from tasks.reporting.published_scores import BENCHMARKS

Values = Mapping[str, Any]
CAPTIONERS = {
    "mp_lstm": "an LSTM that sees the mean of a video (MP-LSTM)",
    "sa_lstm": "an LSTM with attention over time (SA-LSTM)",
    "s2vt": "two stacked LSTMs without attention (S2VT)",
    "recnet": "a captioner with a reconstructor on top (RecNet)",
    "glrg": "an LSTM that reads global and local word probabilities (GL-RG)",
    "g2l": "a GRU that attends to clips and frames together, then to regions of key frames (G2L)",
    "vre": "a captioner that encodes a video twice, the second time around its key frame (VRE)",
    "show_tell": "an LSTM that sees the video as its first word (Show-Tell)",
    "top_down": "two LSTMs, one that attends and one that predicts words (Top-Down)",
}

_DIVERSITY = {
    "UniCap": "Different captions (UniCap)",
    "AvgLen": "Words per caption (AvgLen)",
    "Vocabulary": "Words used in captions",
    "Copied": "Captions copied from training",
}


def summary(table: Catalogue, about: Values, recipe: Values, metrics: Values) -> list[str]:
    """Three or four sentences: the data, the captioner, its training, the captions."""
    sizes = {split: len(table.ids(split)) for split in SPLITS}
    dataset, how, kind = recipe["dataset"], recipe["decoding"], recipe["captioner"]["kind"]
    each = " and ".join(f"'{name}': {info['words']}" for name, info in about.items())
    data = (
        f"The data set {dataset['name']} has {table.captions.num_rows:,} captions of {sum(sizes.values()):,} videos: "
        f"{sizes['train']:,} to learn from, {sizes['val']:,} to choose the best epoch by, {sizes['test']:,} to test on."
    )
    seen = f"The captioner is {CAPTIONERS.get(kind, kind)}. It sees a video as the features {each}."
    seeding = recipe.get("seeding", {})
    loss = "cross-entropy, captions weighted by their agreement" if seeding.get("loss") == "dxe" else "cross-entropy"
    trained = f"It was trained by {loss}, for at most {seeding.get('epochs', '?')} epochs"
    if recipe.get("boosting"):
        trained += f", then by rewards for at most {recipe['boosting'].get('epochs', '?')}"
    search = "greedily, word by word" if how["width"] == 1 else f"by a beam of {how['width']}"
    described = f"It described {metrics['videos']:,} videos of the {metrics['split']} split, {search}."
    return [data, seen, f"{trained}.", described]


def metadata(table: Catalogue, references: References, about: Values, recipe: Values, metrics: Values) -> list[tuple[str, str]]:
    """(label, value), the data first, then the captioner, then what evaluation says beside the scores."""
    sizes = ", ".join(f"{len(table.ids(split)):,} {split}" for split in SPLITS)
    found = [
        ("Data set", f"{recipe['dataset']['name']} ({recipe['dataset']['kind']})"),
        ("Videos", sizes),
        ("Captions", f"{table.captions.num_rows:,}"),
        ("Vocabulary", f"{len(references.vocabulary):,} words"),
        ("Captioner", recipe["captioner"]["kind"]),
        ("Search", "greedy" if recipe["decoding"]["width"] == 1 else f"beam of {recipe['decoding']['width']}"),
    ]
    found += [(f"Features '{n}'", f"{info['words']}; {info['size']:,} numbers per row") for n, info in about.items()]
    found += caption_metrics(metrics)
    found += [(f"{name} not computed", why) for name, why in metrics["not_computed"].items()]
    if metrics["not_captioned"]:
        found.append(("Not captioned", f"{len(metrics['not_captioned']):,} videos of the split have no features"))
    return found


def caption_metrics(metrics: Values) -> list[tuple[str, str]]:
    """What evaluation says of the captions themselves: how many differ, their length, self-retrieval."""
    shown = {n: f"{100 * v:.1f} %" if n == "Copied" else f"{v:,.4g}" for n, v in metrics["diversity"].items()}
    found = [(_DIVERSITY.get(name, name), value) for name, value in shown.items()]
    for title, which in (("Self-retrieval", "self_retrieval"), ("Independent retriever", "retriever")):
        between = metrics.get(f"{which}_intervals") or {}
        for name, value in (metrics.get(which) or {}).items():
            if int(name[2:]) >= metrics["videos"]:  # R@5 of 5 videos is always 100 %
                continue
            around = " ({:.1f} to {:.1f})".format(*(100 * x for x in between[name])) if name in between else ""
            found.append((f"{title} {name}", f"{100 * value:.1f} %{around}"))
    return found


def random_weight_warnings(about: Values) -> list[str]:
    """Warnings that the scores mean nothing, because features come from random weights."""
    return [
        f"The features '{name}' come from random weights: they try the plumbing, and the scores say nothing about a model."
        for name, info in about.items()
        if info["random_weights"]
    ]


def warnings(metrics: Values) -> list[str]:
    """What the number of videos leaves of the scores."""
    if metrics["videos"] >= FEW:
        return []
    vary = "such scores vary a lot from one set to the next, and intervals would mean nothing"
    scored = "1 video was" if metrics["videos"] == 1 else f"{metrics['videos']} videos were"
    return [f"Only {scored} scored: {vary}."]


def published_note(kind: str, metrics: Values) -> str:
    """What to think of when a run is compared with the papers' scores on its data set."""
    if kind not in BENCHMARKS:
        return ""
    papers, here = BENCHMARKS[kind].videos, metrics["videos"]
    note = f"As printed in the papers, on the test split of {papers:,}."
    if here != papers or metrics["split"] != "test":
        note += f" This run scored {here:,} of its {metrics['split']} split, so the scores are not of the same videos."
    return note
