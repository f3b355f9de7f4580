"""The tokenised captions of a data set: what training reads and evaluation compares with.

Beside them, for every split, its captions as rewards and caption weights compare them: whole, as token ids, EOS counted as the
last word. Training cuts long captions; scores never do."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.errors import BadInput, StorageError
from storage.files.atomic import write_json, write_parquet
from storage.files.hashing import digest_rows
from storage.records import SPLITS
from storage.text.ptb_tokenizer import ptb_tokenize
from storage.text.tables import Origin, write_reference_table
from storage.text.vocabulary import TextOptions, Vocabulary, content_words

EOS_COUNTS = True  # an unfinished caption must not score like a finished one; samples and references alike

_SCHEMA = pa.schema(
    {"video_id": "string", "n": "int32", "split": "string", "text": "string"}
    | {"tokens": pa.list_(pa.string()), "numbers": pa.list_(pa.int32())}
)


@dataclass(frozen=True)
class References:
    """The text tables in one folder: vocabulary, content words, tokenised captions."""

    folder: Path

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder / "vocabulary.json")

    @cached_property
    def table(self) -> pa.Table:
        path = self.folder / "captions.parquet"
        try:
            return pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"cannot read {path}: {error}; run with '--force prepare_text'") from error

    def origin(self, split: str) -> Origin:
        """What tables of this split must have been made of to be used with these captions and this vocabulary."""
        found = (self.table.schema.metadata or {}).get(split.encode())
        if found is None:
            raise StorageError(f"{self.folder} does not know its '{split}' captions; run with '--force prepare_text'")
        return Origin(self.vocabulary.key, found.decode(), EOS_COUNTS)

    @cached_property
    def tag_words(self) -> list[str]:
        """The content words of the training captions, most frequent first."""
        path = self.folder / "tag_words.json"
        try:
            return json.loads(path.read_bytes())["words"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"cannot read {path}: {error}; run with '--force prepare_text'") from error

    def sentences(self, split: str) -> dict[str, list[str]]:
        """video id -> its captions as space-separated tokens. A caption without a word ("...") takes no part."""
        return {id: [" ".join(tokens) for tokens in rows] for id, rows in self._grouped(split, "tokens").items()}

    def token_ids(self, split: str) -> dict[str, list[list[int]]]:
        """video id -> its captions as BOS w1 .. wn EOS. A caption without a word takes no part."""
        return self._grouped(split, "numbers")

    def caption_indices(self, split: str) -> dict[str, list[int]]:
        """video id -> the n of its captions, in the order of `token_ids`: with the video id the caption's id."""
        return self._grouped(split, "n")

    def last_words(self, split: str) -> set[str]:
        """The words that captions of a split end with; read as columns, since a split can have a million captions."""
        tokens = self._worded(split)["tokens"].combine_chunks()
        ends = pc.subtract(pc.cumulative_sum(pc.list_value_length(tokens)), 1)
        return set(tokens.flatten().take(ends).unique().to_pylist())

    def video_count(self, split: str) -> int:
        """How many videos of a split have a caption with a word."""
        return len(self._worded(split)["video_id"].unique())

    def texts(self, split: str) -> dict[str, list[str]]:
        """video id -> its captions as written."""
        return self._grouped(split, "text")

    def _worded(self, split: str) -> pa.Table:
        worded = pc.greater(pc.list_value_length(self.table["tokens"]), 0)
        return self.table.filter(pc.and_(pc.equal(self.table["split"], split), worded))

    def _grouped(self, split: str, column: str) -> dict[str, list]:
        table = self._worded(split)
        grouped: dict[str, list] = {}
        for id, value in zip(table["video_id"].to_pylist(), table[column].to_pylist(), strict=True):
            grouped.setdefault(id, []).append(value)
        return grouped


def write_references(folder: Path, rows: Iterable[tuple[str, int, str, str]], options: TextOptions) -> Vocabulary:
    """Tokenise (video id, n, split, text) rows and write the tables. Words come from the training split only."""
    found: list[Any] = list(rows)
    ids, caption_indices, splits, texts = ([row[column] for row in found] for column in range(4))
    tokens = tokenise(texts)
    training = [t for t, split in zip(tokens, splits, strict=True) if split == "train"]
    if not any(training):
        raise BadInput("the training split has no captions; a data set needs videos with captions in 'train'")
    vocabulary = Vocabulary.build(training, options.min_count)
    token_ids = [vocabulary.encode(t, options.max_words) for t in tokens]
    vocabulary.save(folder / "vocabulary.json")
    write_json(folder / "tag_words.json", {"words": content_words(training, options.min_count)})
    keys = {}
    for split in SPLITS:
        worded = [row for row, words in enumerate(tokens) if words and splits[row] == split]
        columns = [ids[row] for row in worded], [caption_indices[row] for row in worded]
        keys[split] = split_key(*columns, [tokens[row] for row in worded])
        sentences = [vocabulary.encode(tokens[row], len(tokens[row]))[1 : None if EOS_COUNTS else -1] for row in worded]
        origin = Origin(vocabulary.key, keys[split], EOS_COUNTS)
        write_reference_table(folder / f"references-{split}.parquet", *columns, sentences, origin)
    table = pa.table([ids, caption_indices, splits, texts, tokens, token_ids], schema=_SCHEMA.with_metadata(keys))
    write_parquet(folder / "captions.parquet", table)
    return vocabulary


def tokenise(texts: Iterable[str]) -> list[list[str]]:
    """The words of each caption. Equal words are one object: a large data set has millions of them."""
    known: dict[str, str] = {}
    return [[known.setdefault(word, word) for word in ptb_tokenize(text)] for text in texts]


def split_key(video_ids: Sequence[str], caption_indices: Sequence[int], tokens: Sequence[Sequence[str]]) -> str:
    """The hash of a split's captions, whatever order they come in; captions without words take no part."""
    rows = zip(video_ids, caption_indices, tokens, strict=True)
    worded = sorted((id, n, " ".join(words)) for id, n, words in rows if words)
    return digest_rows((id, str(n), words) for id, n, words in worded)
