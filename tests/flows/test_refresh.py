"""Refresh: what changed since the last run and the last training, silence when nothing did, and telling again after a kill."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from flows.refresh import Refreshed, find_changes, watch
from storage.catalogue import Changes
from storage.errors import BadInput
from storage.files.folder_fingerprint import folder_fingerprint
from storage.runs import load_runs, save_run
from tests.flows.toy_place import Place, executed, noted, recipe_on


def news_of(place: Place):
    return find_changes(recipe_on(place.data), place.workspace)


def add_clip(place: Place, name: str, split: str) -> None:
    (place.data / "videos" / f"{name}.mp4").write_bytes(place.clip("train").read_bytes() + name.encode())
    with (place.data / "captions.jsonl").open("a") as file:
        file.write(json.dumps({"video": name, "caption": "a red ball", "split": split}) + "\n")


def drop_clip(place: Place, name: str) -> None:
    lines = (place.data / "captions.jsonl").read_text().splitlines(keepends=True)
    (place.data / "captions.jsonl").write_text("".join(line for line in lines if f'"{name}"' not in line))
    (place.data / "videos" / f"{name}.mp4").unlink()


def test_nothing_changed_is_no_news(place: Place) -> None:
    news = news_of(place)
    assert not news.any and str(news) == "Refresh toy: nothing changed"
    assert news.changes == news.since_training == Changes()


def test_new_changed_and_removed_videos_are_counted_and_only_they_are_extracted(place: Place) -> None:
    for n in range(3):
        add_clip(place, f"new{n}", "test")
    changed = place.clip("test", 0)
    changed.write_bytes(changed.read_bytes() + b"other")
    drop_clip(place, place.clip("test", 1).stem)
    news = news_of(place)
    assert news.changes == news.since_training == Changes(added=3, removed=1, changed=1)
    assert str(news) == "Refresh toy: 3 videos added, 1 video removed, 1 video changed"
    assert news.plan.steps[-1].label == "extract_features", "no training in a refresh"
    assert "seed" not in executed(news.plan)
    done = news.plan.steps[-1].find_completion()
    assert done is not None and done.summary["extracted"] == {"scene": 4} and done.ref.count == 18 + 3 - 1
    again = news_of(place)
    assert not again.any and again.since_training.videos == 5, "taken in, but not trained on yet"


def test_a_refresh_that_was_killed_before_it_told_tells_again(place: Place) -> None:
    add_clip(place, "new", "val")
    news = news_of(place)
    for step in news.plan.steps:
        step.execute()
    noted(news.plan, "running")  # killed when everything was made
    again = news_of(place)
    assert not again.plan.to_do and again.data_changed and again.changes == Changes(added=1)


def test_changes_add_up_until_a_training_took_them_in(place: Place) -> None:
    for n in range(2):
        add_clip(place, f"new{n}", "train")
        executed(news_of(place).plan)
    add_clip(place, "last", "train")
    assert (news_of(place).changes.videos, news_of(place).since_training.videos) == (1, 3)
    executed(place.plan())
    assert news_of(place).since_training == Changes()


def test_before_the_first_run_everything_is_new(place: Place) -> None:
    for run in load_runs(place.workspace):
        save_run(place.workspace, replace(run, state="failed"))
    assert news_of(place).changes == Changes(added=18)


def test_the_event_tells_counts_and_the_new_key_and_no_more_than_json(place: Place) -> None:
    add_clip(place, "new", "test")
    news = news_of(place)
    told = Refreshed(news, None, True).payload()
    assert json.loads(json.dumps(told)) == told
    assert (told["added"], told["changed"], told["removed"], told["key"]) == (1, 0, 0, news.plan.steps[0].ref.key)


def test_a_glance_sees_files_come_go_and_change(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    seen = [folder_fingerprint(tmp_path)]
    path = tmp_path / "deep" / "er" / "a.mp4"
    path.write_text("a")
    seen.append(folder_fingerprint(tmp_path))
    path.write_text("ab")
    seen.append(folder_fingerprint(tmp_path))
    os.utime(path, ns=(1, 1))
    seen.append(folder_fingerprint(tmp_path))
    path.rename(path.with_name("b.mp4"))
    seen.append(folder_fingerprint(tmp_path))
    assert len(set(seen)) == 5 and folder_fingerprint(tmp_path) == seen[-1]
    path.with_name("b.mp4").unlink()
    assert folder_fingerprint(tmp_path) == seen[0]
    with pytest.raises(BadInput, match="does not exist"):
        folder_fingerprint(tmp_path / "nowhere")


def test_the_watcher_waits_until_copying_has_ended(tmp_path: Path) -> None:
    looks: list[str] = []

    def later(_seconds: float) -> None:
        looks.append("slept")
        if len(looks) <= 3:
            (tmp_path / "clip.mp4").write_text("x" * len(looks))  # still growing at the first three looks

    assert len(list(islice(watch(tmp_path, 1, later), 1))) == 1 and looks == []
    assert len(list(islice(watch(tmp_path, 1, later), 2))) == 2
    assert len(looks) == 4, "told once the folder looked the same twice"
