"""Warnings about captions that no score shows plainly: the same for most videos, without a word, or no whole sentences. Each
says what the likely cause is and which setting to change."""

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from storage.results import read_captions, read_jsonl
from storage.text.references import References

FEW_STEPS, FEW_VIDEOS, TOO_FEW_VIDEOS = 1000, 200, 20
"""below these, training was short, the videos were few, and so few that no setting makes up for it"""
_MANY = 0.2  # share of captions that must be broken before it is a warning


def run_warnings(recipe: Mapping[str, Any], captions: Path, text: Path, captioner: Path) -> list[str]:
    """What is suspicious about the captions of a run, from the folders of its captions, its texts and its captioner."""
    references = References(text)
    captioned = {row.video_id: row.caption for row in read_captions(captions)}
    found = caption_warnings(
        captioned,
        references.sentences(recipe["evaluation"]["split"]),
        references.last_words("train"),
        recipe["decoding"]["max_length"],
    )
    if not found:
        return []
    path, videos = captioner / "curves.jsonl", references.video_count("train")
    curve = read_jsonl(path) if path.is_file() else []
    validated = [point["val_cider"] for point in curve if "val_cider" in point]
    if validated and not any(validated):
        count = references.video_count("val")
        cause = f"CIDEr of the validation videos ({count}) was 0 in every epoch, so the last one was taken: "
        cause += "give more videos the split 'val', or raise seeding.epochs."
    else:
        cause = _likely_cause(curve[-1]["step"] if curve else 0, videos, recipe)
    return [f"{warning} {cause}" for warning in found]


def caption_warnings(
    captions: Mapping[str, str], references: Mapping[str, Collection[str]], ends: Collection[str], max_words: int
) -> list[str]:
    """captions, references: those of each video, tokenised; ends: the words that training captions end with."""
    count, found = len(captions), []
    if silent := sum(not caption.split() for caption in captions.values()):
        found.append(f"{silent} of {count} captions have no word.")
    common, repeated = Counter(captions.values()).most_common(1)[0] if captions else ("", 0)
    wrong = [id for id, caption in captions.items() if caption == common and caption not in references.get(id, ())]
    if common.split() and count > 1 and 2 * repeated > count and 2 * len(wrong) > repeated:
        found.append(f"{repeated} of {count} captions are the same, '{common}', and most of these videos have no such reference.")
    broken = [caption for caption in captions.values() if (words := caption.split()) and _is_broken(words, ends, max_words)]
    if len(broken) > _MANY * count:
        found.append(f"{len(broken)} of {count} captions end in mid-sentence or repeat a word, such as '{broken[0]}'.")
    return found


def _is_broken(words: list[str], ends: Collection[str], max_words: int) -> bool:
    """Whether a caption ends with a word that ends no training caption, or where it had to, or has a word twice in a row."""
    return words[-1] not in ends or len(words) >= max_words or any(a == b for a, b in pairwise(words))


def _likely_cause(steps: int, videos: int, recipe: Mapping[str, Any]) -> str:
    if videos < TOO_FEW_VIDEOS:  # 8 of them captioned the same after 150 epochs
        return f"{videos} training videos are too few to learn from: more of them help, other settings hardly."
    if steps and steps < FEW_STEPS:
        seeding = recipe["seeding"]
        size, epochs, patience = (seeding.get(name) for name in ("batch_size", "epochs", "patience"))
        which = f"seeding.epochs (now {epochs}) and seeding.patience ({patience}), or lower seeding.batch_size ({size})"
        cause = f"Likely it was trained too little, for {steps} steps: raise {which}"
    else:
        cause = "The report's curves show whether training still improved when it ended: if so, raise seeding.epochs"
    return f"{cause}; {videos} training videos are few: more of them help most." if videos < FEW_VIDEOS else f"{cause}."
