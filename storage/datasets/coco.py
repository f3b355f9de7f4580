"""COCO captions in Karpathy's split: `dataset_coco.json`. An image is a one-frame video."""

from pathlib import Path
from typing import Literal

from storage.datasets.annotations import find_annotation, no_annotations
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName
from storage.datasets.karpathy import add_images
from storage.options import Options
from storage.records import Split

FILE = "dataset_coco.json"
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
    add_images(builder, path, options.restval == "train")
    rest = 0 if options.restval == "train" else RESTVAL
    builder.check_counts({**SIZES, "train": SIZES["train"] - rest})
    return builder.finish()
