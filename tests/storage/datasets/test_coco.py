"""COCO in Karpathy's split, as a toy."""

import json
from collections import Counter

import pytest

from storage.datasets.coco import CocoOptions, read_coco
from storage.errors import BadInput


def image(number, split, *texts, **more):
    name = f"COCO_val2014_{number:012d}.jpg"
    sentences = [{"raw": text, "tokens": text.lower().split()} for text in texts]
    return {"filepath": "val2014", "filename": name, "cocoid": number, "split": split, "sentences": sentences, **more}


def write(root, *images):
    (root / "dataset_coco.json").write_text(json.dumps({"dataset": "coco", "images": list(images)}))


def test_images_are_one_frame_videos_called_by_their_cocoid(tmp_path):
    write(
        tmp_path, image(9, "train", "A man.\n", "A  man"), image(40, "restval", "b"), image(5, "val", "c"), image(6, "test", "d")
    )
    for path in ("val2014/COCO_val2014_000000000009.jpg", "elsewhere/COCO_val2014_000000000005.JPG"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).touch()
    dataset = read_coco(CocoOptions(), tmp_path)
    assert [(v.id, v.source, v.split, v.segment) for v in dataset.videos] == [
        ("40", None, "train", None),
        ("5", "elsewhere/COCO_val2014_000000000005.JPG", "val", None),
        ("6", None, "test", None),
        ("9", "val2014/COCO_val2014_000000000009.jpg", "train", None),
    ]
    assert [c.text for c in dataset.captions if c.video_id == "9"] == ["A man.", "A man"]
    assert Counter(p.kind for p in dataset.problems) == {"no_video": 2, "split_counts": 1}


def test_restval_can_be_left_out(tmp_path):
    write(tmp_path, image(1, "train", "a"), image(2, "restval", "b"))
    dataset = read_coco(CocoOptions(restval="ignore"), tmp_path)
    assert [v.id for v in dataset.videos] == ["1"]


def test_an_image_without_a_number_goes_by_its_stem_and_tokens_stand_in_for_text(tmp_path):
    write(tmp_path, {"filename": "flickr7.jpg", "imgid": 3, "split": "train", "sentences": [{"tokens": ["a", "dog"]}]})
    dataset = read_coco(CocoOptions(), tmp_path)
    assert [(c.video_id, c.text) for c in dataset.captions] == [("flickr7", "a dog")]


def test_a_source_never_leaves_the_folder_and_bad_entries_are_reported(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    (tmp_path / "secret.jpg").touch()
    evil = {"filepath": "..", "filename": "secret.jpg", "split": "train", "sentences": [{"raw": "x"}]}
    path = {"filepath": "", "filename": "../../etc/passwd", "split": "train", "sentences": [{"raw": "x"}]}
    write(root, evil, path, {"cocoid": 1}, image(2, "holdout", "b"), image(3, "train", sentences="no"), 7, image(3, "val", "c"))
    dataset = read_coco(CocoOptions(), root)
    assert [(v.id, v.source) for v in dataset.videos] == [("3", None), ("secret", None)]
    counts = Counter(p.kind for p in dataset.problems if p.quarantined)
    assert counts == {"unsafe_id": 1, "malformed": 3, "bad_split": 1}


def test_a_file_without_images_is_bad_input(tmp_path):
    (tmp_path / "dataset_coco.json").write_text("{}")
    with pytest.raises(BadInput, match="there is no 'images'; expected an object with the list 'images'"):
        read_coco(CocoOptions(), tmp_path)
