"""Flickr8k as published and as Karpathy's JSON, Flickr30k, as toys."""

import json
from collections import Counter

import pytest

from storage.datasets.flickr import Flickr8kOptions, Flickr30kOptions, read_flickr8k, read_flickr30k
from storage.errors import BadInput


@pytest.fixture
def published(tmp_path):
    """Four photos: one in each list, one in none, as 91 of the real data set are."""
    text = tmp_path / "Flickr8k_text"
    text.mkdir()
    (tmp_path / "photos").mkdir()
    for name, split in (("a1", "train"), ("b2", "dev"), ("c3", "test")):
        (text / f"Flickr_8k.{split}Images.txt").write_text(f"{name}.jpg\n")
    lines = [f"{name}.jpg#{n}\tA photo , {n} of {name} ." for name in ("a1", "b2", "c3", "d4") for n in range(2)]
    (text / "Flickr8k.token.txt").write_text("\n".join([*lines, "e5.jpg.1#0\tNo such photo .", "no tab here"]) + "\n")
    for name in ("a1", "b2", "d4"):
        (tmp_path / "photos" / f"{name}.jpg").touch()
    return tmp_path


def test_the_lists_are_the_splits_and_the_token_file_has_the_captions(published):
    dataset = read_flickr8k(Flickr8kOptions(), published)
    assert [(v.id, v.source, v.split) for v in dataset.videos] == [
        ("a1", "photos/a1.jpg", "train"),
        ("b2", "photos/b2.jpg", "val"),
        ("c3", None, "test"),
    ]
    assert [c.text for c in dataset.captions if c.video_id == "a1"] == ["A photo , 0 of a1 .", "A photo , 1 of a1 ."]
    assert len(dataset.captions) == 6 and len(dataset.annotations) == 4


def test_photos_in_no_list_are_counted_once_and_cost_no_exit_code(published):
    problems = read_flickr8k(Flickr8kOptions(), published).problems
    kinds = {"no_split": 1, "no_video": 1, "malformed": 1, "split_counts": 1}
    assert Counter(p.kind for p in problems) == kinds
    assert [p.kind for p in problems if p.quarantined] == ["malformed"]
    assert next(p.reason for p in problems if p.kind == "no_split").startswith("2 photos with captions are in none of the lists")


def test_a_missing_list_is_said(published):
    (published / "Flickr8k_text" / "Flickr_8k.testImages.txt").unlink()
    dataset = read_flickr8k(Flickr8kOptions(), published)
    assert [v.id for v in dataset.videos] == ["a1", "b2"]
    assert "no test split" in next(p.reason for p in dataset.problems if p.kind == "missing_annotation")


@pytest.mark.parametrize(
    ("read", "options", "file"),
    [
        (read_flickr8k, Flickr8kOptions(), "dataset_flickr8k.json"),
        (read_flickr30k, Flickr30kOptions(), "dataset_flickr30k.json"),
    ],
)
def test_karpathys_json(tmp_path, read, options, file):
    entry = {"filename": "36979.jpg", "imgid": 0, "split": "val", "sentences": [{"raw": "Two men .", "tokens": ["two", "men"]}]}
    (tmp_path / file).write_text(json.dumps({"images": [entry], "dataset": options.kind}))
    (tmp_path / "36979.jpg").touch()
    dataset = read(options, tmp_path)
    assert [(v.id, v.source, v.split) for v in dataset.videos] == [("36979", "36979.jpg", "val")]
    assert [c.text for c in dataset.captions] == ["Two men ."] and [p.kind for p in dataset.problems] == ["split_counts"]


def test_without_annotations_it_says_what_was_looked_for(tmp_path):
    with pytest.raises(BadInput, match=r"looked for Flickr8k\.token\.txt, dataset_flickr8k\.json"):
        read_flickr8k(Flickr8kOptions(), tmp_path)
    with pytest.raises(BadInput, match=r"looked for dataset_flickr30k\.json"):
        read_flickr30k(Flickr30kOptions(), tmp_path)
