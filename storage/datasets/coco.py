"""COCO captions in Karpathy's split: `dataset_coco.json`. An image is a one-frame video."""

from pathlib import Path
from typing import Any, Literal

from storage.datasets.annotations import find_annotation, list_in, no_annotations, parse_split, read_json
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName
from storage.options import Options
from storage.records import Split, VideoRecord

FILE = "dataset_coco.json"
EXPECTED = "an object with the list 'images' (filename, filepath, cocoid, split, sentences)"
RESTVAL = 30_504
SIZES: dict[Split, int] = {"train": 82_783 + RESTVAL, "val": 5_000, "test": 5_000}


class CocoOptions(Options):
    """COCO captions (123,287 images, 5 captions each) in Karpathy's split."""

    kind: Literal["coco"] = "coco"
    """Which reader understands the data set."""
    name: DatasetName = "coco"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""
    restval: Literal["train", "ignore"] = "train"
    """Whether the 30,504 images of 'restval' are trained on, as papers do, or left out."""


def read_coco(options: CocoOptions, root: Path) -> Dataset:
    """Images are found as `<filepath>/<filename>`, or by their file name anywhere below root."""
    builder = DatasetBuilder(options.name, root)
    path = find_annotation(root, FILE)
    if path is None:
        raise no_annotations("COCO", root, [FILE])
    known = set(builder.paths)
    images = list_in(read_json(builder.opened(path), EXPECTED), "images", path, EXPECTED)
    for index, entry in enumerate(images):
        where = f"{FILE}:images[{index}]"
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            builder.report(where, "malformed", "no 'filename' with text in it; left out", where, True)
        elif options.restval == "train" or entry.get("split") != "restval":
            _add_image(builder, entry, name, known, where)
    rest = 0 if options.restval == "train" else RESTVAL
    builder.check_counts({**SIZES, "train": SIZES["train"] - rest})
    return builder.finish()


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
