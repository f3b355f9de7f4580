"""The text tables of a split as Parquet: references as token ids, document frequencies of n-grams, weights of captions.

Every table says in its metadata what it was made of: vocabulary, captions of the split, and whether the end of a sentence (EOS)
counts as a word. Token ids mean nothing under another vocabulary, and an idf nothing in another split: whoever reads a table
says what it is wanted for, and one that was made for something else is refused.

A caption is known by its id, video id and n, never by its place: captions without words take no part, so places shift."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.errors import Mismatch, StorageError
from storage.files.atomic import replacing

_HEADER = b"longtake-text-table-1"


def caption_id(video_id: str, n: int) -> str:
    return f"{video_id}#{n}"


@dataclass(frozen=True)
class Origin:
    """The vocabulary and captions that a table was computed from."""

    vocabulary: str | None
    """key of the vocabulary that numbers its words; None: made of the words themselves, good for any vocabulary"""
    split: str
    """hash of the split's captions: video ids, n and words"""
    eos: bool
    """whether EOS counts as the last word of every caption, here and so in whatever is compared with it"""

    def expect(self, wanted: Origin, path: Path) -> None:
        """Refuse a table that was made for something else, with both hashes and what to do."""
        remedy = "read it with the run it belongs to, or run again with '--force prepare_text'"
        if self.vocabulary not in (None, wanted.vocabulary):
            what = f"for vocabulary {self.vocabulary[:12]}, but {str(wanted.vocabulary)[:12]} is in use"
            raise Mismatch(f"{path} was made {what}; its token ids mean other words: {remedy}")
        if self.split != wanted.split:
            what = f"of captions {self.split[:12]}, but those of the split in use are {wanted.split[:12]}"
            raise Mismatch(f"{path} was made {what}; {remedy}")
        if self.vocabulary is not None and self.eos != wanted.eos:
            here, there = ("counts", "does not") if self.eos else ("does not count", "does")
            raise Mismatch(f"in {path} the end of a sentence {here} as a word, where it is used it {there}; {remedy}")


@dataclass(frozen=True)
class ReferenceTable:
    """The references of V videos as C captions of token ids, ending in EOS where that counts. Videos are sorted by id.

    Captions of video v: videos[v]:videos[v + 1]; tokens of caption c: starts[c]:starts[c + 1].
    caption_indices (C,) number the captions of a video."""

    video_ids: tuple[str, ...]
    videos: NDArray[np.int64]
    caption_indices: NDArray[np.int32]
    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]
    origin: Origin

    @property
    def caption_ids(self) -> list[str]:
        counts = np.diff(self.videos).tolist()
        row_video_ids = (id for id, count in zip(self.video_ids, counts, strict=True) for _ in range(count))
        return [caption_id(id, n) for id, n in zip(row_video_ids, self.caption_indices.tolist(), strict=True)]


@dataclass(frozen=True)
class FrequencyTable:
    """keys (K,) rising, counts (K,): how many of `videos` videos have the n-gram in a reference.

    A key is an n-gram of 1 to 4 token ids, each plus one in 16 bits, the first word highest."""

    keys: NDArray[np.uint64]
    counts: NDArray[np.int32]
    videos: int
    origin: Origin


@dataclass(frozen=True)
class WeightTable:
    """scores: name -> (C,) how well each caption agrees with the others of its video; NaN where it is the only one."""

    caption_ids: tuple[str, ...]
    scores: dict[str, NDArray[np.float64]]
    origin: Origin

    def by_caption(self, score: str) -> dict[str, float]:
        """caption id -> weight. A caption without others weighs as the others do on average: nothing is known against
        it. Where no caption has others, all weigh 1."""
        if score not in self.scores:
            raise Mismatch(f"there are no caption weights by '{score}' here; there are {', '.join(self.scores)}")
        weights = self.scores[score]
        known = ~np.isnan(weights)
        average = float(weights[known].mean()) if known.any() else 1.0
        return dict(zip(self.caption_ids, np.where(known, weights, average).tolist(), strict=True))

    def of_references(self, score: str, references: ReferenceTable) -> NDArray[np.float64]:
        """The weights of a reference table's captions, in its order: (C,)."""
        weights = self.by_caption(score)
        return np.array([weights[id] for id in references.caption_ids])


def write_reference_table(
    path: Path, video_ids: list[str], caption_indices: list[int], sentences: list[list[int]], origin: Origin
) -> None:
    """One row per caption, sorted by video id and n."""
    order = sorted(range(len(video_ids)), key=lambda row: (video_ids[row], caption_indices[row]))
    columns = {"video_id": pa.array(video_ids, pa.string()), "n": pa.array(caption_indices, pa.int32())}
    columns["tokens"] = pa.array(sentences, pa.list_(pa.int32()))
    _write(path, {name: column.take(pa.array(order, pa.int64())) for name, column in columns.items()}, origin)


def read_reference_table(path: Path, wanted: Origin) -> ReferenceTable:
    table, origin, _ = _read(path, wanted)
    row_video_ids = table["video_id"].to_pylist()
    firsts = [row for row, id in enumerate(row_video_ids) if row == 0 or row_video_ids[row - 1] != id]
    lists = table["tokens"].combine_chunks()
    lengths, tokens = (part.to_numpy(zero_copy_only=False) for part in (lists.value_lengths(), lists.flatten()))
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    videos = np.array([*firsts, len(row_video_ids)], np.int64)
    video_ids = tuple(row_video_ids[row] for row in firsts)
    return ReferenceTable(video_ids, videos, table["n"].to_numpy(), tokens, starts, origin)


def write_frequency_table(path: Path, keys: np.ndarray, counts: np.ndarray, videos: int, origin: Origin) -> None:
    """keys (K,) and counts (K,), as FrequencyTable has them."""
    _write(path, {"key": pa.array(keys, pa.uint64()), "count": pa.array(counts, pa.int32())}, origin, videos=videos)


def read_frequency_table(path: Path, wanted: Origin) -> FrequencyTable:
    table, origin, values = _read(path, wanted)
    return FrequencyTable(table["key"].to_numpy(), table["count"].to_numpy(), values["videos"], origin)


def write_weight_table(path: Path, caption_ids: list[str], scores: Mapping[str, np.ndarray], origin: Origin) -> None:
    """One row per caption; NaN (a caption without others) is null."""
    columns = {name: pa.array(weights, pa.float64(), mask=np.isnan(weights)) for name, weights in scores.items()}
    _write(path, {"caption_id": pa.array(caption_ids, pa.string()), **columns}, origin)


def read_weight_table(path: Path, wanted: Origin) -> WeightTable:
    table, origin, _ = _read(path, wanted)
    scores = {name: table[name].to_numpy() for name in table.column_names if name != "caption_id"}
    return WeightTable(tuple(table["caption_id"].to_pylist()), scores, origin)


def _write(path: Path, columns: Mapping[str, pa.Array], origin: Origin, **values: Any) -> None:
    table = pa.table(dict(columns)).replace_schema_metadata({_HEADER: json.dumps(asdict(origin) | values)})
    with replacing(path) as temp:
        # n-gram keys are sorted and all different: differences pack them far better than a dictionary
        packed = {"key": "DELTA_BINARY_PACKED"} if "key" in columns else None
        pq.write_table(table, temp, compression="zstd", use_dictionary=packed is None, column_encoding=packed)


def _read(path: Path, wanted: Origin) -> tuple[pa.Table, Origin, dict[str, Any]]:
    try:
        table = pq.read_table(path)
        values = json.loads((table.schema.metadata or {})[_HEADER])
        origin = Origin(values.pop("vocabulary"), values.pop("split"), values.pop("eos"))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        remedy = "run again with --force for the stage that wrote it"
        raise StorageError(f"cannot read {path}: {error}; {remedy}") from error
    origin.expect(wanted, path)
    return table, origin, values
