"""How varied captions (tokenised already) are: GLD's UniCap and AvgLen, the words in use, the copies of training captions."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Diversity:
    """What can be told of captions without looking at any reference."""

    unique: int  # UniCap: how many different captions there are
    length: float  # AvgLen: words per caption, on average; an empty caption has none
    words: int  # how many different words are used
    copied: float | None  # share of captions that are captions of the training split; None if that is not known

    def named(self) -> dict[str, float]:
        """The figures that are known, by the names they are reported under."""
        known = {"UniCap": self.unique, "AvgLen": self.length, "Vocabulary": self.words}
        return known if self.copied is None else known | {"Copied": self.copied}


def diversity(captions: Collection[str], training: Collection[str] | None = None) -> Diversity:
    """Captions of a split and, for the share of copies, those of the training split."""
    if not captions:
        raise ValueError("there are no captions to look at")
    cut = [tuple(caption.split()) for caption in captions]
    copied = None
    if training is not None:
        wanted = set(cut) - {()}  # an empty caption copies nothing
        seen = wanted.intersection(tuple(text.split()) for text in training)
        copied = sum(words in seen for words in cut) / len(cut)
    different = {word for words in cut for word in words}
    return Diversity(len(set(cut)), sum(map(len, cut)) / len(cut), len(different), copied)
