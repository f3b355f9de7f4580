"""`longtake caption`: the captions of evaluation, what is wrong with a file told and the rest done, nothing extracted twice."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from flows.caption import VideoCaptioner
from storage.errors import BadInput, BadMedia, UsageError
from storage.features.store import FeatureStore
from storage.results import CaptionRow, read_captions
from storage.runs import load_runs, new_run_id, save_run
from tasks.inference.user_files import Captioned, FileCaptioner
from tests.flows.conftest import Longtake
from tests.flows.toy_place import TOY, Place


def evaluated(place: Place) -> dict[str, CaptionRow]:
    """file name -> the caption that the run's own stage gave it."""
    rows = read_captions(place.folder("caption"))
    return {str(place.records[row.video_id].source).rpartition("/")[2]: row for row in rows}


def rows_kept(place: Place) -> int:
    return sum(len(FeatureStore.open(store).view()) for store in (place.workspace.features / "loose").glob("*"))


@pytest.fixture
def clips(place: Place, tmp_path: Path) -> Path:
    """A folder of the run's test clips and of five files that are broken, each in its own way."""
    folder = tmp_path / "clips"
    (folder / "more").mkdir(parents=True)
    for n in range(4):
        shutil.copy(place.clip("test", n), folder / "more" if n % 2 else folder)
    good = place.clip("test").read_bytes()
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "cut.mp4").write_bytes(good[: len(good) // 2])
    (folder / "notes.mp4").write_bytes(b"Dear diary, this is no film.\n" * 100)
    (folder / "page.mkv").write_bytes(b"<!DOCTYPE html><title>gone</title>")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100)
    return folder


def test_a_folder_gets_the_captions_of_evaluation_and_five_reasons(longtake: Longtake, place: Place, clips: Path) -> None:
    answer = longtake("caption", clips, "-w", place.workspace.root, "--json")
    assert answer.code == 3
    found = {Path(row["file"]).name: row for row in answer.json["captions"]}
    expected = evaluated(place)
    assert len(expected) == 4 and found.keys() == expected.keys()
    for name, row in expected.items():
        assert (found[name]["caption"], found[name]["log_prob"]) == (row.caption, row.log_prob)
    assert len({row.log_prob for row in expected.values()}) == 4, "clips that cannot be told apart would prove nothing"
    reasons = {Path(problem["file"]).name: problem["reason"] for problem in answer.json["problems"]}
    words = {
        "empty.mp4": "0 bytes",
        "cut.mp4": "it ends after",
        "notes.mp4": "it begins with 'Dear diary",
        "page.mkv": "a web page",
        "picture.png": "begins as PNG but is none",
    }
    assert reasons.keys() == words.keys() and all(words[name] in reasons[name] for name in words)
    assert answer.json["extracted"] == 4


def test_a_second_call_extracts_nothing_nor_do_copies_under_other_names(
    longtake: Longtake, place: Place, clips: Path, tmp_path: Path
) -> None:
    first = longtake("caption", clips, "-w", place.workspace.root, "--json").json
    again = longtake("caption", clips, "-w", place.workspace.root, "--json").json
    assert again["extracted"] == 0 and again["captions"] == first["captions"] and again["problems"] == first["problems"]
    kept = rows_kept(place)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for n in range(4):
        shutil.copy(place.clip("test", n), moved / f"another {n}.mov")
    copies = longtake("caption", moved, "-w", place.workspace.root, "--json")
    assert copies.code == 0 and copies.json["extracted"] == 0 and rows_kept(place) == kept == 4
    told = {row["caption"] for row in first["captions"]}
    assert {row["caption"] for row in copies.json["captions"]} == told and len(copies.json["captions"]) == 4


def test_two_files_of_the_same_bytes_are_captioned_both_and_extracted_once(
    longtake: Longtake, place: Place, tmp_path: Path
) -> None:
    twin = Path(shutil.copy(place.clip("test"), tmp_path / "twin.mp4"))
    found = longtake("caption", place.clip("test"), twin, "-w", place.workspace.root, "--json").json
    assert [Path(row["file"]).name for row in found["captions"]] == [place.clip("test").name, "twin.mp4"]
    assert found["extracted"] == 1 and found["captions"][0]["caption"] == found["captions"][1]["caption"]


def test_patterns_are_understood_without_a_shell_and_files_are_taken_once(longtake: Longtake, place: Place, clips: Path) -> None:
    for name in ("cut.mp4", "empty.mp4", "notes.mp4"):
        (clips / name).unlink()
    answer = longtake("caption", f"{clips}/**/*.mp4", f"{clips}/more", "-w", place.workspace.root, "--json")
    assert answer.code == 0 and len(answer.json["captions"]) == 4
    nothing = longtake("caption", f"{clips}/*.avi", clips / "gone.mp4", "-w", place.workspace.root, "--json")
    assert nothing.code == 1 and nothing.json["captions"] == []
    assert [problem["kind"] for problem in nothing.json["problems"]] == ["no_match", "missing"]


def test_a_still_image_has_a_caption(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    Image.new("RGB", (80, 60), "red").save(tmp_path / "still.png")
    answer = longtake("caption", tmp_path / "still.png", "-w", place.workspace.root)
    assert answer.code == 0 and answer.out.startswith("still.png: ") and len(answer.out.split()) > 1


def test_the_formats_hold_the_same_captions(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    files = [place.clip("test", 0), place.clip("test", 1)]
    call = ("caption", *files, "-w", place.workspace.root, "--n-best", "2")
    rows = [json.loads(line) for line in longtake(*call, "--format", "jsonl").out.splitlines()]
    assert [Path(row["file"]).name for row in rows] == [path.name for path in files]
    assert all(len(row["n_best"]) == 2 and row["caption"] in {one["caption"] for one in row["n_best"]} for row in rows)
    assert all(row["n_best"][0]["log_prob"] >= row["n_best"][1]["log_prob"] for row in rows)
    assert all(row["start"] == 0 and row["end"] > 0.5 for row in rows)
    table = list(csv.DictReader(StringIO(longtake(*call, "--format", "csv").out)))
    assert [row["rank"] for row in table] == ["1", "2", "1", "2"]
    assert [row["caption"] for row in table if row["rank"] == "1"] == [row["caption"] for row in rows]
    text = longtake(*call, "--output", tmp_path / "captions.txt")
    assert text.out == "" and rows[0]["caption"] in (tmp_path / "captions.txt").read_text()


def test_more_captions_than_the_runs_beam_leave_the_first_one_as_it_was(place: Place) -> None:
    captioner = VideoCaptioner.open(place.workspace.root)
    width = captioner.trained.search.width
    (clip,) = captioner.caption([str(place.clip("test"))], n_best=width + 3).clips
    assert len(clip.best) == width + 3 and len({row.caption for row in clip.best}) == width + 3
    assert [row.log_prob for row in clip.best] == sorted((row.log_prob for row in clip.best), reverse=True)
    expected = evaluated(place)[place.clip("test").name]
    assert clip.caption == replace(expected, video_id=clip.caption.video_id)


def test_three_lines_of_python(place: Place, tmp_path: Path) -> None:
    captioner = VideoCaptioner.open(place.workspace.root)
    name = place.clip("test").name
    assert captioner(place.clip("test")) == evaluated(place)[name].caption
    (tmp_path / "no.mp4").write_text("text")
    with pytest.raises(BadMedia, match=r"no\.mp4: .*begins with 'text'"):
        captioner(tmp_path / "no.mp4")
    with pytest.raises(UsageError, match="there is no workspace at"):
        VideoCaptioner.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_windows_cut_a_clip_and_a_whole_one_is_not_extracted_again(longtake: Longtake, place: Place) -> None:
    call = ("caption", place.clip("test"), "-w", place.workspace.root, "--json")
    whole = longtake(*call).json
    length = whole["captions"][0]["end"]
    parts = longtake(*call, "--windows", str(length / 2)).json
    assert [row["whole"] for row in parts["captions"]] == [False, False] and parts["extracted"] == 2
    assert [row["start"] for row in parts["captions"]] == [0, round(length / 2, 3)]
    one = longtake(*call, "--windows", str(length * 2)).json
    assert one["extracted"] == 0 and one["captions"] == whole["captions"]


def test_a_run_is_chosen_by_recipe_or_id_and_only_if_it_is_finished(longtake: Longtake, place: Place) -> None:
    run = load_runs(place.workspace)[0]
    call = ("caption", place.clip("test"), "-w", place.workspace.root, "--json", "--run")
    assert longtake(*call, "toy").json["run"]["id"] == longtake(*call, run.id[:15]).json["run"]["id"] == run.id
    unknown = longtake(*call, "nonsense")
    assert unknown.code == 2 and "no finished run is called 'nonsense'" in unknown.err and "toy" in unknown.err
    save_run(place.workspace, replace(run, state="failed"))
    none = longtake("caption", place.clip("test"), "-w", place.workspace.root)
    assert none.code == 2 and "has trained a captioner yet" in none.err


def test_a_variant_of_a_sweep_speaks_only_when_it_is_named(longtake: Longtake, place: Place) -> None:
    run = load_runs(place.workspace)[0]
    variant = replace(run, id=new_run_id(), recipe_name="toy-xe-0", name="best of three")
    save_run(place.workspace, variant)
    recipes = place.workspace.root / "sweeps" / "toy-1234" / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "toy-xe-0.yaml").write_text("name: toy-xe-0\n")
    call = ("caption", place.clip("test"), "-w", place.workspace.root)
    chosen = longtake(*call)
    assert f"captioner: toy on toy, run {run.short_id}" in chosen.err and "the newest finished run" in chosen.err
    for name in ("toy-xe-0", "best of three", variant.short_id):
        assert longtake(*call, "--json", "--run", name).json["run"]["id"] == variant.id


def test_a_caption_without_words_is_a_problem(longtake: Longtake, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    said = FileCaptioner.caption

    def silent(self: FileCaptioner, *arguments: Any) -> Captioned:
        found = said(self, *arguments)
        return replace(found, clips=[replace(clip, caption=replace(clip.caption, caption="")) for clip in found.clips])

    monkeypatch.setattr(FileCaptioner, "caption", silent)
    answer = longtake("caption", place.clip("test"), "-w", place.workspace.root, "--json")
    assert answer.code == 1 and [problem["kind"] for problem in answer.json["problems"]] == ["no_words"]


def test_imported_features_cannot_be_made_for_new_videos(place: Place) -> None:
    run = load_runs(place.workspace)[0]
    recipe = run.recipe | {"features": {"scene": {"kind": "imported", "store": "c3d"}}}
    save_run(place.workspace, replace(run, recipe=recipe))
    with pytest.raises(BadInput, match="'scene' that were imported as 'c3d'; Longtake cannot extract them from new videos"):
        VideoCaptioner.open(place.workspace.root)


def test_garbage_collection_keeps_what_was_extracted_for_as_long_as_its_run(longtake: Longtake, place: Place) -> None:
    call = ("caption", place.clip("test"), "-w", place.workspace.root, "--json")
    first = longtake(*call).json
    longtake("gc", "-w", place.workspace.root)
    again = longtake(*call).json
    assert (first["extracted"], again["extracted"]) == (1, 0) and again["captions"] == first["captions"]
    longtake("gc", "-w", place.workspace.root, "--keep", "0")
    assert not list((place.workspace.features / "loose").glob("*"))


def test_a_file_that_nobody_may_read_or_that_is_no_file_is_told(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/na\xffme.mp4"))
    odd.write_bytes(b"x")
    (tmp_path / "bare").mkdir()
    files = (tmp_path / "pipe.mp4", odd, tmp_path / "bare", place.clip("test"))
    answer = longtake("caption", *files, "-w", place.workspace.root, "--json")
    kinds = [problem["kind"] for problem in answer.json["problems"]]
    assert answer.code == 3 and sorted(kinds) == ["no_media", "not_a_file", "unsafe_id"]
    assert len(answer.json["captions"]) == 1


@pytest.mark.slow
def test_the_flow_of_a_deployment_gives_the_same(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect for real, on a database of its own."""
    code = "import json, sys; from flows.orchestration.flows import caption_flow as flow;"
    code += "print(json.dumps(flow(*json.loads(sys.argv[1]))))"
    (tmp_path / "no.mp4").write_text("text")
    given = json.dumps([[str(place.clip("test")), str(tmp_path / "no.mp4")], str(place.workspace.root)])
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_LOGGING_LEVEL": "CRITICAL"}
    environment |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"}
    done = subprocess.run([sys.executable, "-c", code, given], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["caption"] for row in found["captions"]] == [evaluated(place)[place.clip("test").name].caption]
    assert [problem["kind"] for problem in found["problems"]] == ["not_media"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--windows", "3", "--shots"], "choose one"),
        (["--format", "srt", "--n-best", "2"], "one caption at a time"),
        (["--format", "srt", "second.mp4"], "2 videos make 2 srt files; give a folder with --output"),
        (["--json", "--format", "csv"], "leave --format and --output out"),
        (["--output", "."], "is a folder; name the file"),
    ],
)
def test_what_cannot_go_together_is_refused_before_any_work(
    longtake: Longtake, place: Place, tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "second.mp4").write_bytes(b"x")
    answer = longtake("caption", place.clip("test"), "-w", place.workspace.root, *options)
    assert answer.code == 2 and said in " ".join(answer.err.split())
    assert not (place.workspace.features / "loose").exists()


def test_cocos_results_have_an_image_id_and_a_caption_for_every_file(longtake: Longtake, place: Place, tmp_path: Path) -> None:
    for n, name in enumerate(("COCO_val2014_000000000139.mp4", "my clip.mp4")):
        shutil.copy(place.clip("test", n), tmp_path / name)
    asked = ("caption", tmp_path / "COCO_val2014_000000000139.mp4", tmp_path / "my clip.mp4", "-w", place.workspace.root)
    answer = longtake(*asked, "--format", "coco", "--output", tmp_path / "results.json")
    assert answer.code == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert [row["image_id"] for row in found] == [139, "my clip"]
    assert [set(row) for row in found] == [{"image_id", "caption"}] * 2 and all(row["caption"] for row in found)
    refused = longtake(*asked, "--format", "coco", "--n-best", "3")
    assert refused.code == 2 and "one caption per file" in refused.err


def test_evaluate_writes_the_captions_of_its_split_as_cocos_server_wants_them(
    longtake: Longtake, place: Place, tmp_path: Path
) -> None:
    recipe = yaml.safe_load(TOY.read_text()) | {"dataset": {"kind": "folder", "name": "toy", "path": str(place.data)}}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(recipe))
    asked = ("evaluate", tmp_path / "toy.yaml", "-w", place.workspace.root)
    assert longtake(*asked, "--output", tmp_path / "results.json").code == 0
    found = {row["image_id"]: row["caption"] for row in json.loads((tmp_path / "results.json").read_text())}
    assert found == {row.video_id: row.caption for row in read_captions(place.folder("caption"))} and len(found) == 4
    refused = longtake(*asked, "--format", "srt", "--output", tmp_path / "x.srt")
    assert refused.code == 2 and "choose coco" in refused.err
