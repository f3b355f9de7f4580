"""ActivityNet Captions: time stamps become segments, broken ones are repaired or reported."""

import json
from collections import Counter

import pytest

from storage.datasets.activitynet import ActivityNetOptions, read_activitynet
from storage.errors import BadInput


def entry(duration, times, sentences=None):
    texts = [f"s{i}" for i in range(len(times))] if sentences is None else sentences
    return {"duration": duration, "timestamps": times, "sentences": texts}


def write(root, **files):
    for name, data in files.items():
        (root / f"{name}.json").write_text(json.dumps(data))


def test_segments_have_unique_stable_ids_and_share_a_file(tmp_path):
    write(
        tmp_path,
        train={"v_a": entry(10, [[0, 4], [2.5, 10]])},
        val_1={"v_b": entry(8, [[0, 8]])},
        val_2={"v_b": entry(8, [[1, 3], [4, 5]])},
    )
    (tmp_path / "v_a.mp4").touch()
    (tmp_path / "b.mkv").touch()
    dataset = read_activitynet(ActivityNetOptions(), tmp_path)
    assert [(v.id, v.source, v.split, v.segment) for v in dataset.videos] == [
        ("v_a_000", "v_a.mp4", "train", (0.0, 4.0)),
        ("v_a_001", "v_a.mp4", "train", (2.5, 10.0)),
        ("v_b_000", "b.mkv", "val", (0.0, 8.0)),
        ("v_b_b000", "b.mkv", "test", (1.0, 3.0)),
        ("v_b_b001", "b.mkv", "test", (4.0, 5.0)),
    ]
    assert [(c.video_id, c.text) for c in dataset.captions][:2] == [("v_a_000", "s0"), ("v_a_001", "s1")]
    assert dataset.problems == ()


@pytest.mark.parametrize(("choice", "splits"), [("val", {"val": 2}), ("ignore", {"val": 1})])
def test_the_second_validation_file_can_be_val_or_left_out(tmp_path, choice, splits):
    write(tmp_path, val_1={"v_b": entry(8, [[0, 8]])}, val_2={"v_b": entry(8, [[1, 3]])})
    dataset = read_activitynet(ActivityNetOptions(val_2=choice), tmp_path)
    assert Counter(v.split for v in dataset.videos) == splits


def test_swapped_overlong_and_empty_segments_are_repaired_or_quarantined(tmp_path):
    times = [[5, 2], [8, 99], [3, 3], [11, 12], "soon", [1, 2]]
    write(tmp_path, train={"v_a": entry(10, times), "v_x": {"duration": 3}, "v_y": entry(9, [[0, 1], [1, 2]], ["only"])})
    dataset = read_activitynet(ActivityNetOptions(), tmp_path)
    assert {v.id: v.segment for v in dataset.videos} == {
        "v_a_000": (2.0, 5.0),
        "v_a_001": (8.0, 10.0),
        "v_a_005": (1.0, 2.0),
        "v_y_000": (0.0, 1.0),
    }
    found = [(p.kind, p.item, p.quarantined) for p in dataset.problems if p.kind not in ("missing_annotation", "no_video")]
    assert found == [
        ("bad_segment", "v_a_002", True),
        ("bad_segment", "v_a_003", True),
        ("bad_segment", "v_a_004", True),
        ("malformed", "v_x", True),
        ("malformed", "v_y", False),
        ("repaired_segment", "v_a_000", False),
        ("repaired_segment", "v_a_001", False),
    ]


def test_a_missing_video_is_reported_once_with_all_its_captions(tmp_path):
    write(tmp_path, train={"v_a": entry(10, [[0, 4], [4, 10]]), "../v": entry(5, [[0, 1]])}, val_1={"v_a": entry(10, [[0, 1]])})
    dataset = read_activitynet(ActivityNetOptions(), tmp_path)
    (missing,) = [p for p in dataset.problems if p.kind == "no_video"]
    assert (missing.item, missing.quarantined) == ("v_a", False)
    assert "2 captions" in missing.reason
    assert [p.kind for p in dataset.problems if p.quarantined] == ["unsafe_id"]


def test_a_list_instead_of_videos_is_bad_input(tmp_path):
    write(tmp_path, train=["v_a"])
    with pytest.raises(BadInput, match=r"train\.json, line 1, column 1: found a JSON list; expected an object of videos"):
        read_activitynet(ActivityNetOptions(), tmp_path)
