"""Weigh captions by METEOR: each training caption against the others of its video, some minutes of Java.

The quick weights (CIDEr-D, BLEU-4, ROUGE-L) are made with the text tables. These depend on the words of the training captions
alone: another vocabulary or another test split costs nothing. Whole videos are scored in blocks that are written one by one, so
a kill costs one block."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.metrics.java import JavaFailed
from models.metrics.meteor import Meteor
from storage.catalogue import Catalogue
from storage.errors import BadInput, LongtakeError
from storage.files.atomic import write_bytes
from storage.files.hashing import digest_rows
from storage.options import Options
from storage.records import ArtifactRef
from storage.text.references import EOS_COUNTS, split_key, tokenise
from storage.text.tables import Origin, caption_id, write_weight_table
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.prepare_text import caption_rows

_BLOCK = 1000  # captions, some seconds of Java: what a kill can cost; never changes the result

Row = tuple[str, int, str]
"""video id, n, words apart by blanks"""


class WeighingOptions(Options):
    """Which slow weights the training captions get besides CIDEr-D, BLEU-4 and ROUGE-L."""

    meteor: bool = False
    """METEOR of each caption against the others of its video; needs Java and some minutes"""


@stage(version=1)
def weigh_captions(context: StageContext, options: WeighingOptions, captions: ArtifactRef) -> StageResult:
    found = caption_rows(Catalogue(context.path(captions), context.data), "train")
    ids, ns, words = [row[0] for row in found], [row[1] for row in found], tokenise(row[3] for row in found)
    origin = Origin(None, split_key(ids, ns, words), EOS_COUNTS)
    rows = sorted((id, n, " ".join(said)) for id, n, said in zip(ids, ns, words, strict=True) if said)
    if not rows:
        raise BadInput("the training split has no captions to weigh; a data set needs videos with captions in 'train'")
    weights = np.concatenate(list(_weights(context.folder, rows)))
    names = [caption_id(id, n) for id, n, _ in rows]
    write_weight_table(context.folder / "weights.parquet", names, {"meteor": weights}, origin)
    for path in context.folder.glob("block-*.npy"):
        path.unlink()
    return StageResult(len(rows), {"captions": len(rows), "alone": int(np.isnan(weights).sum())})


def _weights(folder: Path, rows: list[Row]) -> Iterator[NDArray[np.float64]]:
    """The weights of the rows, block by block; blocks that an earlier run finished are read."""
    meteor = Meteor()
    try:
        with progress_bar("weighing captions by METEOR", len(rows), "captions") as shown:
            for block in _blocks(rows):
                path = folder / f"block-{digest_rows((id, str(n), words) for id, n, words in block)}.npy"
                if not path.exists():
                    videos = ([row[2] for row in video] for _, video in groupby(block, itemgetter(0)))
                    _save(path, np.array(meteor.leave_one_out(videos)))
                yield np.load(path, allow_pickle=False)
                shown.advance(len(block))
    except JavaFailed as error:
        raise LongtakeError(
            f"captions cannot be weighed by METEOR: {error}; what is done is kept, run the same command to go on; "
            "weights by cider_d, bleu_4 and rouge_l need no Java"
        ) from error
    finally:
        meteor.close()


def _blocks(rows: list[Row]) -> Iterator[list[Row]]:
    """Whole videos, at least _BLOCK captions together but for the last."""
    block: list[Row] = []
    for _, video in groupby(rows, itemgetter(0)):
        block += video
        if len(block) >= _BLOCK:
            yield block
            block = []
    if block:
        yield block


def _save(path: Path, weights: NDArray[np.float64]) -> None:
    data = io.BytesIO()
    np.save(data, weights, allow_pickle=False)
    write_bytes(path, data.getvalue())
