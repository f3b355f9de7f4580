"""The text stage alone: words come from the training split, and each split's key follows its own captions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.datasets import FolderOptions
from storage.errors import BadInput
from storage.references import References
from storage.vocabulary import TextOptions
from tasks.catalogue import catalogue
from tasks.prepare_text import prepare_text
from tests.conftest import TINY_WORLD


def captions_folder(root: Path, rows: list[tuple[str, str, str]]) -> Path:
    root.mkdir(exist_ok=True)
    lines = [json.dumps({"video": video, "split": split, "caption": text}) for video, split, text in rows]
    (root / "captions.jsonl").write_text("\n".join(lines))
    for video in {row[0] for row in rows}:
        (root / f"{video}.mp4").write_bytes(b"")
    return root


def text_of(alone, root: Path, options: TextOptions, dataset=None):
    data = alone(catalogue, dataset or FolderOptions(), root)
    return alone(prepare_text, options, root, captions=data.ref.part("captions"))


def test_words_of_other_splits_are_unknown(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "a red ball"), ("b", "train", "a red box"), ("c", "test", "a red zebra")]
    job = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1))
    references = References(job.work().folder)
    assert "zebra" not in references.vocabulary.words
    assert references.sentences("test") == {"c": ["a red zebra"]}
    assert references.numbers("test")["c"][0][-2] == 3, "zebra is <unk>"


def test_the_vocabulary_is_ordered_by_frequency_and_cut_at_min_count(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "ball ball ball box box cat"), ("b", "test", "ball")]
    job = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=2))
    assert References(job.work().folder).vocabulary.words[4:] == ("ball", "box")


def test_function_words_are_no_tags(alone, world: Path) -> None:
    tags = References(text_of(alone, world, TextOptions(), TINY_WORLD).work().folder).tag_words
    assert not {"a", "the", "is", "of"} & set(tags)
    assert {"square", "red"} & set(tags)


def test_a_test_caption_changes_the_test_part_only(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "a ball"), ("b", "val", "a ball"), ("c", "test", "a ball")]
    first = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1)).ref
    rows[2] = ("c", "test", "a box")
    second = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1)).ref
    assert {split for split in first.parts if first.parts[split] != second.parts[split]} == {"test"}


def test_a_training_split_without_captions_is_refused_in_words(alone, tmp_path: Path) -> None:
    root = captions_folder(tmp_path / "d", [("c", "test", "a ball")])
    with pytest.raises(BadInput, match="training split"):
        text_of(alone, root, TextOptions(min_count=1))


def test_references_keep_all_their_words_and_only_numbers_are_cut(alone, tmp_path: Path) -> None:
    long = " ".join(["ball", "box"] * 10)
    rows = [("a", "train", long), ("b", "test", f"A {long}!")]
    references = References(
        text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1, max_words=5)).work().folder
    )
    assert references.sentences("test") == {"b": [f"a {long}"]}, "scores are of whole references"
    assert len(references.numbers("train")["a"][0]) == 5 + 2


def test_a_caption_without_a_word_takes_no_part(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "a ball"), ("a", "train", "?"), ("b", "test", "..."), ("c", "test", "a ball")]
    folder = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1)).work().folder
    assert References(folder).sentences("test") == {"c": ["a ball"]}
    assert len(References(folder).numbers("train")["a"]) == 1
    assert References(folder).texts("train")["a"] == ["a ball"]
