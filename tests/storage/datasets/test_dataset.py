"""The scan for videos, the builder's reports, and the table of readers."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from storage.datasets import READERS, DatasetOptions, FolderOptions, MsvdOptions, detect_kind, read_dataset
from storage.datasets.annotations import clean_caption, parse_split, repair_segment
from storage.datasets.dataset import Dataset, DatasetBuilder, assign_ids, scan, with_train_share
from storage.errors import BadInput, UnsafeId
from storage.records import Caption, Problem, VideoRecord, check_video_id


def find_videos(root: Path, problems: list[Problem] | None = None) -> dict[str, str]:
    """Id -> path below root of every video and image."""
    problems = [] if problems is None else problems
    return assign_ids(scan(root, problems), problems)


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def kinds(problems) -> list[str]:
    return [problem.kind for problem in problems]


def test_videos_and_images_are_found_in_any_folder_and_casing(tmp_path):
    touch(tmp_path, "a.mp4", "deep/er/b.MKV", "c.JPG", "notes.txt", "mp4", ".hidden.mp4", ".git/d.mp4")
    assert find_videos(tmp_path) == {"a": "a.mp4", "b": "deep/er/b.MKV", "c": "c.JPG"}


def test_equal_stems_in_folders_are_told_apart_by_their_folder(tmp_path):
    touch(tmp_path, "x/a.mp4", "y/z/a.mp4", "a.mp4", "b.mp4")
    assert find_videos(tmp_path) == {"a": "a.mp4", "x__a": "x/a.mp4", "y__z__a": "y/z/a.mp4", "b": "b.mp4"}


def test_a_thumbnail_does_not_take_its_videos_id(tmp_path):
    touch(tmp_path, "a.jpg", "thumbs/b.png", "videos/a.mp4", "videos/b.mp4")
    found = find_videos(tmp_path)
    assert (found["a"], found["b"]) == ("videos/a.mp4", "videos/b.mp4")


def test_two_encodings_of_one_clip_get_two_ids(tmp_path):
    touch(tmp_path, "a.avi", "a.mp4")
    assert find_videos(tmp_path) == {"a": "a.avi", "a__mp4": "a.mp4"}


def test_links_that_leave_the_folder_are_problems_and_those_inside_are_not(tmp_path):
    root = tmp_path / "data"
    touch(tmp_path, "secret/s.mp4", "data/a.mp4", "data/.store/blob.mp4")
    (root / "out.mp4").symlink_to(tmp_path / "secret/s.mp4")
    (root / "folder").symlink_to(tmp_path / "secret")
    (root / "gone.mp4").symlink_to(root / "nothing.mp4")
    (root / "loop").symlink_to(root)
    (root / "kept.mp4").symlink_to(root / ".store/blob.mp4")
    problems: list = []
    assert find_videos(root, problems) == {"a": "a.mp4", "kept": "kept.mp4"}
    found = sorted((problem.item, problem.kind) for problem in problems)
    assert found == [("folder", "outside_root"), ("gone.mp4", "broken_link"), ("out.mp4", "outside_root")]


def test_a_file_name_that_is_not_unicode_is_quarantined(tmp_path):
    name = os.fsencode(tmp_path) + b"/bad\xff.mp4"
    try:
        with open(name, "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes only Unicode names")
    problems: list = []
    assert find_videos(tmp_path, problems) == {}
    assert (problems[0].kind, problems[0].quarantined) == ("unsafe_id", True)
    assert problems[0].item.encode() == b"bad\\udcff.mp4"


def test_a_decomposed_file_name_is_found_by_its_composed_id(tmp_path):
    touch(tmp_path, "cafe\u0301.mp4")
    assert list(find_videos(tmp_path)) == ["caf\u00e9"]


@given(st.text(st.characters()))
def test_any_string_as_an_id_is_safe_or_a_problem(tmp_path_factory, video_id):
    root = tmp_path_factory.getbasetemp() / "no_videos"
    root.mkdir(exist_ok=True)
    builder = DatasetBuilder("toy", root)
    added = builder.add_video(VideoRecord(video_id, None, "train"), "toy.csv:2")
    if added:
        assert check_video_id(video_id) == video_id
        assert builder.problems == []
    else:
        with pytest.raises(UnsafeId):
            check_video_id(video_id)
        (problem,) = builder.problems
        assert (problem.kind, problem.quarantined) == ("unsafe_id", True)
        assert problem.item.encode() and problem.where == "toy.csv:2"
        assert len(problem.item.splitlines()) <= 1 and len(problem.reason.splitlines()) == 1


@given(st.text(st.characters()))
def test_a_cleaned_caption_is_one_encodable_line_and_stays_as_it_is(text):
    clean = clean_caption(text)
    assert len(clean.splitlines()) <= 1
    assert clean == clean.strip() and clean.encode().decode() == clean
    assert clean_caption(clean) == clean


def test_separators_inside_a_caption_become_one_space():
    assert clean_caption(" a\u2028b\x0b\x0c\r\nc\x00\x85 \u2029d\te ") == "a b c d e"
    assert clean_caption("half \ud83d a pair") == "half \ufffd a pair"


def test_the_builder_reports_every_kind_of_gap_and_goes_on(tmp_path):
    touch(tmp_path, "b.mp4", "extra.mp4")
    builder = DatasetBuilder("toy", tmp_path)
    builder.opened(tmp_path / "notes.json")
    assert builder.add_video(VideoRecord("b", builder.find_file("b"), "train"), "")
    assert builder.add_video(VideoRecord("a", builder.find_file("a"), "val"), "")
    assert builder.add_video(VideoRecord("silent", "b.mp4", "test"), "")
    assert not builder.add_video(VideoRecord("b", None, "test"), "")
    assert not builder.add_video(VideoRecord("../../etc/passwd", None, "train"), "")
    for video_id, text in [("b", "two\nlines"), ("a", "x"), ("b", " "), ("b", "two lines"), ("ghost", "y"), ("b", 3)]:
        builder.add_caption(video_id, text, "notes.json:1")
    builder.add_caption("../../etc/passwd", "root", "notes.json:2")
    dataset = builder.finish()
    assert [(v.id, v.source, v.split) for v in dataset.videos] == [
        ("a", None, "val"),
        ("b", "b.mp4", "train"),
        ("silent", "b.mp4", "test"),
    ]
    assert [(c.video_id, c.n, c.text) for c in dataset.captions] == [("a", 0, "x"), ("b", 0, "two lines"), ("b", 1, "two lines")]
    assert [(p.kind, p.item, p.quarantined) for p in dataset.problems] == [
        ("duplicate_video", "b", False),
        ("empty_caption", "b", False),
        ("malformed", "b", True),
        ("no_captions", "silent", False),
        ("no_video", "a", False),
        ("no_video", "ghost", True),
        ("not_annotated", "extra.mp4", False),
        ("unsafe_id", "../../etc/passwd", True),
    ]
    assert dataset.annotations == (tmp_path / "notes.json",)


def test_no_usable_caption_at_all_is_bad_input(tmp_path):
    builder = DatasetBuilder("toy", tmp_path)
    builder.opened(tmp_path / "notes.json")
    builder.add_video(VideoRecord("a", None, "train"), "")
    builder.add_caption("a", "  ", "notes.json:1")
    with pytest.raises(BadInput, match=r"not one usable caption in .*notes\.json: .*1 empty_caption.*notes\.json:1"):
        builder.finish()


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind != "demo"])
def test_a_missing_folder_and_missing_annotations_say_what_to_do(tmp_path, kind):
    options = TypeAdapter(DatasetOptions).validate_python({"kind": kind})
    with pytest.raises(BadInput, match=r"nowhere does not exist; pass the data folder with --data"):
        read_dataset(options, tmp_path / "nowhere")
    with pytest.raises(BadInput, match="looked for"):
        read_dataset(options, tmp_path)


def test_an_unknown_kind_lists_the_known_ones_and_an_unknown_key_is_refused():
    with pytest.raises(ValidationError) as error:
        TypeAdapter(DatasetOptions).validate_python({"kind": "mvsd"})
    assert all(kind in str(error.value) for kind in READERS)
    with pytest.raises(ValidationError, match="Extra inputs"):
        MsvdOptions.model_validate({"splits": "mine"})


def test_a_data_set_name_cannot_leave_its_folder():
    with pytest.raises(ValidationError):
        FolderOptions(name="../x")


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("sents_val_lc_nopunc.txt", "", "msvd"),
        ("corpus.csv", "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n", "msvd"),
        ("annotations/train_val_videodatainfo.json", "{}", "msrvtt"),
        ("captions/val_1.json", "{}", "activitynet"),
        ("dataset_coco.json", "{}", "coco"),
        ("Flickr8k_text/Flickr8k.token.txt", "", "flickr8k"),
        ("dataset_flickr30k.json", "{}", "flickr30k"),
        ("annotations/vatex_validation_v1.0.json", "[]", "vatex"),
        ("captions.csv", "video,caption\n", "folder"),
        ("mine.jsonl", "", "folder"),
    ],
)
def test_the_kind_of_a_folder_is_seen_by_its_files(tmp_path, file, text, kind):
    touch(tmp_path, file)
    (tmp_path / file).write_text(text)
    assert detect_kind(tmp_path) == kind


def test_no_kind_or_two_kinds_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match=r"looked for sents_train_lc_nopunc\.txt, .*dataset_coco\.json.*any \.csv"):
        detect_kind(tmp_path)
    touch(tmp_path, "dataset_coco.json", "videodatainfo.json")
    with pytest.raises(BadInput, match="looks like msrvtt and coco"):
        detect_kind(tmp_path)


@pytest.mark.parametrize(
    ("given_times", "segment", "note"),
    [
        ((1, 2, 10), (1.0, 2.0), ""),
        (("1.5", "2", None), (1.5, 2.0), ""),
        ((5, 2, 10), (2.0, 5.0), "swapped"),
        ((-1, 12, 10), (0.0, 10.0), "cut"),
        ((11, 12, 10), None, "nothing is left"),
        ((3, 3, 10), None, "nothing is left"),
        ((None, 3, 10), None, "not both numbers"),
        ((float("nan"), 3, 10), None, "finite"),
    ],
)
def test_segments_are_repaired_or_refused_with_a_reason(given_times, segment, note):
    repaired, reason = repair_segment(*given_times)
    assert repaired == segment
    assert note in reason and bool(note) == bool(reason)


def test_split_names_of_the_field_are_understood():
    assert [parse_split(word) for word in ("Train", "validate", "validation", "dev", " val ", "test", "tset", None, 3)] == [
        "train", "val", "val", "val", "val", "test", None, None, None,
    ]  # fmt: skip


def test_a_part_of_the_training_split_lies_within_every_larger_part() -> None:
    videos = tuple(VideoRecord(f"v{n}", None, "train" if n < 10 else "test") for n in range(14))
    whole = Dataset("toy", Path(), videos, tuple(Caption(video.id, 0, "a dog") for video in videos), (), ())
    ids = {share: {video.id for video in with_train_share(whole, share).videos} for share in (0.01, 0.3, 0.5, 1.0)}
    assert [len(found) for found in ids.values()] == [5, 7, 9, 14]
    assert ids[0.01] < ids[0.3] < ids[0.5] < ids[1.0] and all({"v10", "v13"} <= found for found in ids.values())
    half = with_train_share(whole, 0.5)
    assert {caption.video_id for caption in half.captions} == ids[0.5]
