"""Words and numbers: tokens that can stand in a table, vocabularies that survive a trip, damage in plain words."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import BadInput, StorageError
from storage.text.references import References, write_references
from storage.text.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, TextOptions, Vocabulary, content_words

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=8)


def test_known_words_survive_encoding_and_others_become_unknown() -> None:
    vocabulary = Vocabulary.build([["a", "red", "ball"], ["a", "ball"], ["a", "cat"]], min_count=2)
    assert vocabulary.words == (*SPECIAL_TOKENS, "a", "ball")
    assert vocabulary.encode(["a", "red", "ball"], 10) == [BOS, 4, UNK, 5, EOS]
    assert vocabulary.encode(["a", "ball", "a", "ball"], 2) == [BOS, 4, 5, EOS], "cut, and still closed"
    assert vocabulary.encode([], 5) == [BOS, EOS]
    assert vocabulary.decode([BOS, 4, UNK, 5, EOS, 4, PAD]) == ["a", "ball"], "nothing after EOS, nothing special"
    assert vocabulary.decode([PAD, PAD]) == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(WORDS, max_size=6), min_size=1).filter(any))
def test_every_word_of_the_training_captions_survives_a_round_trip(sentences: list[list[str]]) -> None:
    vocabulary = Vocabulary.build(sentences, min_count=1)
    for sentence in sentences:
        assert vocabulary.decode(vocabulary.encode(sentence, 10)) == sentence
    assert Vocabulary.build(reversed(sentences), 1) == vocabulary, "the order of captions does not matter"


def test_a_caption_cannot_smuggle_in_special_tokens() -> None:
    vocabulary = Vocabulary.build([["<eos>", "ball", "<pad>"]], 1)
    assert vocabulary.words[4:] == ("ball",)
    assert vocabulary.encode(["<eos>", "ball"], 5) == [BOS, UNK, 4, EOS]


def test_no_word_that_is_frequent_enough_is_an_error_with_a_remedy() -> None:
    with pytest.raises(BadInput, match=r"no word occurs 3 times .*; lower text\.min_count or add captions"):
        Vocabulary.build([["a", "ball"]], min_count=3)


def test_a_vocabulary_survives_saving(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build([["a", "café", "映画", "a"]], 1)
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert loaded == vocabulary and loaded.key == vocabulary.key and len(loaded) == 7


@pytest.mark.parametrize("content", ["", "{", "[]", '{"words": ["a"]}', '{"words": 1, "key": ""}', "\xff", None])
def test_a_damaged_or_missing_vocabulary_is_named_with_what_to_do(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "vocabulary.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(StorageError, match=r"vocabulary\.json.*--force prepare_text"):
        Vocabulary.load(path)


def test_a_changed_word_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    Vocabulary.build([["ball", "box"]], 1).save(path)
    path.write_text(path.read_text().replace("box", "cat"))
    with pytest.raises(StorageError, match="its words do not match its key"):
        Vocabulary.load(path)


def test_content_words_are_what_can_be_seen_most_frequent_first() -> None:
    sentences = [["a", "ball", "moves", "up"], ["the", "ball", "is", "up"], ["ball"], ["cat"]]
    assert content_words(sentences, 1) == ["ball", "up", "cat", "moves"]
    assert content_words(sentences, 2) == ["ball", "up"]


def test_references_keep_captions_together_in_order_and_by_split(tmp_path: Path) -> None:
    rows = [("v2", 0, "train", "A ball"), ("v1", 0, "train", "a BOX!")]
    rows += [("v2", 1, "train", "a ball a ball"), ("t", 0, "test", "a cat")]
    vocabulary = write_references(tmp_path, rows, TextOptions(min_count=1, max_words=3))
    references = References(tmp_path)
    assert references.vocabulary == vocabulary and "cat" not in vocabulary.words
    assert references.sentences("train") == {"v2": ["a ball", "a ball a ball"], "v1": ["a box"]}
    assert len(references.token_ids("train")["v2"][1]) == 3 + 2, "only what is learnt is cut"
    assert references.texts("train")["v1"] == ["a BOX!"]
    assert references.token_ids("test") == {"t": [[BOS, vocabulary.token_ids["a"], UNK, EOS]]}
    assert references.token_ids("val") == {}
    assert references.tag_words == ["ball", "box"]


@pytest.mark.parametrize("rows", [[], [("t", 0, "test", "a cat")], [("v", 0, "train", "?")]])
def test_training_captions_without_a_word_are_refused(tmp_path: Path, rows: list[tuple[str, int, str, str]]) -> None:
    with pytest.raises(BadInput, match="training split has no captions"):
        write_references(tmp_path, rows, TextOptions(min_count=1))


@pytest.mark.parametrize("name", ["captions.parquet", "tag_words.json"])
@pytest.mark.parametrize("content", [b"", b"{}", None])
def test_damaged_or_missing_references_are_named_with_what_to_do(tmp_path: Path, name: str, content: bytes | None) -> None:
    write_references(tmp_path, [("v", 0, "train", "a ball")], TextOptions(min_count=1))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    references = References(tmp_path)
    with pytest.raises(StorageError, match=rf"cannot read .*{name}.*--force prepare_text"):
        _ = references.table if name == "captions.parquet" else references.tag_words


def test_words_are_read_as_they_were_written_whatever_the_locale(tmp_path: Path) -> None:
    write_references(tmp_path, [("v", 0, "train", "ein großes 映画")], TextOptions(min_count=1))
    script = (
        "import sys; from pathlib import Path; from storage.text.references import References;"
        "found = References(Path(sys.argv[1])); print(ascii([found.vocabulary.words[4:], found.tag_words]))"
    )
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    answer = subprocess.run(command, env={**os.environ, **plain}, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    words = ("ein", "großes", "映画")
    assert ast.literal_eval(answer.stdout) == [words, list(words)]
