"""The text stage alone: words come from the training split, and each split's key follows its own captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.metrics.leave_one_out import leave_one_out
from models.rewards.baselines import truth_means
from models.rewards.consensus import Consensus
from models.types import EOS, PAD
from storage.datasets import FolderOptions
from storage.errors import BadInput, Mismatch
from storage.text.references import References
from storage.text.vocabulary import TextOptions
from tasks import prepare_text as prepare_text_module
from tasks.catalogue import catalogue
from tasks.prepare_text import open_index, open_weights, prepare_text
from tests.conftest import TINY_WORLD
from tests.tasks.captions_folder import captions_folder


def text_of(alone, root: Path, options: TextOptions, dataset=None):
    data = alone(catalogue, dataset or FolderOptions(), root)
    return alone(prepare_text, options, root, captions=data.ref.part("captions"))


def test_words_of_other_splits_are_unknown(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "a red ball"), ("b", "train", "a red box"), ("c", "test", "a red zebra")]
    job = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1))
    references = References(job.folder)
    assert "zebra" not in references.vocabulary.words
    assert references.sentences("test") == {"c": ["a red zebra"]}
    assert references.token_ids("test")["c"][0][-2] == 3, "zebra is <unk>"


def test_the_vocabulary_is_ordered_by_frequency_and_cut_at_min_count(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "ball ball ball box box cat"), ("b", "test", "ball")]
    job = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=2))
    assert References(job.folder).vocabulary.words[4:] == ("ball", "box")


def test_function_words_are_no_tags(alone, world: Path) -> None:
    tags = References(text_of(alone, world, TextOptions(), TINY_WORLD).folder).tag_words
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
    references = References(text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1, max_words=5)).folder)
    assert references.sentences("test") == {"b": [f"a {long}"]}, "scores are of whole references"
    assert len(references.token_ids("train")["a"][0]) == 5 + 2


def test_a_caption_without_a_word_takes_no_part(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "a ball"), ("a", "train", "?"), ("b", "test", "..."), ("c", "test", "a ball")]
    folder = text_of(alone, captions_folder(tmp_path / "d", rows), TextOptions(min_count=1)).folder
    assert References(folder).sentences("test") == {"c": ["a ball"]}
    assert len(References(folder).token_ids("train")["a"]) == 1
    assert References(folder).texts("train")["a"] == ["a ball"]


TWO_BY_THREE = [
    ("a", "train", "a red ball rolls left"),
    ("a", "train", "?"),
    ("a", "train", "a red ball rolls"),
    ("a", "train", "a box"),
    ("b", "train", "a green box falls"),
    ("b", "train", "the green box falls down"),
    ("c", "val", "a red zebra"),
]


def tables(alone, root: Path, rows=TWO_BY_THREE, **options) -> References:
    job = text_of(alone, captions_folder(root, rows), TextOptions(**{"min_count": 1} | options))
    return References(job.folder)


def test_reference_tables_hold_whole_captions_that_end_in_eos(alone, tmp_path: Path) -> None:
    references = tables(alone, tmp_path / "d", max_words=2)
    index, table = open_index(references)
    assert table.video_ids == ("a", "b") and table.caption_ids == ["a#0", "a#2", "a#3", "b#0", "b#1"]
    words = references.vocabulary.words
    said = [[words[n] for n in part] for part in np.split(table.tokens, table.starts[1:-1])]
    assert said[0] == ["a", "red", "ball", "rolls", "left", "<eos>"]
    assert [len(caption) for caption in said] == [6, 5, 3, 5, 6]
    assert index.frequencies.videos == 2
    assert references.caption_indices("train") == {"a": [0, 2, 3], "b": [0, 1]}


def test_document_frequencies_count_videos_with_eos(alone, tmp_path: Path) -> None:
    references = tables(alone, tmp_path / "d")
    index, _ = open_index(references)
    number = references.vocabulary.token_ids

    def df(*words: str) -> int:
        key = 0
        for word in words:
            key = (key << 16) | (number[word] + 1)
        return int(index.frequencies.counts[np.searchsorted(index.frequencies.keys, np.uint64(key))])

    assert df("<eos>") == df("a") == df("box") == 2
    assert df("red") == df("box", "<eos>") == df("ball", "rolls", "<eos>") == df("green", "box", "falls", "down") == 1


def test_caption_weights_are_those_of_the_captions_words(alone, tmp_path: Path) -> None:
    references = tables(alone, tmp_path / "d")
    index, table = open_index(references)
    weights = open_weights(references)
    assert weights.caption_ids == tuple(table.caption_ids)
    for score in ("cider_d", "bleu_4", "rouge_l"):
        assert np.array_equal(weights.scores[score], leave_one_out(index, score))
    by_caption = weights.by_caption("cider_d")
    assert by_caption["a#0"] > by_caption["a#3"], "half of its words are another's"
    means = truth_means(weights.of_references("cider_d", table), table.videos)
    assert means[1] == pytest.approx((by_caption["b#0"] + by_caption["b#1"]) / 2)


def test_a_reward_is_ready_from_the_tables(alone, tmp_path: Path) -> None:
    references = tables(alone, tmp_path / "d")
    index, table = open_index(references)
    reward = Consensus(index, eos=table.origin.eos)
    sample = references.token_ids("train")["b"][0][1:]
    samples = torch.tensor([[*sample, PAD], [*sample[:-1], PAD, PAD]])
    finished, unfinished = reward(samples, torch.tensor([table.video_ids.index("b")] * 2)).tolist()
    assert sample[-1] == EOS and finished > unfinished > 0


def test_the_order_of_captions_and_other_splits_change_no_training_table(alone, tmp_path: Path) -> None:
    first = tables(alone, tmp_path / "d1").folder
    first_video, second_video = TWO_BY_THREE[:4], TWO_BY_THREE[4:6]
    rows = [("z", "test", "a purple box falls"), *second_video, ("c", "val", "a ball"), *first_video]
    second = tables(alone, tmp_path / "d2", rows).folder
    assert first != second
    for name in ("references-train", "document_frequencies", "weights"):
        assert (first / f"{name}.parquet").read_bytes() == (second / f"{name}.parquet").read_bytes()
    assert (first / "references-val.parquet").read_bytes() != (second / "references-val.parquet").read_bytes()


def test_a_new_training_video_changes_its_own_rows_and_idf_only(alone, tmp_path: Path) -> None:
    before = tables(alone, tmp_path / "d1")
    added = [*TWO_BY_THREE, ("n", "train", "a red ball rolls left"), ("n", "train", "a red ball stops")]
    after = tables(alone, tmp_path / "d2", added)
    old, new = open_weights(before), open_weights(after)
    assert new.by_caption("rouge_l").keys() - old.by_caption("rouge_l").keys() == {"n#0", "n#1"}
    for score in ("rouge_l", "bleu_4"):
        assert {id: new.by_caption(score)[id] for id in old.caption_ids} == old.by_caption(score)
    assert new.by_caption("cider_d")["a#0"] != old.by_caption("cider_d")["a#0"], "red is less rare"


def test_tables_of_another_vocabulary_or_split_are_refused(alone, tmp_path: Path) -> None:
    ours = tables(alone, tmp_path / "d1")
    fewer_words = tables(alone, tmp_path / "d2", min_count=2)
    with pytest.raises(Mismatch, match=f"made for vocabulary {fewer_words.vocabulary.key[:12]}, but {ours.vocabulary.key[:12]}"):
        open_weights(ours, fewer_words.folder)
    # another caption of known words: the same vocabulary, another split
    moved = [*TWO_BY_THREE[:-1], TWO_BY_THREE[0]][1:]
    moved = [("a", "train", "a red ball rolls left"), *TWO_BY_THREE[2:]]
    other = tables(alone, tmp_path / "d3", moved)
    assert other.vocabulary.key == ours.vocabulary.key
    with pytest.raises(Mismatch, match=f"of captions {other.origin('train').split[:12]}, but"):
        open_weights(ours, other.folder)


STRANGE = [
    "\U0001f600\U0001f600",
    "一只狗在跑",
    "كلب يركض في الحديقة",
    "a dog\u2028runs\u2029fast\x0bnow",
    "a",
    " ".join(["dog"] * 200),
]


def test_strange_captions_shift_nothing(alone, tmp_path: Path) -> None:
    """A table of strange captions among plain ones gives the plain ones the weights they have without, but for idf."""
    plain = [("a", "train", "a dog runs"), ("a", "train", "the dog runs"), ("b", "train", "a cat"), ("b", "train", "a cat sits")]
    strange = [("s", "train", text) for text in STRANGE]
    references = tables(alone, tmp_path / "d", [*plain[:2], *strange, *plain[2:]])
    weights = open_weights(references)
    alone_weights = open_weights(tables(alone, tmp_path / "e", plain))
    spoken = {f"s#{n}" for n, text in enumerate(STRANGE) if n != 0}
    assert set(weights.caption_ids) == {"a#0", "a#1", "b#0", "b#1"} | spoken, "emoji are no words"
    for id, weight in alone_weights.by_caption("rouge_l").items():
        assert weights.by_caption("rouge_l")[id] == weight
    assert all(np.isfinite(values).all() for values in weights.scores.values())
    assert weights.by_caption("rouge_l")["s#1"] > 0, "EOS is common to all"


def test_thousands_of_equal_captions_weigh_the_most(alone, tmp_path: Path) -> None:
    rows = [("a", "train", "a red ball rolls")] * 2000 + [("b", "train", "a box"), ("c", "val", "a box")]
    weights = open_weights(tables(alone, tmp_path / "d", rows))
    assert weights.scores["cider_d"][:2000] == pytest.approx(10) and np.isnan(weights.scores["cider_d"][2000])
    assert weights.by_caption("cider_d")["b#0"] == pytest.approx(10), "nothing is known against a lone caption"


def test_more_words_than_n_grams_can_hold_are_refused_in_words(alone, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(prepare_text_module, "MAX_WORDS", 8)
    with pytest.raises(BadInput, match=r"raise text.min_count \(now 1\)"):
        tables(alone, tmp_path / "d")
