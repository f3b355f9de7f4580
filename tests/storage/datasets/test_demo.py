"""The demo world: what was planned, what was drawn, and that drawing it again or in pieces gives the same bytes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import av
import numpy as np
import pytest
from pydantic import ValidationError

from storage.datasets.demo import DemoOptions, draw_world, encode_clip, read_demo
from storage.datasets.demo_draw import SOUND_RATE, draw_frames, draw_sound
from storage.datasets.demo_scene import ACTIONS, COLOURS, DETAILS, SHAPES, SIZES, SOUNDS, Scene
from storage.errors import BadInput, StorageError

SMALL = DemoOptions(train=6, val=2, test=4, size=48, seconds=1.5)
PLAN = DemoOptions().plan()
# What a reader would understand from a word, kept apart from the grammar on purpose.
SAYS_SHAPE = {"circle": {"circle", "ball"}, "square": {"square", "box"}, "triangle": {"triangle"}, "star": {"star"}}
SAYS_ACTION = {
    "left": {"left"},
    "right": {"right"},
    "up": {"up", "rises", "rising"},
    "down": {"down", "falls", "falling"},
    "spins": {"spins", "spinning", "turns", "turning"},
    "grows": {"grows", "growing", "bigger"},
    "bounces": {"bounces", "bouncing", "jumps", "jumping"},
    "blinks": {"blinks", "blinking", "flashes", "flashing"},
}
SAYS_SIZE = {"small": {"small", "little"}, "big": {"big", "large"}}
SAYS_SOUND = {"low": {"hum"}, "high": {"beep"}, "noise": {"noise"}, "none": {"silence", "without"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("demo") / "world"
    assert draw_world(root, SMALL)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def truth(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / "truth.jsonl").open()]


def meant(words: set[str], meanings: dict[str, set[str]]) -> set[str]:
    return {meaning for meaning, signs in meanings.items() if words & signs}


def subject_track(scene: Scene) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Area, x and y of the coloured pixels in each frame of the event; background and details are nearly grey."""
    frames = draw_frames(scene, 64, 12)[scene.start : scene.end].astype(int)
    mask = frames.max(-1) - frames.min(-1) > 90
    area = mask.sum((1, 2))
    line = np.arange(64)
    with np.errstate(invalid="ignore"):
        return area, (mask.sum(1) * line).sum(1) / area, (mask.sum(2) * line).sum(1) / area


def test_same_options_give_the_same_bytes_whatever_the_number_of_workers(world, tmp_path):
    assert draw_world(tmp_path / "again", SMALL, workers=1)
    assert contents(tmp_path / "again") == contents(world)


def test_an_encoder_that_finds_other_leftovers_in_memory_writes_the_same_bytes(world):
    """x264's assembly once read past the rows of narrow clips: up to half of the clips differed from one time to the next."""
    scene = next(clip.scene for clip in SMALL.plan() if clip.id == "val-0002")
    frames, sound = draw_frames(scene, SMALL.size, SMALL.fps), draw_sound(scene, SMALL.fps)

    def encode(n: int) -> bytes:
        leftovers = np.random.default_rng(n).integers(0, 255, 50_000 * (n % 60 + 1), dtype=np.uint8)
        return encode_clip(frames.copy(), sound, SMALL.fps) if leftovers.size else b""

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(encode, range(80))) == {(world / "videos" / "val-0002.mp4").read_bytes()}


def test_another_seed_gives_another_world(world, tmp_path):
    draw_world(tmp_path, SMALL.model_copy(update={"seed": 1}))
    ours, theirs = contents(world), contents(tmp_path)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if ours[name] == theirs[name]]


def test_a_finished_world_is_left_alone(world):
    before = contents(world)
    calls: list[tuple[int, int]] = []
    assert not draw_world(world, SMALL, progress=lambda done, total: calls.append((done, total)))
    assert contents(world) == before
    assert not calls


def test_an_interrupted_world_goes_on_and_ends_with_the_same_bytes(world, tmp_path):
    def stop_at_four(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_world(tmp_path, SMALL, workers=1, progress=stop_at_four)
    with pytest.raises(BadInput, match=r"no demo world at .*; run 'longtake demo'"):
        read_demo(SMALL, tmp_path)
    videos = tmp_path / "videos"
    (videos / "train-0002.mp4").unlink()
    (videos / "train-0006.mp4.tmp-0123456789ab").write_bytes(b"half a clip")
    kept = {path: path.stat().st_mtime_ns for path in videos.glob("*.mp4")}
    assert 3 <= len(kept) < 12
    calls: list[tuple[int, int]] = []
    assert draw_world(tmp_path, SMALL, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(n, 12) for n in range(len(kept) + 1, 13)]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert contents(tmp_path) == contents(world)


def test_two_at_once_draw_one_world(world, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        drew = list(pool.map(lambda _: draw_world(tmp_path, SMALL), range(2)))
    assert sorted(drew) == [False, True]
    assert contents(tmp_path) == contents(world)


def test_a_folder_with_another_world_is_refused_and_unchanged(world, tmp_path):
    before = contents(world)
    with pytest.raises(BadInput, match="with seed=0, but seed=7 is asked for"):
        draw_world(world, SMALL.model_copy(update={"seed": 7}))
    assert contents(world) == before
    (tmp_path / "world.unfinished.json").write_bytes(before["world.json"])
    with pytest.raises(BadInput, match="size=48"):
        draw_world(tmp_path, SMALL.model_copy(update={"size": 64}))
    (tmp_path / "world.json").write_text("[]")
    with pytest.raises(BadInput, match="not the marker of a demo world"):
        draw_world(tmp_path, SMALL)


def test_a_folder_of_the_users_own_is_never_drawn_into(tmp_path):
    (tmp_path / "captions.jsonl").write_text("mine")
    with pytest.raises(BadInput, match=r"already has captions\.jsonl"):
        draw_world(tmp_path, SMALL)
    assert contents(tmp_path) == {"captions.jsonl": b"mine"}


def test_a_file_in_the_way_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file stands where a folder is needed"):
        draw_world(tmp_path / "file" / "world", SMALL)


@pytest.mark.parametrize(("event", "inside"), [((0.5, 0.73), 1.0), ((0.3, 0.45), 0.6)])
def test_short_events_miss_the_middle_of_their_clips(event, inside):
    plan = DemoOptions(event=event).plan()
    assert all(event[0] - 0.02 <= (c.scene.end - c.scene.start) / c.scene.frames <= event[1] + 0.02 for c in plan)
    assert all(0 < c.scene.start < c.scene.end < c.scene.frames for c in plan)
    middle = np.mean([c.scene.start <= c.scene.frames // 2 < c.scene.end for c in plan])
    assert middle == pytest.approx(inside, abs=0.08)


@pytest.mark.parametrize("event", [(0.1, 0.5), (0.6, 0.5), (0.5, 1.0)])
def test_an_event_that_is_no_part_of_a_clip_is_refused(event):
    with pytest.raises(ValidationError, match="two parts of a clip"):
        DemoOptions(event=event)


def test_an_odd_size_is_refused():
    with pytest.raises(ValidationError, match="even"):
        DemoOptions(size=97)


def test_the_world_reads_as_a_data_set(world):
    dataset = read_demo(SMALL, world)
    clips = SMALL.plan()
    assert dataset.name == "demo"
    assert not dataset.problems
    assert {(video.id, video.split, video.source) for video in dataset.videos} == {
        (clip.id, clip.split, f"videos/{clip.id}.mp4") for clip in clips
    }
    assert {(one.video_id, one.n, one.text) for one in dataset.captions} == {
        (clip.id, n, caption.text) for clip in clips for n, caption in enumerate(clip.captions)
    }
    assert len(dataset.captions) == 120


def test_clips_decode_to_the_promised_frames_and_sound(world):
    rows = truth(world)
    assert {row["sound"] == "none" for row in rows} == {True, False}
    for row in rows:
        with av.open(world / "videos" / f"{row['video']}.mp4") as file:
            images = list(file.decode(video=0))
        assert [image.time for image in images] == [pytest.approx(n / 12) for n in range(18)]
        assert (images[0].width, images[0].height) == (48, 48)
        with av.open(world / "videos" / f"{row['video']}.mp4") as file:
            heard = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
        assert abs(len(heard) / SOUND_RATE - 1.5) < 0.1
        start, end = (row[name] * SOUND_RATE // 12 for name in ("start", "end"))
        assert (np.abs(heard[start:end]).max() > 0.1) == (row["sound"] != "none")
        assert np.abs(heard[: start - 1024]).max() < 0.01


def test_truth_tells_the_event_the_twin_and_the_kind_of_every_caption(world):
    for row, clip in zip(truth(world), SMALL.plan(), strict=True):
        assert 0 < row["start"] < row["end"] < row["frames"] == 18
        assert row["captions"] == [caption.kind for caption in clip.captions]
        assert (row["video"], row["twin"], row["action"]) == (clip.id, clip.near_duplicate, clip.scene.action)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_splits_share_every_word_but_no_combination(seed):
    plan = DemoOptions(seed=seed).plan()
    triples, words = {}, {}
    for split, count in (("train", 320), ("val", 40), ("test", 60)):
        clips = [clip for clip in plan if clip.split == split]
        assert len(clips) == count
        triples[split] = {(clip.scene.colour, clip.scene.shape, clip.scene.action) for clip in clips}
        words[split] = {word for clip in clips for caption in clip.captions for word in caption.text.split()}
    assert not any(one & other for one, other in combinations(triples.values(), 2))
    assert words["train"] >= words["val"] | words["test"]
    assert 60 <= len(words["train"]) <= 90


def test_training_sees_every_property_often_and_every_pair():
    scenes = [clip.scene for clip in PLAN if clip.split == "train"]
    known = {"colour": COLOURS, "shape": SHAPES, "action": ACTIONS, "size": SIZES, "detail": DETAILS, "sound": SOUNDS}
    for name, values in known.items():
        for value in values:
            share = sum(getattr(scene, name) == value for scene in scenes) / len(scenes)
            assert share > 0.5 / len(values), (name, value)
    possible = {(shape, action) for shape in SHAPES for action in ACTIONS} - {("circle", "spins")}
    assert {(scene.shape, scene.action) for scene in scenes} == possible
    assert len({(scene.colour, scene.shape) for scene in scenes}) == len(COLOURS) * len(SHAPES)
    assert len({(scene.colour, scene.action) for scene in scenes}) == len(COLOURS) * len(ACTIONS)


def test_growing_a_split_changes_no_clip():
    more = {clip.id: clip for clip in DemoOptions(train=400).plan()}
    fewer = [clip for clip in PLAN if clip.id != "train-0320"]  # the last may find its twin in the larger world
    assert [more[clip.id] for clip in fewer] == fewer


def test_near_twins_differ_in_exactly_one_property():
    clips = {clip.id: clip for clip in PLAN}
    for split in ("train", "test"):
        near_duplicates = [clip for clip in PLAN if clip.split == split and clip.near_duplicate]
        assert {clip.differs for clip in near_duplicates} == {"detail", "sound", "size"}
        assert len(near_duplicates) > 0.25 * sum(clip.split == split for clip in PLAN)
        for clip in near_duplicates:
            other = clips[str(clip.near_duplicate)]
            assert (other.near_duplicate, other.split) == (clip.id, split)
            theirs = asdict(other.scene)
            assert [name for name, mine in asdict(clip.scene).items() if mine != theirs[name]] == [clip.differs]


def test_two_captions_in_ten_are_lazy_and_one_is_wrong():
    for clip in PLAN:
        kinds = [caption.kind for caption in clip.captions]
        assert (kinds.count("lazy"), kinds.count("wrong"), len(kinds)) == (2, 1, 10)
        assert len({caption.text for caption in clip.captions}) == 10
    five = [caption.kind for clip in DemoOptions(captions=5).plan() for caption in clip.captions]
    assert five.count("wrong") / len(five) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_world_can_speak_more_often_of_details_without_another_pixel(share):
    plan = DemoOptions(detail_share=share).plan()
    assert [clip.scene for clip in plan] == [clip.scene for clip in PLAN]
    caption = [t.text for c in plan for t in c.captions if t.kind != "lazy" and c.scene.detail != "none"]
    assert np.mean(["white" in text for text in caption]) == pytest.approx(share, abs=0.03)
    heard = [t.text for c in plan for t in c.captions if t.kind != "lazy" and c.scene.sound != "none"]
    assert np.mean([bool(set(text.split()) & {"hum", "beep", "noise"}) for text in heard]) == pytest.approx(0.3, abs=0.03)


def test_good_captions_are_true_and_wrong_ones_err_once():
    for clip in PLAN:
        scene = clip.scene
        for caption in clip.captions:
            words = set(caption.text.split())
            said = (words & set(COLOURS), meant(words, SAYS_SHAPE), meant(words, SAYS_ACTION))
            right = [got == {true} for got, true in zip(said, (scene.colour, scene.shape, scene.action), strict=True)]
            assert right.count(True) == {"good": 3, "wrong": 2, "lazy": 0}[caption.kind], caption
            assert meant(words, SAYS_SIZE) <= {scene.size}
            assert words & {"cross", "dot", "ring"} <= {scene.detail}
            assert meant(words, SAYS_SOUND) <= {scene.sound}
            assert "a orange" not in caption.text
            assert caption.text == caption.text.strip().lower()


@pytest.mark.parametrize("action", ACTIONS)
def test_the_action_can_be_seen(action):
    scenes = [clip.scene for clip in PLAN if clip.scene.action == action][::5]
    assert {scene.size for scene in scenes} == {"small", "big"}
    for scene in scenes:
        area, x, y = subject_track(scene)
        if action in ("left", "right", "up", "down"):
            path, still = (x, y) if action in ("left", "right") else (y, x)
            forward = np.diff(path) * (-1 if action in ("left", "up") else 1)
            assert (forward > 0.7).all()
            assert np.ptp(still) < 3
        elif action == "grows":
            assert area[-1] > 3 * area[0]
        elif action == "bounces":
            assert np.ptp(y) > 64 / 5
            assert (np.diff(np.sign(np.diff(y))) != 0).sum() >= 3
        elif action == "blinks":
            assert area[0] > 0
            assert (np.diff(area > 0)).sum() >= 3
        else:
            frames = draw_frames(scene, 64, 12)[scene.start : scene.end].astype(int)
            assert np.ptp(x) < 6
            assert np.ptp(y) < 6
            assert (np.abs(frames[2:] - frames[:-2]).max((1, 2, 3)) > 60).all()


def test_colours_sizes_and_sounds_are_told_apart():
    base = next(clip.scene for clip in PLAN if clip.scene.action == "left" and clip.scene.shape == "square")
    small, big = (subject_track(replace(base, size=size))[0].max() for size in SIZES)
    assert big > 3 * small
    paints = []
    for colour in COLOURS:
        pixels = draw_frames(replace(base, colour=colour), 64, 12)[base.start + 4].astype(int).reshape(-1, 3)
        paints.append(pixels[np.ptp(pixels, axis=1).argmax()])
    assert min(np.abs(one - other).max() for one, other in combinations(paints, 2)) > 60
    peaks = {}
    for sound in ("low", "high", "noise"):
        power = np.abs(np.fft.rfft(draw_sound(replace(base, sound=sound), 12))) ** 2
        peaks[sound] = power.argmax() * SOUND_RATE / (2 * len(power) - 2), power.max() / power.sum()
    assert peaks["low"][0] < 200 < 1000 < peaks["high"][0] < 1600
    assert peaks["noise"][1] < 0.02 < min(peaks["low"][1], peaks["high"][1])


def test_a_detail_changes_only_its_corner():
    base = next(clip.scene for clip in PLAN if clip.scene.action != "blinks")
    plain, *marks = (draw_frames(replace(base, detail=name, corner=(0.12, 0.12)), 64, 12) for name in DETAILS)
    for mark in marks:
        changed = (mark != plain).any(-1)
        event = (np.arange(base.frames) >= base.start) & (np.arange(base.frames) < base.end)
        assert (changed.any((1, 2)) == event).all()
        assert not changed[:, 16:].any()
        assert not changed[:, :, 16:].any()
    assert len({mark.tobytes() for mark in marks}) == 3


def test_competing_subjects_stand_outside_the_event_and_captions_do_not_speak_of_them(tmp_path: Path) -> None:
    options = SMALL.model_copy(update={"competing": True, "event": (0.3, 0.4)})
    plain, plan = options.model_copy(update={"competing": False}).plan(), options.plan()
    assert [clip.captions for clip in plan] == [clip.captions for clip in plain], "what is said does not change"
    for clip in plan:
        scene = clip.scene
        assert len(scene.competing) == 2
        assert all(other.colour != scene.colour and other.shape != scene.shape for other in scene.competing)
        frames = draw_frames(scene, 48, 12).astype(int)
        outside = [frames[: scene.start], frames[scene.end :]]
        assert all(
            (part == part[:1]).all() and np.ptp(part[0].max(axis=2) - part[0].min(axis=2)) > 100 for part in outside if len(part)
        )


def test_a_world_without_competing_subjects_is_the_one_it_always_was(world: Path) -> None:
    assert "competing" not in (world / "world.json").read_text() and "competing" not in (world / "truth.jsonl").read_text()
    assert "competing" in SMALL.model_copy(update={"competing": True}).drawn()
