"""MSR-VTT's annotation files, whole and in parts, as toys."""

import json
from collections import Counter
from pathlib import Path

import pytest

from storage.datasets.msrvtt import MsrvttOptions, read_msrvtt
from storage.errors import BadInput


def video(name: str, split: str) -> dict:
    return {"video_id": name, "split": split, "start time": 10.0, "end time": 20.0, "url": "u", "category": 1}


def sentence(name: str, number: int, text: str) -> dict:
    return {"video_id": name, "sen_id": number, "caption": text}


def write(path: Path, videos: list, sentences: list) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"info": {}, "videos": videos, "sentences": sentences}))


TRAIN_VAL = (
    [video("video0", "train"), video("video1", "validate")],
    [sentence("video0", 7, "last"), sentence("video1", 1, "b"), sentence("video0", 2, "first"), sentence("video0", 3, "first")],
)
TEST = ([video("video2", "test")], [sentence("video2", 9, "c")])


def test_files_are_merged_and_captions_follow_sen_id(tmp_path):
    write(tmp_path / "annotations/train_val_videodatainfo.json", *TRAIN_VAL)
    write(tmp_path / "test_videodatainfo.json", *TEST)
    (tmp_path / "TrainValVideo").mkdir()
    (tmp_path / "TrainValVideo/video0.mp4").touch()
    dataset = read_msrvtt(MsrvttOptions(), tmp_path)
    assert [(v.id, v.source, v.split, v.segment) for v in dataset.videos] == [
        ("video0", "TrainValVideo/video0.mp4", "train", None),
        ("video1", None, "val", None),
        ("video2", None, "test", None),
    ]
    assert [c.text for c in dataset.captions] == ["first", "first", "last", "b", "c"]
    assert Counter(p.kind for p in dataset.problems) == {"no_video": 2, "split_counts": 1}
    assert "1/1/1" in next(p.reason for p in dataset.problems if p.kind == "split_counts")


def test_a_file_that_repeats_another_changes_nothing(tmp_path):
    write(tmp_path / "train_val_videodatainfo.json", *TRAIN_VAL)
    write(tmp_path / "test_videodatainfo.json", *TEST)
    once = read_msrvtt(MsrvttOptions(), tmp_path)
    write(tmp_path / "MSRVTT_data.json", TRAIN_VAL[0] + TEST[0], TRAIN_VAL[1] + TEST[1])
    twice = read_msrvtt(MsrvttOptions(), tmp_path)
    assert (twice.videos, twice.captions, twice.problems) == (once.videos, once.captions, once.problems)
    assert len(twice.annotations) == 3


def test_bad_entries_are_reported_one_by_one(tmp_path):
    videos = [video("video0", "train"), video("video0", "test"), video("../v", "train"), video("video3", "public"), {"id": 5}]
    sentences = [sentence("video0", 1, "a"), sentence("video0", 1, "a"), sentence("video9", 2, "b"), sentence("video9", 3, "c")]
    write(
        tmp_path / "videodatainfo.json", [*videos, "x"], [*sentences, {"caption": "d"}, {"video_id": "video0", "caption": None}]
    )
    dataset = read_msrvtt(MsrvttOptions(), tmp_path)
    assert [(v.id, v.split) for v in dataset.videos] == [("video0", "train")]
    assert [c.text for c in dataset.captions] == ["a"]
    assert Counter(p.kind for p in dataset.problems) == {
        "duplicate_video": 1,
        "unsafe_id": 1,
        "bad_split": 1,
        "malformed": 4,
        "duplicate_caption": 1,
        "no_video": 2,
        "split_counts": 1,
    }
    ghost = next(p for p in dataset.problems if p.item == "video9")
    assert ghost.quarantined and ghost.reason.startswith("2 captions")


def test_malformed_json_names_file_line_column_and_what_was_expected(tmp_path):
    (tmp_path / "videodatainfo.json").write_text('{"videos": [],\n "sentences": [}')
    with pytest.raises(BadInput, match=r"videodatainfo\.json, line 2, column 16: .*expected an object with the lists"):
        read_msrvtt(MsrvttOptions(), tmp_path)
    (tmp_path / "videodatainfo.json").write_text('{"videos": 3}')
    with pytest.raises(BadInput, match="'videos' is a JSON number; expected"):
        read_msrvtt(MsrvttOptions(), tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"videos": ' + "9" * 5000 + "}", "", "[]", "\x00"])
def test_hostile_json_is_bad_input_and_no_crash(tmp_path, text):
    (tmp_path / "videodatainfo.json").write_text(text)
    with pytest.raises(BadInput, match=r"videodatainfo\.json, line 1"):
        read_msrvtt(MsrvttOptions(), tmp_path)


def test_bytes_that_are_not_utf8_are_placed(tmp_path):
    (tmp_path / "videodatainfo.json").write_bytes(b'{"videos":\n ["\xff"]}')
    with pytest.raises(BadInput, match=r"line 2, column 4: byte 0xff is not UTF-8"):
        read_msrvtt(MsrvttOptions(), tmp_path)
