"""Looks: the right frames in pieces, each fitted, with bounded memory; what fails fails alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from storage.errors import BadMedia
from storage.media import frame_stream as module
from storage.media.frame_sampling import Clips, EveryNth, Keyframes, Sampling, Times, Uniform, Windows, choose_frames
from storage.media.frame_stream import (
    AudioRequest,
    Chunk,
    DecodeJob,
    EndOfStream,
    Failed,
    FrameRequest,
    Restart,
    gather,
    stream_frames,
)
from storage.media.log_mel import patches
from storage.media.probe import probe
from storage.media.resize import FrameTransform, resize_and_crop
from storage.records import TimeSpan
from tests.storage.clips import make_clip, numbered_image, read_numbers
from tests.storage.decoding import read_samples

SAMPLINGS: dict[str, Sampling] = {
    "few": Uniform(frames=5),
    "every": EveryNth(stride=3),
    "times": Times(fps=3),
    "windows": Windows(seconds=0.4, overlap=0.1, length=4),
    "clips": Clips(stride=4, length=8),
    "far": Keyframes(count=6, near=3, far=26),
}


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece a position, so that the order of many pieces is seen."""
    monkeypatch.setattr(module, "FRAME_CHUNK_BYTES", 1)


def test_every_sampling_gets_its_frames_whatever_the_size_of_the_pieces(tmp_path: Path, tiny_pieces: None) -> None:
    path = make_clip(tmp_path / "a.mp4", 90)
    found = probe(path)
    events = list(stream_frames(DecodeJob(path, {name: FrameRequest(how) for name, how in SAMPLINGS.items()}, None, found)))
    assert isinstance(events[-1], EndOfStream) and not events[-1].damaged
    for name, how in SAMPLINGS.items():
        mine = [event for event in events if isinstance(event, Chunk) and event.request == name]
        plan = choose_frames(how, found.pts)
        assert 1 < len(mine) <= len(plan)
        assert np.array_equal(np.concatenate([chunk.indices for chunk in mine]), plan)
        assert read_numbers(np.concatenate([chunk.items for chunk in mine])) == plan.ravel().tolist()


def test_a_request_keeps_only_the_frames_that_later_positions_need(tmp_path: Path, tiny_pieces: None) -> None:
    path = make_clip(tmp_path / "a.mp4", 120)
    found = probe(path)
    plan = choose_frames(SAMPLINGS["clips"], found.pts)
    collector = module._FrameCollector("clips", FrameRequest(SAMPLINGS["clips"]), plan, found)
    most = 0
    for number in np.unique(plan):
        collector.add(int(number), lambda transform: np.zeros((2, 2, 3), np.uint8))
        most = max(most, len(collector._kept))
    assert most <= 8 and not collector._kept


def test_frames_are_fitted_as_the_net_wants_them(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 10)
    fits = {
        "crop": FrameTransform(short=32, crop=(32, 32)),
        "squash": FrameTransform(size=(20, 30), interpolation="bicubic"),
        "whole": FrameTransform(),
    }
    requests = {name: FrameRequest(Uniform(frames=3), fit) for name, fit in fits.items()}
    frames = gather(stream_frames(DecodeJob(path, requests, None, probe(path))))
    assert {name: frames[name].images.shape for name in fits} == {
        "crop": (3, 1, 32, 32, 3),
        "squash": (3, 1, 30, 20, 3),
        "whole": (3, 1, 64, 96, 3),
    }
    whole = frames["whole"].images[1, 0]
    for name, fit in fits.items():
        assert np.array_equal(frames[name].images[1, 0], resize_and_crop(whole, fit))


@pytest.mark.parametrize(
    ("fit", "width", "height", "expected"),
    [
        (FrameTransform(short=224), 640, 360, (398, 224)),
        (FrameTransform(short=224), 360, 640, (224, 398)),
        (FrameTransform(short=800, longest=1333), 1920, 1080, (1333, 749)),
        (FrameTransform(short=800, longest=1333), 640, 480, (1066, 800)),
        (FrameTransform(size=(171, 128)), 33, 44, (171, 128)),
        (FrameTransform(), 33, 44, (33, 44)),
    ],
)
def test_sizes_before_the_crop(fit: FrameTransform, width: int, height: int, expected: tuple[int, int]) -> None:
    assert fit.resized(width, height) == expected


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_what_the_crop_cuts_off_changes_no_pixel_of_the_rest(interpolation: Literal["bilinear", "bicubic"]) -> None:
    draw = np.random.default_rng(3)
    kernel = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[interpolation]
    for _ in range(60):
        width, height, short, side = (int(n) for n in draw.integers((9, 9, 20, 10), (300, 300, 90, 100)))
        frame = draw.integers(0, 256, (height, width, 3), np.uint8)
        size = FrameTransform(short=short).resized(width, height) if draw.random() < 0.8 else (short, height)
        whole = np.asarray(Image.fromarray(frame).resize(size, kernel))
        left, top = (max(0, round((n - side) / 2)) for n in size)
        expected = whole[top : top + side, left : left + side]
        fit = FrameTransform(size=size, crop=(side, side), interpolation=interpolation)
        assert np.array_equal(resize_and_crop(frame, fit), expected)
        assert np.array_equal(resize_and_crop(Image.fromarray(frame), fit), expected), "as Pillow holds it"
        assert np.array_equal(resize_and_crop(frame, replace(fit, crop=None)), whole)


def test_a_crop_is_the_middle_and_a_strip_of_film_does_not_fill_memory() -> None:
    picture = np.zeros((10, 30, 3), np.uint8)
    picture[:, 10:20] = 255
    assert (resize_and_crop(picture, FrameTransform(short=10, crop=(10, 10))) == 255).all()
    strip = np.zeros((1, 60_000, 3), np.uint8)
    strip[:, 29_999:30_001] = 255
    assert resize_and_crop(strip, FrameTransform(short=224, crop=(224, 224))).shape == (224, 224, 3)


def test_fewer_frames_than_promised_start_over_on_what_is_there(tmp_path: Path, tiny_pieces: None) -> None:
    path = make_clip(tmp_path / "a.mp4", 40)
    found = probe(path)
    longer = replace(found, frames=60, pts=np.arange(60) / 25, reader="pyav")
    events = list(stream_frames(DecodeJob(path, {"few": FrameRequest(Uniform(frames=6))}, None, longer)))
    assert any(isinstance(event, Restart) for event in events)
    assert isinstance(events[-1], EndOfStream) and events[-1].damaged
    sampled = gather(events)["few"]
    assert read_numbers(sampled.images) == choose_frames(Uniform(frames=6), found.pts).ravel().tolist()


def test_a_look_does_not_depend_on_the_looks_beside_it(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 40)
    found = probe(path)
    promised = replace(found, frames=60, pts=np.arange(60) / 25, reader="pyav")
    early = FrameRequest(Uniform(frames=2))
    late = FrameRequest(EveryNth(stride=7))
    alone = gather(stream_frames(DecodeJob(path, {"early": early}, (0.0, 1.0), promised)))["early"]
    events = list(module._decode(DecodeJob(path, {"early": early, "late": late}, None, promised)))
    assert [event.requests for event in events if isinstance(event, Restart)] == [("early", "late")], "both reach too far"
    near = list(stream_frames(DecodeJob(path, {"early": early, "late": late}, (0.0, 1.0), promised)))
    assert not any(isinstance(event, Restart) for event in near)
    assert np.array_equal(gather(near)["early"].images, alone.images)
    first = FrameRequest(EveryNth(stride=60))
    events = list(module._decode(DecodeJob(path, {"first": first, "late": late}, None, promised)))
    assert [event.requests for event in events if isinstance(event, Restart)] == [("late",)], "the first frame is there"
    assert read_numbers(gather(events)["first"].images) == [0]


def test_sound_is_heard_in_patches_and_silence_is_an_answer(tmp_path: Path) -> None:
    from tests.storage.decoding import read_audio

    loud = make_clip(tmp_path / "loud.mp4", 60, tone=440.0)
    still = make_clip(tmp_path / "still.mp4", 60)
    events = list(stream_frames(DecodeJob(loud, {"ears": AudioRequest()}, None, probe(loud))))
    heard = np.concatenate([event.items for event in events if isinstance(event, Chunk)])
    sound = read_audio(loud)
    assert sound is not None and np.array_equal(heard, patches(sound)) and len(heard) == 2
    assert [type(event) for event in stream_frames(DecodeJob(still, {"ears": AudioRequest()}, None, probe(still)))] == [
        EndOfStream
    ]


@pytest.mark.parametrize("segment", [None, (0.5, 2.0)])
def test_sound_can_be_heard_at_the_times_of_frames(tmp_path: Path, segment: TimeSpan | None) -> None:
    loud = make_clip(tmp_path / "loud.mp4", 60, tone=440.0)
    still = make_clip(tmp_path / "still.mp4", 60)
    twice = Times(fps=4)
    requests = {"eyes": FrameRequest(twice), "ears": AudioRequest(twice), "all": AudioRequest()}
    found: dict[str, list[Chunk]] = {name: [] for name in requests}
    for event in stream_frames(DecodeJob(loud, requests, segment, probe(loud))):
        if isinstance(event, Chunk):
            found[event.request].append(event)
    seen, heard = (np.concatenate([chunk.pts for chunk in found[name]]) for name in ("eyes", "ears"))
    assert np.array_equal(seen, heard) and len(seen) == (6 if segment else 10)
    assert sum(len(chunk.items) for chunk in found["ears"]) == len(heard) and found["all"]
    job = DecodeJob(still, {"ears": AudioRequest(twice)}, None, probe(still))
    assert [type(event) for event in stream_frames(job)] == [EndOfStream]


def test_what_cannot_be_seen_is_missed_and_the_rest_is_heard(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 60, tone=440.0)
    beyond = DecodeJob(path, {"eyes": FrameRequest(Uniform(frames=2)), "ears": AudioRequest()}, (50.0, 60.0), probe(path))
    events = list(stream_frames(beyond))
    assert isinstance(events[0], Failed) and events[0].requests == ("eyes",) and events[0].bad.kind == "segment_outside"
    assert isinstance(events[-1], EndOfStream)
    with pytest.raises(BadMedia):
        gather(events)


def test_a_picture_is_one_frame(tmp_path: Path) -> None:
    from PIL import Image

    Image.fromarray(numbered_image(9)).save(tmp_path / "a.png")
    sampled = read_samples(tmp_path / "a.png", SAMPLINGS, None, probe(tmp_path / "a.png"))
    assert {name: len(found.images) for name, found in sampled.items()} == dict.fromkeys(SAMPLINGS, 1)
    assert read_numbers(sampled["few"].images) == [9]
