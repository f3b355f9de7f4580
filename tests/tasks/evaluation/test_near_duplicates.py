"""Near duplicates among captioned videos: which pairs, and whether captions tell them apart."""

from __future__ import annotations

from storage.results import read_captions
from storage.text.references import References
from tasks.evaluation.near_duplicates import captioned_duplicates, pair_verdicts
from tasks.framework.feature_access import FeatureAccess
from tests.tasks.toy_run import ToyRun

TRUTH = {
    "a": ["a red circle moves left", "the red circle slides left"],
    "b": ["a blue square jumps up", "the blue square bounces"],
    "c": ["a green star spins", "the green star turns round"],
    "d": ["two dogs run in the snow", "dogs are running"],
}
PAIRS = [("a", "b"), ("c", "d")]


def test_captions_that_fit_their_own_video_tell_duplicates_apart():
    right = {id: texts[0] for id, texts in TRUTH.items()}
    assert pair_verdicts(PAIRS, right, TRUTH) == ["told apart", "told apart"]


def test_swapped_captions_are_mixed_up_and_equal_ones_the_same():
    predictions = {"a": TRUTH["b"][0], "b": TRUTH["a"][0], "c": "a star", "d": "a star"}
    assert pair_verdicts(PAIRS, predictions, TRUTH) == ["mixed up", "same caption"]


def test_a_caption_that_fits_neither_leaves_one_of_two():
    predictions = {"a": TRUTH["a"][0], "b": "nothing of the kind", "c": TRUTH["c"][0], "d": TRUTH["d"][0]}
    assert pair_verdicts(PAIRS, predictions, TRUTH) == ["one of two", "told apart"]


def test_pairs_are_the_closest_and_each_video_is_in_one_at_most(toy: ToyRun) -> None:
    features, captions = toy.features(), toy.captions()
    access = FeatureAccess.open(features.workspace, features.folder, ("scene",))
    predictions = {row.video_id: row.caption for row in read_captions(captions.folder)}
    truth = References(toy.text().folder).sentences("test")
    pairs = captioned_duplicates(access, "scene", predictions, truth, 12, "cpu")
    seen = [id for ids, _ in pairs for id in ids]
    assert len(seen) == len(set(seen)) == 4
    assert [distance for _, (distance, _) in pairs] == sorted(distance for _, (distance, _) in pairs)
    assert captioned_duplicates(access, "scene", predictions, truth, 0, "cpu") == []
