"""UniCap, AvgLen, words in use and copies, on captions that can be counted by hand."""

from __future__ import annotations

import pytest

from models.metrics.diversity import diversity

CAPTIONS = ["a red ball", "a red ball", "a box", "", "a  red ball "]


def test_captions_words_and_lengths_are_counted() -> None:
    found = diversity(CAPTIONS)
    assert (found.unique, found.length, found.words) == (3, pytest.approx(11 / 5), 4)
    assert found.copied is None and list(found.named()) == ["UniCap", "AvgLen", "Vocabulary"]


def test_copies_are_captions_that_stand_word_by_word_in_the_training_split() -> None:
    found = diversity(CAPTIONS, ["a red ball", "a box there", ""])
    assert found.copied == pytest.approx(3 / 5), "an empty caption copies nothing, part of a caption is no copy"
    assert found.named()["Copied"] == found.copied
    assert diversity(CAPTIONS, []).copied == 0


def test_no_captions_are_an_error() -> None:
    with pytest.raises(ValueError, match="no captions"):
        diversity([])
