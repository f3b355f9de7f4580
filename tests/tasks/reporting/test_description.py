"""What pages say in words, and the curves that they draw."""

from __future__ import annotations

from tasks.compare_runs import differing
from tasks.reporting.description import published_note, random_weight_warnings
from tasks.reporting.frame_images import frames_per_video
from tasks.reporting.published_scores import BENCHMARKS
from tasks.reporting.training_curves import compared_curves, masking_curves, run_curves


def test_papers_scores_are_only_beside_runs_on_their_data_and_say_when_the_videos_differ():
    assert published_note("folder", {"videos": 10, "split": "test"}) == ""
    assert published_note("msvd", {"videos": 670, "split": "test"}) == "As printed in the papers, on the test split of 670."
    assert "This run scored 100 of its val split" in published_note("msvd", {"videos": 100, "split": "val"})
    best = {kind: max(row.scores["CIDEr"] for row in benchmark.rows) for kind, benchmark in BENCHMARKS.items()}
    assert best == {"msrvtt": 60.6, "msvd": 101.0, "coco": 121.1}


def test_only_features_from_random_weights_give_a_warning():
    assert random_weight_warnings({"a": {"random_weights": False}}) == []
    (warning,) = random_weight_warnings({"a": {"random_weights": False}, "b": {"random_weights": True}})
    assert "'b'" in warning and "random weights" in warning


def test_both_phases_have_curves_and_losses_of_several_terms_show_each():
    seeding = [{"epoch": 1, "total": 3.0, "xe": 2.0, "rebuild": 5.0, "val_cider": 0.5}, {"epoch": 2, "total": 2.0}]
    boosting = [{"epoch": 0, "val_cider": 0.6}, {"epoch": 1, "reward": 1.5, "entropy": 0.7, "warning": "x", "total": 1.0}]
    curves = {curve.title: curve.series for curve in run_curves({"seeding": seeding, "boosting": boosting})}
    assert curves["Seeding: loss"]["reconstruction"] == [(1, 5.0)]
    assert curves["Seeding: loss"]["all together"] == [(1, 3.0), (2, 2.0)]
    assert curves["Boosting: validation CIDEr"] == {"CIDEr": [(0, 60.0)]}
    assert curves["Boosting: entropy"] == {"nats per word": [(1, 0.7)]}
    both = {
        curve.title: list(curve.series) for curve in compared_curves({"A": {"seeding": seeding}, "B": {"boosting": boosting}})
    }
    assert both["Seeding: loss"] == ["A"] and both["Boosting: reward"] == ["B"]


def test_masked_attention_is_drawn_as_the_share_of_each_score_that_is_kept():
    assert masking_curves({}) == []
    metrics = {"attention_masking": {"shares": [0.0, 0.5], "CIDEr": [2.0, 1.5], "BLEU-4": [0.0, 0.0], "note": "x"}}
    (curve,) = masking_curves(metrics)
    both = masking_curves({"attention_masking": metrics["attention_masking"] | {"modules": {"frames": {"CIDEr": [2.0, 1.0]}}}})
    assert both[0] == curve and both[1].title.endswith("over frames alone") and both[1].series == {"CIDEr": [(0, 100), (50, 50)]}
    assert curve.series == {"CIDEr": [(0.0, 100.0), (50.0, 75.0)]}


def test_thousands_of_videos_have_fewer_frames_each():
    assert [frames_per_video(videos, 8) for videos in (0, 60, 1500, 3000, 5000, 100_000)] == [8, 8, 8, 4, 3, 3]
    assert frames_per_video(10, 2) == 2


def test_settings_that_differ_are_found_at_any_depth():
    first = {"name": "a", "decoding": {"width": 1, "n": 1}, "features": {"x": {"on": True}}, "boosting": None}
    second = {"name": "b", "decoding": {"width": 5, "n": 1}, "features": {"y": {"on": True}}, "boosting": {"epochs": 3}}
    rows = dict(differing([first, second]))
    assert rows == {
        "decoding.width": ["1", "5"],
        "features.x.on": ["true", None],
        "features.y.on": [None, "true"],
        "boosting": ["none", None],
        "boosting.epochs": [None, "3"],
    }
