"""Files of captions in every form that people exchange, and what is said about those that are wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from storage.errors import BadInput
from storage.text.caption_readers import read_predictions, read_reference_file
from storage.text.caption_writers import CaptionLine, ScoredCaption, render_csv, render_jsonl

ROWS = [{"image_id": 7, "caption": "a ball"}, {"image_id": 8, "caption": "a box\u2028here"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        "\n".join(json.dumps({"video_id": str(row["image_id"]), "caption": row["caption"]}) for row in ROWS),
        json.dumps({"7": "a ball", "8": "a box\u2028here"}),
    ],
    ids=["coco results", "json lines", "object"],
)
def test_predictions_of_every_form_are_the_same(tmp_path: Path, text: str) -> None:
    path = tmp_path / "said.json"
    path.write_text(text, encoding="utf-8")
    assert read_predictions(path) == {"7": "a ball", "8": "a box\u2028here"}


@pytest.mark.parametrize(
    "data",
    [{"images": [], "annotations": [*ROWS, ROWS[0]]}, [*ROWS, ROWS[0]], {"7": ["a ball", "a ball"], "8": ["a box\u2028here"]}],
    ids=["coco annotations", "list", "object of lists"],
)
def test_references_of_every_form_are_the_same(tmp_path: Path, data: object) -> None:
    path = tmp_path / "truth.json"
    path.write_text(json.dumps(data))
    assert read_reference_file(path) == {"7": ["a ball", "a ball"], "8": ["a box\u2028here"]}


def test_captions_of_one_item_in_one_line_are_its_references(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    path.write_text('{"video_id": "a", "captions": ["x", "y"], "split": "test"}\n{"video_id": "b", "captions": []}\n')
    assert read_reference_file(path) == {"a": ["x", "y"]}
    with pytest.raises(BadInput, match="line 1: a second caption for 'a'"):
        read_predictions(path)


def test_byte_order_marks_windows_lines_and_gzip_change_nothing(tmp_path: Path) -> None:
    lines = '{"image_id": 7, "caption": "a\\nball"}\r\n\r\n{"image_id": "8", "caption": ""}\r\n'.encode("utf-8-sig")
    for name, content in (("plain.jsonl", lines), ("packed.jsonl.gz", gzip.compress(lines))):
        (tmp_path / name).write_bytes(content)
        assert read_predictions(tmp_path / name) == {"7": "a\nball", "8": ""}
    (tmp_path / "torn.gz").write_bytes(gzip.compress(lines)[:-9])
    with pytest.raises(BadInput, match=r"torn\.gz is a damaged gzip file"):
        read_predictions(tmp_path / "torn.gz")


def test_whole_numbers_are_the_same_ids_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "said.json"
    path.write_text('[{"image_id": 7.0, "caption": "a"}, {"image_id": "8", "id": 3, "caption": "b"}]')
    assert read_predictions(path) == {"7": "a", "8": "b"}


def test_one_json_line_alone_is_one_prediction(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"video_id": "a", "caption": "a ball", "log_prob": -1.5}\n')
    assert read_predictions(path) == {"a": "a ball"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"video_id": "a", "caption": "x"}\n{"video_id": "b", "capt', "line 2, column"),
        ("[1, 2", "line 1"),
        ('[{"image_id": 1}]', "entry 0: expected an object with video_id or image_id and caption"),
        ('[{"image_id": 1, "caption": 5}]', "a caption must be text, not int"),
        ('{"video_id": "a", "caption": "x"}\n{"video_id": "a", "caption": "y"}', "line 2: a second caption for 'a'"),
        ('{"a": "x", "a": "y"}', "'a' stands twice in one object"),
        ('{"results": [{"image_id": 1, "caption": "x"}]}', "under 'annotations'"),
        ('[{"image_id": null, "caption": "x"}]', "entry 0: an id must be text or a whole number, not null"),
        ('[{"image_id": 1.5, "caption": "x"}]', "not float"),
        ('[{"image_id": 1, "caption": null}]', "a caption must be text, not null"),
        ('[{"image_id": 1, "caption": "x"}, 3]', "entry 1: expected an object"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "holds no captions"),
        ("3", "neither a list nor an object"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "said.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="said") as raised:
        read_predictions(path)
    assert words in str(raised.value)


def test_a_missing_file_and_one_that_is_not_text_are_explained(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        read_predictions(tmp_path / "none.json")
    (tmp_path / "film.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_predictions(tmp_path / "film.json")


def test_the_table_that_caption_writes_and_the_table_of_a_data_folder_speak_of_the_same_videos(tmp_path: Path) -> None:
    best = (ScoredCaption("a dog runs", -1.0), ScoredCaption("a dog", -2.0))
    lines = [
        CaptionLine("new/dog.mp4", 0, 2, True, "a dog runs", -1.0, best),
        CaptionLine("b.2.mov", 0, 2, True, "two, men", -1.0),
    ]
    (tmp_path / "made.csv").write_text(render_csv(lines))
    (tmp_path / "made.jsonl").write_text(render_jsonl(lines))
    (tmp_path / "captions.csv").write_text('video,caption\nclips/dog.mp4,a dog\ndog.mp4,"a dog\nsits"\nb.2,men\n')
    (tmp_path / "captions.tsv").write_text("video\tcaption\ndog\ta dog\n")
    expected = {"dog": "a dog runs", "b.2": "two, men"}
    assert read_predictions(tmp_path / "made.csv") == read_predictions(tmp_path / "made.jsonl") == expected
    assert read_reference_file(tmp_path / "captions.csv") == {"dog": ["a dog", "a dog\nsits"], "b.2": ["men"]}
    assert read_reference_file(tmp_path / "captions.tsv") == {"dog": ["a dog"]}


def test_a_table_without_the_columns_says_which_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,words\na,b\n")
    with pytest.raises(BadInput, match="the columns are name, words; expected one of video_id"):
        read_predictions(tmp_path / "a.csv")
