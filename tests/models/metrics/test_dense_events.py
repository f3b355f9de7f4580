"""densevid_eval's scores: which references a captioned event is compared with, and what is averaged over what."""

from __future__ import annotations

import pytest

from models.metrics.corpus import score_corpus
from models.metrics.dense_events import Event, dense_scores, temporal_iou

SAID = "a man cuts bread"


def test_the_overlap_of_two_events_is_their_shared_part_of_both() -> None:
    assert temporal_iou(Event(0, 10, ""), Event(5, 15, "")) == pytest.approx(1 / 3)
    assert temporal_iou(Event(0, 10, ""), Event(0, 10, "")) == pytest.approx(1)
    assert temporal_iou(Event(0, 10, ""), Event(10, 20, "")) == 0
    assert temporal_iou(Event(0, 1, ""), Event(9, 10, "")) == 0  # far apart: no overlap, whatever lies between


def test_scores_are_those_of_a_case_made_by_hand() -> None:
    """Video x: one caption of 0 to 10 s. Of its references one has the same time, one overlaps by 6/10, one by 1/3. Video y: a
    caption that overlaps nothing. BLEU-1 by hand: precision of the pairs, as no caption is shorter than its reference."""
    predictions = {"x": [Event(0, 10, SAID)], "y": [Event(0, 5, "dogs run")]}
    references = {
        "x": [Event(0, 10, SAID), Event(0, 6, "a man eats"), Event(5, 15, "nothing fits"), Event(50, 60, SAID)],
        "y": [Event(20, 25, "dogs run")],
    }
    found = dense_scores(predictions, references, (0.3, 0.5, 0.9))
    # x at 0.3: pairs with three references, 4 + 2 + 0 of 12 words; at 0.5 with two, 6 of 8; at 0.9 with one, 4 of 4. y: nothing
    by_hand = {"0.3": (6 / 12 + 0) / 2, "0.5": (6 / 8 + 0) / 2, "0.9": (1 + 0) / 2}
    assert {tiou: found[tiou]["BLEU-1"] for tiou in by_hand} == pytest.approx(by_hand, abs=1e-6)
    assert found["mean"]["BLEU-1"] == pytest.approx(sum(by_hand.values()) / 3, abs=1e-6)
    # a video's pairs are a corpus of their own
    alone = score_corpus({"0": SAID, "1": SAID}, {"0": [SAID], "1": ["a man eats"]}).corpus
    for name in ("CIDEr", "ROUGE-L", "BLEU-4"):
        assert found["0.5"][name] == pytest.approx(alone[name] / 2)


def test_videos_without_a_caption_count_nothing_and_no_caption_is_an_error() -> None:
    one = {"x": [Event(0, 10, SAID)]}
    both = {"x": [Event(0, 10, SAID)], "z": [Event(0, 10, SAID)]}
    assert dense_scores(one, both) == dense_scores(one, one)
    with pytest.raises(ValueError, match="no captioned events"):
        dense_scores({}, both)
