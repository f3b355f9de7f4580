"""The vocabulary of a training split: words and token ids; and the content words that a tagger learns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from pydantic import Field

from storage.errors import BadInput, StorageError
from storage.files.atomic import write_json
from storage.files.hashing import digest
from storage.options import Options

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")

# Function words and auxiliaries carry nothing that can be seen: they are no targets for "video to words".
# "up" and "down" are missing on purpose: directions can be seen.
FUNCTION_WORDS = frozenset(
    """a an the this that these those some any each every another other both all no not n't of in on at to from by with
    without into onto over under near around through across along behind beside between for as and or but so if then while when
    where who which what there here it its he she they them his her their him we us our you your i my me is are was were be been
    being am do does did doing done has have had having can could will would shall should may might must 's 're 've 'll 'd 'm
    something someone somebody very just also too than out off about after before again""".split()  # noqa: SIM905
)


class TextOptions(Options):
    """How captions become token ids."""

    min_count: int = Field(3, ge=1)
    """words seen fewer times in the training captions become <unk>"""
    max_words: int = Field(30, ge=1)
    """longer captions are cut to this many words"""


@dataclass(frozen=True)
class Vocabulary:
    """All words; a word's index is its token id. The first four are the special tokens."""

    words: tuple[str, ...]

    @classmethod
    def build(cls, sentences: Iterable[Sequence[str]], min_count: int) -> Vocabulary:
        """Words in order of frequency, then alphabet, so that equal captions give equal token ids."""
        counts = Counter(word for sentence in sentences for word in sentence)
        wanted = (w for w, n in counts.items() if n >= min_count and w not in SPECIAL_TOKENS)
        kept = sorted(wanted, key=lambda w: (-counts[w], w))
        if not kept:
            remedy = "lower text.min_count or add captions"
            raise BadInput(f"no word occurs {min_count} times in the training captions; {remedy}")
        return cls((*SPECIAL_TOKENS, *kept))

    @cached_property
    def token_ids(self) -> dict[str, int]:
        return {word: token_id for token_id, word in enumerate(self.words)}

    @cached_property
    def key(self) -> str:
        return digest(list(self.words))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Sequence[str], max_words: int) -> list[int]:
        """BOS w1 .. wn EOS. A caption may contain the text "<eos>": that is not the end of a sentence."""
        known = self.token_ids
        return [BOS, *(UNK if t in SPECIAL_TOKENS else known.get(t, UNK) for t in tokens[:max_words]), EOS]

    def decode(self, token_ids: Iterable[int]) -> list[str]:
        """The words up to EOS, without special tokens."""
        sentence = takewhile(lambda token_id: token_id != EOS, token_ids)
        return [self.words[token_id] for token_id in sentence if token_id > UNK]

    def save(self, path: Path) -> None:
        write_json(path, {"words": list(self.words), "key": self.key})

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        try:
            data = json.loads(path.read_bytes())
            vocabulary = cls(tuple(data["words"]))
            if vocabulary.key != data["key"]:
                raise ValueError("its words do not match its key")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"cannot read {path}: {error}; run with '--force prepare_text'") from error
        return vocabulary


def content_words(sentences: Iterable[Sequence[str]], min_count: int) -> list[str]:
    """The words that are not function words, most frequent first: what "video to words" can learn (GL-RG)."""
    counts = Counter(word for sentence in sentences for word in sentence if word not in FUNCTION_WORDS)
    return sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
