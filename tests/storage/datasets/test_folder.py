"""A plain folder: how its table names videos, gives or derives splits, cuts segments, and what may be wrong with it."""

import csv
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from storage.datasets.annotations import clean_caption
from storage.datasets.folder import FolderOptions, derive_splits, read_folder
from storage.errors import BadInput


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def read(root: Path, **options):
    return read_folder(FolderOptions(**options), root)


def captions(dataset) -> list[tuple[str, str]]:
    return [(caption.video_id, caption.text) for caption in dataset.captions]


def kinds(dataset) -> Counter:
    return Counter(problem.kind for problem in dataset.problems)


def write_table(path: Path, rows: list[dict]) -> None:
    names = list(rows[0])
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, names, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_of_the_table_gives_the_same_data_set(tmp_path, suffix):
    touch(tmp_path, "clips/a.mp4", "b.MOV", "c.jpg")
    rows = [
        ("a.mp4", 'says "hi", twice', "train"),
        ("./b.MOV", "two\nlines", "dev"),
        ("c", "déjà vu", "test"),
        ("clips/a.mp4", "x", "train"),
    ]
    write_table(tmp_path / f"captions{suffix}", [dict(zip(("Video", "caption", "split"), row, strict=True)) for row in rows])
    dataset = read(tmp_path)
    assert [(v.id, v.source, v.split) for v in dataset.videos] == [
        ("a", "clips/a.mp4", "train"),
        ("b", "b.MOV", "val"),
        ("c", "c.jpg", "test"),
    ]
    assert captions(dataset) == [("a", 'says "hi", twice'), ("a", "x"), ("b", "two lines"), ("c", "déjà vu")]
    assert dataset.problems == ()


def test_a_json_line_may_hold_several_captions_or_none(tmp_path):
    lines = [
        {"video": "a", "captions": ["x", "y", 3]},
        {"video": 7, "text": "z"},
        {"video": "q", "split": "test"},
        {"text": "lost"},
    ]
    write_table(tmp_path / "mine.jsonl", lines)
    dataset = read(tmp_path)
    assert captions(dataset) == [("7", "z"), ("a", "x"), ("a", "y")]
    assert kinds(dataset) == {"malformed": 2, "no_captions": 1, "no_video": 3, "split_derived": 1}


def test_rows_with_start_and_end_become_segments_in_the_tables_order(tmp_path):
    touch(tmp_path, "a.mp4", "a_1.mp4")
    rows = [("a", "late", 5, 9), ("a", "early", 0, 4), ("a", "late too", 5.0, 9), ("a", "all", "", ""), ("a_1", "other", "", "")]
    rows += [("a", "swapped", 3, 1), ("a", "empty", 2, 2), ("a", "open", 2, "")]
    write_table(tmp_path / "captions.csv", [dict(zip(("video", "caption", "start", "end"), r, strict=True)) for r in rows])
    dataset = read(tmp_path)
    assert [(v.id, v.source, v.segment) for v in dataset.videos] == [
        ("a", "a.mp4", None),
        ("a_0", "a.mp4", (5.0, 9.0)),
        ("a_1", "a_1.mp4", None),
        ("a_1_", "a.mp4", (0.0, 4.0)),
        ("a_2", "a.mp4", (1.0, 3.0)),
    ]
    assert captions(dataset) == [
        ("a", "all"),
        ("a_0", "late"),
        ("a_0", "late too"),
        ("a_1", "other"),
        ("a_1_", "early"),
        ("a_2", "swapped"),
    ]
    assert kinds(dataset) == {"repaired_segment": 1, "bad_segment": 2, "split_derived": 1}
    assert len({v.split for v in dataset.videos if v.source == "a.mp4"}) == 1


def test_names_that_fit_no_file_several_files_or_no_folder_at_all(tmp_path):
    touch(tmp_path, "x/a.mp4", "y/a.mp4", "c.mp4", "unused.mp4")
    names = ["a.mp4", "x/a.mp4", "y__a", "../../etc/passwd", "/etc/passwd.mp4", "p/b.mp4", "q/b.mp4", "c", " ", "z\\d.mp4"]
    write_table(tmp_path / "captions.csv", [{"video": name, "caption": name} for name in names])
    dataset = read(tmp_path)
    assert {v.id: v.source for v in dataset.videos} == {
        "x__a": "x/a.mp4",
        "y__a": "y/a.mp4",
        "b": None,
        "q__b": None,
        "c": "c.mp4",
        "d": None,
    }
    found = [(p.kind, p.item) for p in dataset.problems if p.quarantined]
    assert found == [
        ("ambiguous", "a.mp4"),
        ("unsafe_id", "../../etc/passwd"),
        ("unsafe_id", "/etc/passwd.mp4"),
        ("unsafe_id", "captions.csv:10"),
    ]
    assert kinds(dataset)["no_video"] == 3
    assert [p.item for p in dataset.problems if p.kind == "not_annotated"] == ["unused.mp4"]


def test_a_split_that_is_misspelt_or_contradicts_itself_never_leaks(tmp_path):
    rows = [("a", "1", "test"), ("a", "2", "train"), ("b", "3", "tset"), ("c", "4", "train"), ("c", "5", "trian")]
    write_table(tmp_path / "captions.csv", [dict(zip(("video", "caption", "split"), row, strict=True)) for row in rows])
    dataset = read(tmp_path)
    assert {v.id: v.split for v in dataset.videos} == {"a": "test", "c": "train"}
    assert captions(dataset) == [("a", "1"), ("a", "2"), ("c", "4")]
    found = [(p.kind, p.item, p.quarantined) for p in dataset.problems if "split" in p.kind]
    assert found == [("bad_split", "b", True), ("bad_split", "c", False), ("split_conflict", "a", False)]


def test_a_new_video_moves_no_other_and_the_shares_are_kept():
    before, lent = derive_splits([f"v{i}" for i in range(2000)], 0.1, 0.2)
    after, _ = derive_splits([f"v{i}" for i in reversed(range(2001))], 0.1, 0.2)
    assert lent == [] and all(after[name] == split for name, split in before.items())
    sizes = Counter(before.values())
    assert abs(sizes["val"] - 200) < 60 and abs(sizes["test"] - 400) < 80


def test_a_derived_split_is_the_same_on_every_machine_and_in_every_version():
    splits, lent = derive_splits([f"video{i}" for i in range(16)], 0.1, 0.1)
    assert sorted(name for name, split in splits.items() if split == "test") == ["video14", "video9"]
    val = sorted(name for name, split in splits.items() if split == "val")
    assert val == ["video10", "video2"] and lent == ["video10"], "one video cannot tell a good epoch"
    several, _ = derive_splits([f"video{i}" for i in range(24)], 0.1, 0.1)
    assert min(Counter(several.values()).values()) >= 3


@given(
    st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=3, max_size=18), st.text("abc", min_size=1)
)
def test_no_split_of_a_small_set_is_empty_and_a_new_video_moves_at_most_the_lent(ids, new):
    splits, lent = derive_splits(ids, 0.1, 0.1)
    assert set(splits.values()) == {"train", "val", "test"}
    after, lent_after = derive_splits(ids | {new}, 0.1, 0.1)
    moved = {name for name in ids if splits[name] != after[name]}
    assert moved <= {*lent, *lent_after}


def test_a_share_of_zero_stays_empty_and_shares_must_leave_some_to_train():
    assert "val" not in derive_splits([f"v{i}" for i in range(50)], 0.0, 0.3)[0].values()
    with pytest.raises(ValidationError, match="nothing is left to train on"):
        FolderOptions(val_share=0.5, test_share=0.5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("captions.csv", "video,caption\na,x\nb,y,z\n", r"captions\.csv, line 3, column 3: 3 columns; expected 2"),
        ("captions.csv", 'video,caption\na,"two\nlines"\nb,"x"y\n', r"captions\.csv, line 4: .*expected a field in double"),
        ("captions.csv", 'video,caption\na,"x\nb,y\n', r"line 2: a double quote opens a field and never closes it"),
        ("captions.csv", "a.mp4,a man runs\nb.mp4,x\n", r"line 1: the columns are a\.mp4, a man runs; expected 'video' and"),
        ("captions.csv", "video;caption\na;x\n", r"line 1: the columns are video;caption; .*parted by ';', save it with ','"),
        ("captions.csv", "video,video,caption\na,b,c\n", r"line 1: the column 'video' is there twice"),
        ("captions.csv", "", r"line 1, column 1: the file is empty"),
        ("captions.csv", "video,caption\n", r"not one usable caption"),
        ("captions.csv", "video,caption\na,  \n", r"not one usable caption in .*1 empty_caption"),
        ("captions.jsonl", '{"video": "a", "caption": "x"}\n{"video": "b" "x"}\n', r"line 2, column 15: Expecting ',' delimiter"),
        ("captions.jsonl", '\n["a", "x"]\n', r"line 2, column 1: found a JSON list; expected one JSON object per line"),
        ("captions.parquet", "not parquet at all", r"captions\.parquet, after row 0: .*expected a whole Parquet file"),
    ],
)  # fmt: skip
def test_a_malformed_table_is_bad_input_with_its_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        read(tmp_path)


def test_the_table_is_chosen_by_name_or_by_being_alone(tmp_path):
    write_table(tmp_path / "one.csv", [{"video": "a", "sentence": "one"}])
    assert captions(read(tmp_path)) == [("a", "one")]
    write_table(tmp_path / "two.csv", [{"video": "a", "text": "two"}])
    with pytest.raises(BadInput, match=r"several tables in .*: one\.csv, two\.csv; name the captions with dataset\.captions"):
        read(tmp_path)
    assert captions(read(tmp_path, captions="two.csv")) == [("a", "two")]
    with pytest.raises(BadInput, match="no table of captions at"):
        read(tmp_path, captions="three.csv")
    write_table(tmp_path / "captions.jsonl", [{"video": "a", "text": "three"}])
    assert captions(read(tmp_path)) == [("a", "three")]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5),
    st.sampled_from([".csv", ".tsv", ".jsonl"]),
)
def test_any_text_stays_one_line_and_shifts_no_other_caption(tmp_path_factory, texts, suffix):
    root = tmp_path_factory.mktemp("any")
    rows = [{"video": f"v{i}", "caption": text} for i, text in enumerate(texts)] + [{"video": "z", "caption": "the end"}]
    write_table(root / f"captions{suffix}", rows)
    expected = [(row["video"], clean_caption(row["caption"])) for row in rows if clean_caption(row["caption"])]
    found = captions(read(root))
    assert found == expected
    assert all(len(text.splitlines()) == 1 for _, text in found)


def test_half_a_surrogate_pair_in_json_does_not_spoil_the_table(tmp_path):
    (tmp_path / "captions.jsonl").write_text('{"video": "a", "caption": "x \\ud800 y"}\n{"video": "\\udfff", "caption": "z"}\n')
    dataset = read(tmp_path)
    assert captions(dataset) == [("a", "x \ufffd y")]
    (bad,) = [p for p in dataset.problems if p.kind == "unsafe_id"]
    assert bad.quarantined and bad.item.encode()
