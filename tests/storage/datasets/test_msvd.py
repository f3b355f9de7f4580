"""MSVD's sentence files, its mapping and its corpus CSV, as toys."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from storage.datasets.msvd import MsvdOptions, read_msvd
from storage.errors import BadInput

HEADER = ["VideoID", "Start", "End", "WorkerID", "Source", "AnnotationTime", "Language", "Description"]


def write_sentences(folder: Path, **splits: str) -> None:
    folder.mkdir(exist_ok=True)
    for split, text in splits.items():
        (folder / f"sents_{split}_lc_nopunc.txt").write_bytes(text.encode())


def write_corpus(path: Path, rows: list[tuple[str, int, int, str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for video, start, end, language, text in rows:
            writer.writerow([video, start, end, 1, "clean", 9, language, text])


def kinds(dataset) -> Counter:
    return Counter(problem.kind for problem in dataset.problems)


def test_sentence_files_give_splits_captions_and_sources(tmp_path):
    write_sentences(
        tmp_path, train="vid1\ta man\u2028runs\nvid1\ta man runs\nvid2\ta cat\n", val="vid3\ta dog\r\n", test="vid4\tx\n"
    )
    (tmp_path / "youtube_mapping.txt").write_text("abc_1_2 vid1\r\n-xyz_10_20 vid2\r\n")
    (tmp_path / "YouTubeClips").mkdir()
    for name in ("-xyz_10_20.avi", "vid3.mp4", "stray.mp4"):
        (tmp_path / "YouTubeClips" / name).touch()
    dataset = read_msvd(MsvdOptions(), tmp_path)
    assert [(v.id, v.source, v.split) for v in dataset.videos] == [
        ("vid1", None, "train"),
        ("vid2", "YouTubeClips/-xyz_10_20.avi", "train"),
        ("vid3", "YouTubeClips/vid3.mp4", "val"),
        ("vid4", None, "test"),
    ]
    assert [c.text for c in dataset.captions] == ["a man runs", "a man runs", "a cat", "a dog", "x"]
    assert kinds(dataset) == {"no_video": 2, "not_annotated": 1, "split_counts": 1}
    assert len(dataset.annotations) == 4


def test_a_bad_line_a_missing_file_and_a_video_in_two_splits_are_reported(tmp_path):
    write_sentences(tmp_path / "annotations", train="vid1\ta man\nno tab here\n../x\tevil\n", test="vid1\tleak\nvid2\tb\n")
    dataset = read_msvd(MsvdOptions(), tmp_path)
    assert [(c.video_id, c.text) for c in dataset.captions] == [("vid1", "a man"), ("vid2", "b")]
    found = {problem.kind: problem.where for problem in dataset.problems}
    assert found["malformed"] == "sents_train_lc_nopunc.txt:2"
    assert found["unsafe_id"] == "sents_train_lc_nopunc.txt:3"
    assert found["split_conflict"] == "sents_test_lc_nopunc.txt:1"
    assert "missing_annotation" in found


def test_the_corpus_takes_english_only_and_numbers_its_clips_by_the_mapping(tmp_path):
    rows = [("abc", 1, 2, "English", "A man, running."), ("abc", 1, 2, "German", "Ein Mann."), ("def", 3, 4, "ENGLISH", "A dog.")]
    rows += [("ghi", 5, 6, "english", "A cat."), ("off", 1, 9, "English", "Unused."), ("odd", 1, 9, "English", "Odd.")]
    write_corpus(tmp_path / "corpus.csv", rows)
    (tmp_path / "youtube_mapping.txt").write_text("abc_1_2 vid1200\ndef_3_4 vid1201\nghi_5_6 vid1301\nodd_1_9 vid1971\n")
    (tmp_path / "def_3_4.avi").touch()
    dataset = read_msvd(MsvdOptions(), tmp_path)
    assert [(v.id, v.source, v.split) for v in dataset.videos] == [
        ("vid1200", None, "train"),
        ("vid1201", "def_3_4.avi", "val"),
        ("vid1301", None, "test"),
    ]
    assert [c.text for c in dataset.captions] == ["A man, running.", "A dog.", "A cat."]
    assert kinds(dataset) == {"no_video": 2, "not_mapped": 1, "bad_split": 1, "split_counts": 1}


def test_a_whole_corpus_without_mapping_has_the_published_split(tmp_path):
    write_corpus(tmp_path / "corpus.csv", [(f"c{i:04d}", 0, 1, "English", "x") for i in reversed(range(1970))])
    dataset = read_msvd(MsvdOptions(), tmp_path)
    assert Counter(v.split for v in dataset.videos) == {"train": 1200, "val": 100, "test": 670}
    splits = {v.id: v.split for v in dataset.videos}
    ends = ("c0000_0_1", "c1199_0_1", "c1200_0_1", "c1299_0_1", "c1300_0_1", "c1969_0_1")
    assert [splits[name] for name in ends] == ["train", "train", "val", "val", "test", "test"]
    assert set(kinds(dataset)) == {"no_video"}


def test_a_part_of_the_corpus_without_mapping_is_split_by_hash_and_says_so(tmp_path):
    write_corpus(tmp_path / "corpus.csv", [(f"c{i}", 0, 1, "English", "x") for i in range(300)])
    dataset = read_msvd(MsvdOptions(), tmp_path)
    sizes = Counter(v.split for v in dataset.videos)
    assert sizes["train"] > sizes["test"] > sizes["val"] > 0
    assert kinds(dataset)["split_derived"] == 1


def test_a_corpus_row_with_stray_columns_is_reported_and_an_open_quote_is_bad_input(tmp_path):
    corpus = tmp_path / "corpus.csv"
    good = "abc,1,2,1,clean,9,English,a man\n"
    corpus.write_text(",".join(HEADER) + "\n" + good + "abc,1,2,1,clean,9,English,a man, running\n" + good)
    dataset = read_msvd(MsvdOptions(), tmp_path)
    assert len(dataset.captions) == 2
    assert [p.where for p in dataset.problems if p.kind == "malformed"] == ["corpus.csv:3"]
    corpus.write_text(",".join(HEADER) + "\n" + good + 'abc,1,2,1,clean,9,English,"a man\n' + good)
    with pytest.raises(BadInput, match=r"corpus\.csv, line 3: .*expected a closing quote"):
        read_msvd(MsvdOptions(), tmp_path)
