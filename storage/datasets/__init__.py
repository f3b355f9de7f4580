"""The data sets that Longtake reads: one table of readers, one union of their options."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from storage.datasets import activitynet, coco, flickr, msrvtt, vatex
from storage.datasets.activitynet import ActivityNetOptions, read_activitynet
from storage.datasets.annotations import TABLE_SUFFIXES, find_annotation, searched_places
from storage.datasets.coco import CocoOptions, read_coco
from storage.datasets.dataset import Dataset, TrainShareOptions, with_train_share
from storage.datasets.demo import DemoOptions, read_demo
from storage.datasets.flickr import Flickr8kOptions, Flickr30kOptions, read_flickr8k, read_flickr30k
from storage.datasets.folder import FolderOptions, read_folder
from storage.datasets.msrvtt import MsrvttOptions, read_msrvtt
from storage.datasets.msvd import SENTENCES, MsvdOptions, find_corpora, read_msvd
from storage.datasets.user_files import UserFilesOptions, read_user_files
from storage.datasets.vatex import VatexOptions, read_vatex
from storage.datasets.videos import VideosOptions, read_videos
from storage.errors import BadInput

_Videos = MsvdOptions | MsrvttOptions | ActivityNetOptions | VatexOptions
_Photos = CocoOptions | Flickr8kOptions | Flickr30kOptions
_Any = _Videos | _Photos | FolderOptions | DemoOptions | VideosOptions
DatasetOptions = Annotated[_Any, Field(discriminator="kind")]

READERS: dict[str, Callable[[Any, Path], Dataset]] = {
    **{"msvd": read_msvd, "msrvtt": read_msrvtt, "activitynet": read_activitynet, "vatex": read_vatex},
    **{"coco": read_coco, "flickr8k": read_flickr8k, "flickr30k": read_flickr30k},
    **{"folder": read_folder, "videos": read_videos, "demo": read_demo},
}
_MARKS = {
    **{"msvd": SENTENCES.values(), "msrvtt": msrvtt.FILES, "activitynet": activitynet.FILES, "vatex": vatex.FILES.values()},
    **{"coco": (coco.FILE,), "flickr8k": (flickr.TOKENS, flickr.FILE_8K), "flickr30k": (flickr.FILE_30K,)},
}


def read_dataset(options: DatasetOptions | UserFilesOptions, root: Path) -> Dataset:
    """The data set in `root`, read by the reader of its kind. The garbage collector is paused meanwhile: it takes nearly
    half of the time to find no cycle among a million captions."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        if isinstance(options, UserFilesOptions):  # no recipe can name it
            return read_user_files(options, root)
        dataset = READERS[options.kind](options, root)
        share = options.train_share if isinstance(options, TrainShareOptions) else 1.0
        return dataset if share == 1 else with_train_share(dataset, share)
    finally:
        if was_on:
            gc.enable()


def detect_kind(root: Path) -> str:
    """The kind of data set that a folder looks like, by its annotation files. A demo world is a 'folder' as well."""
    if not root.is_dir():
        raise BadInput(f"the data folder {root} does not exist; pass the data folder with --data")
    kinds = [kind for kind, names in _MARKS.items() if any(find_annotation(root, name) for name in names)]
    if "msvd" not in kinds and find_corpora(root):
        kinds.append("msvd")
    if len(kinds) > 1:
        raise BadInput(f"{root} looks like {' and '.join(kinds)}; say which with dataset.kind")
    if kinds:
        return kinds[0]
    if any(path.suffix.lower() in TABLE_SUFFIXES for path in root.iterdir() if path.is_file()):
        return "folder"
    names = [name for marks in _MARKS.values() for name in marks]
    tables = [f"any {suffix}" for suffix in TABLE_SUFFIXES]
    raise BadInput(f"no captions; {searched_places(root, [*names, *tables])}; add one of them or pass another --data")
