"""Frame accuracy: every strategy gets exactly the frames it asks for, whatever the codec and the container, read back from
the pixels; and jumps over unwanted frames change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage.errors import BadMedia
from storage.media.frame_sampling import Clips, EveryNth, Keyframes, Sampling, Uniform, choose_frames
from storage.media.probe import Probe, open_reader, probe
from storage.media.readers import DecordReader, PyavReader
from storage.media.seeking_reader import SeekingReader
from tests.storage.clip_kinds import COUNT, HEVC, KINDS, MILLISECOND, OPEN
from tests.storage.clips import copy_packets, keyframe_packets, make_clip, read_numbers
from tests.storage.decoding import decode, read_samples

NAMES = [pytest.param(name, marks=() if kind.quick else pytest.mark.slow) for name, kind in KINDS.items()]

SAMPLINGS: dict[str, Sampling] = {
    "uniform": Uniform(frames=7),
    "every": EveryNth(stride=5),
    "clips": Clips(positions=3, length=5, step=2),
    "keyframes": Keyframes(count=3),
}

Clip = Callable[[str], tuple[Path, Probe]]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    """clip(name) is a clip of that kind and its probe, each made once."""
    made: dict[str, tuple[Path, Probe]] = {}

    def get(name: str) -> tuple[Path, Probe]:
        if name not in made:
            wanted = KINDS[name]
            path = make_clip(tmp_path_factory.mktemp("clip") / wanted.file, wanted.count, **wanted.how)
            made[name] = path, probe(path)
        return made[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_gets_exactly_the_frames_it_asks_for(clip: Clip, name: str) -> None:
    path, found = clip(name)
    how = KINDS[name].how
    assert (found.frames, found.reader, found.damaged) == (KINDS[name].count, KINDS[name].reader, False)
    assert (found.width, found.height) == how.get("size", (96, 64))
    assert found.has_audio == ("tone" in how)
    shown = np.array(how["times"]) / 1000 if "times" in how else np.arange(found.frames) / float(how.get("fps", 25))
    assert np.allclose(found.pts, shown, rtol=0, atol=KINDS[name].within)
    for segment in (None, (0.55 * found.duration, 0.9 * found.duration)):
        for strategy, sampled in read_samples(path, SAMPLINGS, segment, found).items():
            asked = choose_frames(SAMPLINGS[strategy], found.pts, segment)
            assert read_numbers(sampled.images) == asked.ravel().tolist(), (strategy, segment)
            assert np.array_equal(sampled.pts, found.pts[asked[:, asked.shape[1] // 2]])
            assert not sampled.damaged


@pytest.mark.parametrize("name", NAMES)
def test_jumps_and_both_readers_give_the_same_bits(clip: Clip, name: str) -> None:
    """Every reader that may be chosen, at full size and scaled, against one pass of PyAV from the first frame on."""
    path, found = clip(name)
    every = np.arange(found.frames)
    truth = decode(path, every, replace(found, reader="pyav"))
    assert read_numbers(truth.images) == every.tolist() and not truth.damaged
    chosen = decode(path, every, found)
    assert chosen.seen == truth.seen and not chosen.damaged
    assert np.array_equal(chosen.images, truth.images) and np.array_equal(chosen.pts, truth.pts)
    size = (truth.images.shape[2] // 2 + 1, truth.images.shape[1] // 2 + 1)
    small = decode(path, every, replace(found, reader="pyav"), size)
    frames_skipped = 0
    for numbers in ([-1], [0, -1], [-20, -3], [30, 62, 63, 88], [25, 50, 75], range(60, 85), range(0, 90, 26)):
        wanted = np.unique([n % found.frames for n in numbers])
        some, scaled = decode(path, wanted, found), decode(path, wanted, found, size)
        assert np.array_equal(some.images, truth.images[wanted]), wanted
        assert np.array_equal(some.pts, truth.pts[wanted]) and not some.damaged
        assert np.array_equal(scaled.images, small.images[wanted])
        reader, _ = open_reader(path, wanted, found)
        if isinstance(reader, SeekingReader):
            assert len(list(zip(range(wanted[-1] + 1), reader.frames(), strict=False))) == wanted[-1] + 1
            frames_skipped += reader.frames_skipped
    assert (frames_skipped > 0) == KINDS[name].jumps


def sources(folder: Path) -> dict[str, Path]:
    """Clips with a keyframe every 20 frames, to be cut."""
    return {
        "h264": make_clip(folder / "h264.mp4", COUNT, options={"bf": "2", "g": "20"}),
        "open": make_clip(folder / "open.mp4", COUNT, options={"bf": "2", "x264-params": OPEN}),
        "hevc": make_clip(folder / "hevc.mp4", COUNT, codec="libx265", options={"x265-params": f"{HEVC}:keyint=20"}),
        "mpeg4": make_clip(folder / "mpeg4.mp4", COUNT, codec="mpeg4", options={"bf": "2", "g": "20"}),
        "mpeg2": make_clip(folder / "mpeg2.ts", COUNT, codec="mpeg2video", options={"bf": "2", "g": "20"}),
        "wmv": make_clip(folder / "wmv.wmv", COUNT, codec="wmv2", options={"g": "20"}),
        "vp9": make_clip(folder / "vp9.webm", COUNT, codec="libvpx-vp9", options={"cpu-used": "8", "g": "20"}),
        "vp8": make_clip(folder / "vp8.webm", COUNT, codec="libvpx", options={"g": "20"}),
    }


def test_a_cut_without_encoding_shows_whole_pictures_only(tmp_path: Path) -> None:
    """Packets copied from a keyframe on and from inside a group: frames that lean on what was cut away are no part of the
    video, all others are there, under their own time."""
    targets = {"mpeg2": ("ts", "mkv"), "wmv": ("wmv",), "vp8": ("mkv",), "vp9": ("mp4", "mkv")}
    for name, source in sources(tmp_path).items():
        second = keyframe_packets(source)[2]
        for suffix in targets.get(name, ("mp4", "mkv")):
            for first in (second, second - 8, second + 1):
                path = copy_packets(source, tmp_path / f"cut-{name}-{first}.{suffix}", first)
                found = probe(path)
                every = decode(path, np.arange(found.frames), found)
                numbers = read_numbers(every.images)
                case = (name, suffix, first, numbers[:5])
                assert numbers == list(range(COUNT - found.frames, COUNT)), case
                assert found.frames >= 25 and not (found.damaged or every.damaged), case
                assert np.allclose(np.diff(found.pts), 1 / 25, atol=MILLISECOND), case
                for wanted in ([found.frames - 1], [3, 29, 30]):
                    wanted = [n for n in wanted if n < found.frames]
                    late = decode(path, np.array(wanted), found)
                    assert np.array_equal(late.images, every.images[wanted]), case


def test_a_file_without_any_whole_picture_is_refused(tmp_path: Path) -> None:
    source = make_clip(tmp_path / "a.mp4", 40, codec="mpeg4", options={"g": "250"})
    path = copy_packets(source, tmp_path / "b.mp4", 5)
    with pytest.raises(BadMedia) as caught:
        probe(path)
    assert caught.value.kind == "undecodable"


def test_a_jump_that_leads_astray_is_taken_back(clip: Clip) -> None:
    """Times that do not fit the file: the pass from the start counts, and says what it saw."""
    path, found = clip("h264, short GOPs")
    wanted = np.array([5, 60, 80])
    truth = decode(path, wanted, replace(found, codec="other", reader="pyav"))
    for shift in (np.arange(90) * 1e-4, np.where(np.arange(90) > 70, 0.01, 0.0)):
        reader = SeekingReader(path, found.start + found.pts + shift, wanted)
        frames = [(number, time, render) for number, (time, render) in enumerate(reader.frames()) if number in wanted]
        assert [number for number, _, _ in frames] == wanted.tolist()
        assert np.array_equal(np.stack([render() for _, _, render in frames]), truth.images)
        assert [time for _, time, _ in frames] == pytest.approx(truth.pts + found.start, abs=0.02)


def test_damage_behind_a_jump_gives_what_a_whole_pass_gives(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", COUNT, options={"bf": "2", "g": "15"})
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    place = start + (len(data) - start) * 6 // 10
    data[place : place + 300] = bytes(300)
    path.write_bytes(data)
    found = probe(path)
    wanted = np.array([2, 40, 86])
    reader, _ = open_reader(path, wanted, found)
    assert isinstance(reader, SeekingReader)
    ours, truth = decode(path, wanted, found), decode(path, wanted, replace(found, codec="other", reader="pyav"))
    assert len(ours.pts) == len(truth.pts)
    at = [n for n in range(len(ours.pts)) if ours.pts[n] == truth.pts[n]]
    assert at and np.array_equal(ours.images[at], truth.images[at])


def test_the_reader_follows_what_is_wanted(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 250, options={"bf": "2", "g": "20"})
    found = probe(path)
    late, _ = open_reader(path, np.arange(230, 250), found)
    assert isinstance(late, SeekingReader) and list(zip(range(250), late.frames(), strict=False))
    assert late.frames_skipped >= 200
    assert isinstance(open_reader(path, np.arange(0, 250, 5), found)[0], PyavReader)
    dense, to_the_end = open_reader(path, np.arange(250), found)
    assert isinstance(dense, DecordReader) and to_the_end
