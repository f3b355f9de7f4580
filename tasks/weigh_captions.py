"""Weigh captions by METEOR: each training caption against the others of its video, some minutes of Java.

The quick weights (CIDEr-D, BLEU-4, ROUGE-L) come with the text tables. METEOR's depend on the words of the training captions
alone. Videos are scored in blocks that are written one by one, so a kill costs one block."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.metrics.java import JavaFailed
from models.metrics.meteor import shared_meteor
from storage.catalogue import Catalogue
from storage.errors import BadInput, LongtakeError
from storage.files.atomic import replacing
from storage.files.hashing import digest_rows
from storage.options import Options
from storage.records import ArtifactRef
from storage.text.references import EOS_COUNTS, split_key, tokenise
from storage.text.tables import Origin, caption_id, write_weight_table
from tasks.framework.progress import progress_bar
from tasks.framework.stage import StageContext, StageResult, stage
from tasks.prepare_text import caption_rows

_BLOCK = 1000  # captions, some seconds of Java: what a kill can cost; never changes the result

_Caption = tuple[str, int, str]
"""video id, caption index, tokens joined by blanks"""


class WeighingOptions(Options):
    """Which slow weights the training captions get besides CIDEr-D, BLEU-4 and ROUGE-L."""

    meteor: bool = False
    """METEOR of each caption against the others of its video; needs Java and some minutes"""


@stage(version=1)
def weigh_captions(context: StageContext, options: WeighingOptions, captions: ArtifactRef) -> StageResult:
    found = caption_rows(Catalogue(context.path(captions), context.data), "train")
    ids, indices, tokens = [row[0] for row in found], [row[1] for row in found], tokenise(row[3] for row in found)
    origin = Origin(None, split_key(ids, indices, tokens), EOS_COUNTS)
    rows = sorted((id, index, " ".join(words)) for id, index, words in zip(ids, indices, tokens, strict=True) if words)
    if not rows:
        raise BadInput("the training split has no captions to weigh; a data set needs videos with captions in 'train'")
    weights = np.concatenate(list(_weights(context.folder, rows)))
    names = [caption_id(id, index) for id, index, _ in rows]
    write_weight_table(context.folder / "weights.parquet", names, {"meteor": weights}, origin)
    for path in context.folder.glob("block-*.npy"):
        path.unlink()
    return StageResult(len(rows), {"captions": len(rows), "alone": int(np.isnan(weights).sum())})


def _weights(folder: Path, rows: list[_Caption]) -> Iterator[NDArray[np.float64]]:
    """The weights of the rows, block by block; blocks that an earlier run finished are read."""
    try:
        with shared_meteor() as meteor, progress_bar("weighing captions by METEOR", len(rows), "captions") as bar:
            for block in _blocks(rows):
                path = folder / f"block-{digest_rows((id, str(index), words) for id, index, words in block)}.npy"
                if not path.exists():
                    videos = ([row[2] for row in video] for _, video in groupby(block, itemgetter(0)))
                    with replacing(path) as temp, temp.open("wb") as file:
                        np.save(file, np.array(meteor.leave_one_out(videos)), allow_pickle=False)
                yield np.load(path, allow_pickle=False)
                bar.advance(len(block))
    except JavaFailed as error:
        remedy = "what is done is kept, run the same command to go on; weights by cider_d, bleu_4 and rouge_l need no Java"
        raise LongtakeError(f"captions cannot be weighed by METEOR: {error}; {remedy}") from error


def _blocks(rows: list[_Caption]) -> Iterator[list[_Caption]]:
    """All captions of some videos, at least _BLOCK of them in all blocks but the last."""
    block: list[_Caption] = []
    for _, video in groupby(rows, itemgetter(0)):
        block += video
        if len(block) >= _BLOCK:
            yield block
            block = []
    if block:
        yield block
