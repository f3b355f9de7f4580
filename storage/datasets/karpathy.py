"""Karpathy's JSON of a photo data set (`dataset_coco.json`, `dataset_flickr8k.json`, `dataset_flickr30k.json`)."""

from pathlib import Path
from typing import Any

from storage.datasets.annotations import list_in, parse_split, read_json
from storage.datasets.dataset import DatasetBuilder
from storage.records import Split, VideoRecord

EXPECTED = "an object with the list 'images' (filename, filepath, cocoid, split, sentences)"


def add_images(builder: DatasetBuilder, path: Path, restval: bool = True) -> None:
    """Add the images of the file. They are found as `<filepath>/<filename>`, or by their file name anywhere below the root; those
    of the split 'restval' are for training, or left out."""
    known = set(builder.paths)
    for index, entry in enumerate(list_in(read_json(builder.opened(path), EXPECTED), "images", path, EXPECTED)):
        where = f"{path.name}:images[{index}]"
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            builder.report(where, "malformed", "no 'filename' with text in it; left out", where, True)
        elif restval or entry.get("split") != "restval":
            _add_image(builder, entry, name, known, where)


def _add_image(builder: DatasetBuilder, entry: dict[str, Any], name: str, known: set[str], where: str) -> None:
    # cocoid rather than the file's stem: precomputed features and coco-caption's own files are keyed by it
    number = entry.get("cocoid")
    stem = name.rpartition(".")[0] or name
    image_id = str(number) if type(number) is int else stem
    split: Split | None = "train" if entry.get("split") == "restval" else parse_split(entry.get("split"))
    sentences = entry.get("sentences", [])
    if split is None:
        reason = f"split {entry.get('split')!r:.80}; expected train, restval, val or test"
        builder.report(image_id, "bad_split", reason, where, True)
        return
    if not isinstance(sentences, list):
        builder.report(image_id, "malformed", "'sentences' is not a list; left out", where, True)
        return
    path = f"{entry.get('filepath')}/{name}"
    source = path if path in known else builder.find_file(stem)
    if builder.add_video(VideoRecord(image_id, source, split), where):
        for sentence in sentences:
            builder.add_caption(image_id, _text(sentence), where)


def _text(sentence: Any) -> Any:
    """The sentence as it was typed, or its tokens where a copy of the file has nothing else."""
    if not isinstance(sentence, dict):
        return sentence
    if "raw" not in sentence and isinstance(sentence.get("tokens"), list):
        return " ".join(str(token) for token in sentence["tokens"])
    return sentence.get("raw")
