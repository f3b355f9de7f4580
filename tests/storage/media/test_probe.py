"""What probing finds, what decoding makes of segments, pictures and damage, and the words for bad files."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from storage.errors import BadMedia
from storage.media.frame_sampling import Clips, EveryNth, Keyframes, Sampling, Uniform
from storage.media.probe import probe
from tests.storage.clips import make_clip, make_sound, numbered_image, read_number, read_numbers
from tests.storage.decoding import decode, read_samples

COUNT = 90
UNEVEN = np.cumsum([0, *([20, 40, 120, 40] * COUNT)])[:COUNT].tolist()
QUIET = {"x265-params": "log-level=none"}

SAMPLINGS: dict[str, Sampling] = {
    "uniform": Uniform(frames=7),
    "every": EveryNth(stride=5),
    "clips": Clips(positions=3, length=5, step=2),
    "keyframes": Keyframes(count=3),
}


def test_time_stamps_of_uneven_frames_are_kept(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", COUNT, times=UNEVEN)
    found = probe(path)
    assert np.allclose(found.pts, np.array(UNEVEN) / 1000, atol=1e-6)
    sampled = read_samples(path, {"all": EveryNth(stride=1)}, (1.0, 2.0), found)["all"]
    shown = [n for n in range(COUNT) if 1000 <= UNEVEN[n] < 2000]
    assert read_numbers(sampled.images)[-len(shown) :] == shown
    assert sampled.pts[0] <= 1.0 < sampled.pts[1]


def test_a_segment_by_time_gets_its_own_frames(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", COUNT, options={"bf": "3"})
    sampled = read_samples(path, {"all": EveryNth(stride=1)}, (2.0, 2.4), probe(path))["all"]
    assert read_numbers(sampled.images) == list(range(50, 60))


@pytest.mark.parametrize("count", [1, 5])
def test_very_short_clips_give_every_frame_once(tmp_path: Path, count: int) -> None:
    path = make_clip(tmp_path / "a.mp4", count)
    found = probe(path)
    assert found.frames == count and found.duration == pytest.approx(count / 25)
    sampled = read_samples(path, {"uniform": Uniform(frames=28)}, None, found)["uniform"]
    assert read_numbers(sampled.images) == list(range(count))


def test_frames_are_scaled_as_they_come(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 10)
    frames = decode(path, np.array([2, 7]), probe(path), size=(40, 30))
    assert frames.images.shape == (2, 30, 40, 3) and read_numbers(frames.images) == [2, 7]


def test_colours_are_red_green_blue(tmp_path: Path) -> None:
    red = np.zeros((64, 96, 3), dtype=np.uint8)
    red[:, :, 0] = 220
    Image.fromarray(red).save(tmp_path / "red.png")
    with av.open(str(tmp_path / "red.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(red, format="rgb24")))
        container.mux(stream.encode(None))
    for name in ("red.png", "red.mp4"):
        pixel = decode(tmp_path / name, np.array([0]), probe(tmp_path / name)).images[0, 30, 40].astype(int)
        assert np.abs(pixel - [220, 0, 0]).max() < 12


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "a.bmp"])
def test_a_picture_is_a_video_of_one_frame(tmp_path: Path, name: str) -> None:
    Image.fromarray(numbered_image(77)).save(tmp_path / name)
    found = probe(tmp_path / name)
    assert (found.frames, found.is_image, found.width, found.height) == (1, True, 96, 64)
    sampled = read_samples(tmp_path / name, SAMPLINGS, None, found)
    assert read_numbers(sampled["uniform"].images) == [77]
    assert sampled["clips"].images.shape == (1, 5, 64, 96, 3)


def test_a_turned_photograph_is_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(numbered_image(77)).copy()).save(tmp_path / "a.jpg", exif=exif)
    found = probe(tmp_path / "a.jpg")
    assert (found.width, found.height) == (96, 64)
    assert read_number(decode(tmp_path / "a.jpg", np.array([0]), found).images[0]) == 77


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_has_its_upright_size_and_pixels_however_it_lies(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.effect_noise((100, 101), 50).convert("RGB").save(tmp_path / "a.jpg", exif=exif)
    found = probe(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        upright = ImageOps.exif_transpose(image)
    assert (found.width, found.height) == upright.size == ((100, 101) if orientation < 5 else (101, 100))
    sampled = read_samples(tmp_path / "a.jpg", {"one": Uniform(frames=1)}, None, found)["one"]
    assert np.array_equal(sampled.images[0, 0], np.asarray(upright))


JPEGS: list[tuple[str, dict[str, Any]]] = [
    ("RGB", {}),
    ("RGB", {"progressive": True}),
    ("RGB", {"subsampling": 0, "restart_marker_rows": 2}),
    ("L", {}),
    ("CMYK", {}),
]


@pytest.mark.parametrize(("mode", "saving"), JPEGS)
def test_a_photograph_that_breaks_off_is_refused_by_probing_and_a_corrupted_one_at_the_latest_when_decoded(
    tmp_path: Path, mode: str, saving: dict[str, Any]
) -> None:
    draw, path = random.Random(mode + str(saving)), tmp_path / "a.jpg"
    Image.effect_noise((160, 120), 60).convert(mode).save(path, **saving)
    whole = path.read_bytes()
    files = [whole[: draw.randrange(20, len(whole))] for _ in range(25)] + [whole[:-n] for n in (1, 2, 3, 9)]
    for _ in range(50):
        corrupted = bytearray(whole)
        for _ in range(draw.choice((1, 3, 20))):
            corrupted[draw.choice((draw.randrange(4, 700), draw.randrange(700, len(whole))))] ^= 1 << draw.randrange(8)
        files.append(bytes(corrupted))
    refused = 0
    for n, data in enumerate(files):
        path.write_bytes(data)
        try:
            with Image.open(path, formats=["JPEG"]) as image:
                expected = image.convert("RGB").size
        except (OSError, ValueError, SyntaxError):
            refused += 1
            with pytest.raises(BadMedia):
                found = probe(path)
                assert n >= 29, "only a corrupted one may pass for now"
                read_samples(path, {"one": Uniform(frames=1)}, None, found)
        else:
            found = probe(path)
            assert (found.width, found.height) == expected
    assert 25 < refused < len(files) - 10


def test_a_film_that_breaks_off_is_planned_again_on_what_is_there(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", COUNT, muxing={"movflags": "faststart"}, options={"g": "250", "bf": "2"})
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    found = probe(path)
    assert found.damaged and found.reader == "pyav" and 10 < found.frames < COUNT
    sampled = read_samples(path, {"some": Uniform(frames=6), "all": EveryNth(stride=1)}, None, found)
    assert sampled["some"].damaged
    numbers = read_numbers(sampled["all"].images)
    # The picture that was cut through may be left grey; everything before it is right.
    assert numbers[:-3] == list(range(len(numbers) - 3)) and len(sampled["some"].images) == 6


def test_a_promise_longer_than_the_film_is_found_out_while_decoding(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.ts", 30)
    found = probe(path)
    longer = replace(found, frames=60, pts=np.arange(60) / 25)
    frames = decode(path, np.array([10, 50]), longer)
    assert (frames.damaged, frames.seen, read_numbers(frames.images)) == (True, 30, [10])
    sampled = read_samples(path, {"some": Uniform(frames=3)}, None, longer)["some"]
    assert sampled.damaged and read_numbers(sampled.images) == [5, 15, 25]


def test_damage_in_the_middle_gives_the_same_frames_every_time(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", COUNT, options={"bf": "2", "g": "15"})
    data = bytearray(path.read_bytes())
    middle = data.index(b"mdat") + 4 + (len(data) - data.index(b"mdat")) // 3
    data[middle : middle + 400] = bytes(400)
    path.write_bytes(data)
    found = probe(path)
    runs = [read_samples(path, {"some": Uniform(frames=20)}, None, found)["some"] for _ in range(3)]
    assert all(run.damaged for run in runs)
    assert all(np.array_equal(run.images, runs[0].images) for run in runs)


def bad(path: Path) -> BadMedia:
    with pytest.raises(BadMedia) as caught:
        probe(path)
    assert path.name in caught.value.reason
    return caught.value


def test_missing_empty_and_foreign_files_say_what_they_are(tmp_path: Path) -> None:
    assert bad(tmp_path / "none.mp4").kind == "missing"
    (tmp_path / "empty.mp4").touch()
    assert bad(tmp_path / "empty.mp4").kind == "empty"
    (tmp_path / "notes.mp4").write_text("Dear diary, this is no film.\n" * 200)
    foreign = bad(tmp_path / "notes.mp4")
    assert foreign.kind == "not_media" and "Dear diary" in foreign.reason
    (tmp_path / "notes.txt").write_text("Dear diary\n" * 200)
    assert bad(tmp_path / "notes.txt").kind == "not_media"
    assert bad(make_sound(tmp_path / "sound.m4a", 440.0, 0.5)).kind == "no_video"
    (tmp_path / "folder.mp4").mkdir()
    assert bad(tmp_path / "folder.mp4").kind == "not_media"


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg4"])
def test_packets_that_hold_no_picture_come_to_an_end(tmp_path: Path, codec: str) -> None:
    path = make_clip(tmp_path / "a.mp4", 30, codec=codec, options=QUIET if codec == "libx265" else {})
    data = path.read_bytes()
    start, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    path.write_bytes(data[:start] + bytes(end - start) + data[end:])
    assert bad(path).kind == "undecodable"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    assert bad(tmp_path / "pipe.mp4").kind == "unsafe"


def test_broken_off_headers_say_so(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "index last.mp4", COUNT)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    cut = bad(path)
    assert cut.kind == "truncated" and "'mdat' part" in cut.reason
    path = make_clip(tmp_path / "index only.mp4", COUNT, muxing={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"mdat") + 4])
    assert bad(path).kind == "truncated"
    path = make_clip(tmp_path / "a.mkv", COUNT)
    path.write_bytes(path.read_bytes()[:60])
    assert bad(path).kind == "truncated"
    Image.fromarray(numbered_image(1)).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:100])
    assert bad(tmp_path / "a.png").kind == "truncated"


def test_a_picture_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    Image.fromarray(numbered_image(1)).save(tmp_path / "bomb.bmp")
    data = bytearray((tmp_path / "bomb.bmp").read_bytes())
    data[18:26] = struct.pack("<ii", 60_000, 60_000)
    (tmp_path / "bomb.bmp").write_bytes(data)
    assert bad(tmp_path / "bomb.bmp").kind == "too_large"


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-VERSION:3\n#EXTINF:2,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        '<?xml version="1.0"?>\n<MPD profiles="urn:mpeg:dash:profile:isoff-live:2011"><BaseURL>{path}</BaseURL></MPD>',
        "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5000 RTP/AVP 96\n",
    ],
)
@pytest.mark.parametrize("name", ["list.mp4", "list.m3u8"])
def test_a_playlist_never_leads_to_another_file(tmp_path: Path, text: str, name: str) -> None:
    secret = make_clip(tmp_path / "secret.ts", 30)
    before = secret.stat().st_atime_ns
    (tmp_path / name).write_text(text.format(path=secret))
    refused = bad(tmp_path / name)
    assert refused.kind == "unsafe" and "give the video itself" in refused.reason
    assert secret.stat().st_atime_ns == before


def test_a_playlist_that_is_not_recognised_is_still_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.media.containers._PLAYLISTS", {})
    secret = make_clip(tmp_path / "secret.ts", 30)
    for name, text in {
        "a.m3u8": "#EXTM3U\n#EXTINF:2,\n{path}\n#EXT-X-ENDLIST\n",
        "a.ffconcat": "ffconcat version 1.0\nfile {path}\n",
    }.items():
        (tmp_path / name).write_text(text.format(path=secret.name))
        assert bad(tmp_path / name).kind == "not_media"


def test_strange_names_are_only_names(tmp_path: Path) -> None:
    for name in ("http:clip.mp4", "concat:a|b.mp4", "-i %03d.mp4", "überraschung 100%.mp4"):
        path = make_clip(tmp_path / "plain.mp4", 3).rename(tmp_path / name)
        assert read_numbers(decode(path, np.array([1, 2]), probe(path)).images) == [1, 2]


def test_a_video_stream_without_a_frame_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "blank.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        container.start_encoding()
    with pytest.raises(BadMedia) as raised:
        probe(path)
    assert raised.value.kind == "no_frames" and "without a single frame" in raised.value.reason
