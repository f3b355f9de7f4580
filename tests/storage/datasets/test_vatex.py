"""VATEX's English captions, as a toy."""

import json
from collections import Counter

import pytest

from storage.datasets.vatex import VatexOptions, read_vatex
from storage.errors import BadInput


def test_each_file_is_a_split_and_clips_go_by_their_id(tmp_path):
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "Qld1cn-lLxk_000041_000051.mp4").touch()
    train = [{"videoID": "Qld1cn-lLxk_000041_000051", "enCap": ["A dog runs.", "Ein"], "chCap": ["x"]}, {"videoID": 3}, "no"]
    (tmp_path / "vatex_training_v1.0.json").write_text(json.dumps(train))
    test = [{"videoID": "-abc_000001_000011", "enCap": ["A man."]}]
    (tmp_path / "vatex_public_test_english_v1.1.json").write_text(json.dumps(test))
    dataset = read_vatex(VatexOptions(), tmp_path)
    found = [(v.id, v.source, v.split) for v in dataset.videos]
    assert found[1] == ("Qld1cn-lLxk_000041_000051", "clips/Qld1cn-lLxk_000041_000051.mp4", "train")
    assert found[0] == ("-abc_000001_000011", None, "test")
    assert [c.text for c in dataset.captions] == ["A man.", "A dog runs.", "Ein"]
    assert Counter(p.kind for p in dataset.problems) == {"malformed": 2, "no_video": 1, "split_counts": 1}


def test_an_object_instead_of_a_list_is_bad_input(tmp_path):
    (tmp_path / "vatex_training_v1.0.json").write_text("{}")
    with pytest.raises(BadInput, match="found a JSON object; expected a list of objects with 'videoID'"):
        read_vatex(VatexOptions(), tmp_path)
    (tmp_path / "vatex_training_v1.0.json").unlink()
    with pytest.raises(BadInput, match=r"looked for vatex_training_v1\.0\.json"):
        read_vatex(VatexOptions(), tmp_path)
