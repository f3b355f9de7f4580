"""Flickr8k, as published (a token file and three lists) or as Karpathy's JSON, and Flickr30k as Karpathy's JSON. An image is a
one-frame video."""

from pathlib import Path
from typing import Literal

from storage.datasets.annotations import find_annotation, no_annotations, read_lines
from storage.datasets.dataset import Dataset, DatasetBuilder, DatasetName
from storage.datasets.karpathy import add_images
from storage.options import Options
from storage.records import Split, VideoRecord

TOKENS = "Flickr8k.token.txt"
LISTS: dict[Split, str] = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
FILE_8K, FILE_30K = "dataset_flickr8k.json", "dataset_flickr30k.json"
SIZES_8K: dict[Split, int] = {"train": 6000, "val": 1000, "test": 1000}
SIZES_30K: dict[Split, int] = {"train": 29_000, "val": 1014, "test": 1000}


class Flickr8kOptions(Options):
    """Flickr8k (8,000 photos in three splits, 5 captions each)."""

    kind: Literal["flickr8k"] = "flickr8k"
    """Which reader understands the data set."""
    name: DatasetName = "flickr8k"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""


class Flickr30kOptions(Options):
    """Flickr30k (31,014 photos, 5 captions each) in Karpathy's split."""

    kind: Literal["flickr30k"] = "flickr30k"
    """Which reader understands the data set."""
    name: DatasetName = "flickr30k"
    """What the data set is called in the workspace and in reports."""
    path: str | None = None
    """The data folder; --data overrides it."""


def read_flickr8k(options: Flickr8kOptions, root: Path) -> Dataset:
    """The published files, or Karpathy's where they are missing. The photos in none of the lists, 91 of them, are not used."""
    builder = DatasetBuilder(options.name, root)
    tokens = find_annotation(root, TOKENS)
    if tokens is not None:
        _add_splits(builder, root)
        _add_captions(builder, tokens)
    elif path := find_annotation(root, FILE_8K):
        add_images(builder, path)
    else:
        raise no_annotations("Flickr8k", root, [TOKENS, FILE_8K])
    builder.check_counts(SIZES_8K)
    return builder.finish()


def read_flickr30k(options: Flickr30kOptions, root: Path) -> Dataset:
    """Photos are found by their file name anywhere below root."""
    builder = DatasetBuilder(options.name, root)
    path = find_annotation(root, FILE_30K)
    if path is None:
        raise no_annotations("Flickr30k", root, [FILE_30K])
    add_images(builder, path)
    builder.check_counts(SIZES_30K)
    return builder.finish()


def _add_splits(builder: DatasetBuilder, root: Path) -> None:
    for split, name in LISTS.items():
        path = find_annotation(root, name)
        if path is None:
            builder.report(name, "missing_annotation", f"without this list there is no {split} split; put it beside {TOKENS}")
            continue
        for line, photo in read_lines(builder.opened(path)):
            stem = _stem(photo.strip())
            builder.add_video(VideoRecord(stem, builder.find_file(stem), split), f"{name}:{line}")


def _add_captions(builder: DatasetBuilder, tokens: Path) -> None:
    """Lines such as `1000268201_693b08cb0e.jpg#0<tab>A child in a pink dress .`"""
    unlisted: set[str] = set()
    for line, text in read_lines(builder.opened(tokens)):
        where = f"{tokens.name}:{line}"
        photo, tab, caption = text.partition("\t")
        stem = _stem(photo.rpartition("#")[0])
        if not tab or not stem:
            builder.report(where, "malformed", "expected a photo, '#', a number, a tab and a caption; left out", where, True)
        elif builder.split_of(stem):
            builder.add_caption(stem, caption, where)
        else:
            unlisted.add(stem)
    if unlisted:
        builder.report(
            tokens.name, "no_split", f"{len(unlisted)} photos with captions are in none of the lists; they are not used"
        )
    builder.leave_out(unlisted)


def _stem(photo: str) -> str:
    return photo.rpartition(".")[0] or photo
