"""Captioning alone: a caption for every test video, with attention that is a distribution over its rows."""

from __future__ import annotations

import pytest

from storage.results import read_captions
from tests.tasks.toy_run import ToyRun


def test_every_test_video_gets_one_caption_of_known_words(toy: ToyRun) -> None:
    rows = read_captions(toy.captions().folder)
    assert len(rows) == 4 and len({row.video_id for row in rows}) == 4
    for row in rows:
        assert "<" not in row.caption and row.log_prob < 0
        assert row.attention is not None and len(row.attention) == len(row.caption.split())
        assert all(sum(word) == pytest.approx(1, abs=0.01) and len(word) == 4 for word in row.attention)


def test_the_search_is_part_of_the_key(toy: ToyRun) -> None:
    assert toy.captions(width=1).ref.key != toy.captions(width=3).ref.key
